"""The round loop. It knows no method: it draws cohorts, runs visits, folds replies in client order, and yields."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fedptr.core.client_scores import expected_scores, record_scores
from fedptr.core.client_states import ClientStates, StateStore
from fedptr.core.collect_samples import collect_samples
from fedptr.core.early_stopping import has_ended, update_best
from fedptr.core.faults import Faults
from fedptr.core.learning_rate import rate_of_round
from fedptr.core.linear_models import is_linear_model
from fedptr.core.local_training import Local
from fedptr.core.long_work import Workbench
from fedptr.core.method import Entry, Method, Site
from fedptr.core.own_part import check_own_part, find_own_model
from fedptr.core.randomness import Key
from fedptr.core.round_record import Clock, count_bytes, describe_round, split_log
from fedptr.core.run import Run as Run
from fedptr.core.samples import SampleParts, Samples
from fedptr.core.task import ModelTask, Task, has_features, takes_texts
from fedptr.core.visit import Request, Visit, VisitCohort, VisitResults, first_state, name_failures, visit_in_process
from fedptr.errors import ReplyError, UserError
from fedptr.settings import check_settings, setting
from fedptr.types import Reply, State


@dataclass(frozen=True)
class Rounds:
    """How many rounds, with which clients, from which seed.

    >>> Rounds(rounds=30, participation=0.5).sampling
    'fixed'
    """

    rounds: int = setting(50, "communication rounds T", ge=1)
    participation: float = setting(1.0, "fraction of the clients selected in each round", gt=0, le=1)
    sampling: Literal["fixed", "bernoulli"] = setting("fixed", "cohorts of a fixed size, or a coin flip per client")
    seed: int = setting(0, "seed of initial weights, cohorts, batch order and auxiliary data", ge=0)
    on_failure: Literal["stop", "drop"] = setting("stop", "when a client fails: stop the run, or continue without it")
    checkpoint_every: int = setting(1, "rounds between checkpoints of a run folder; 0 = none", affects="nothing", ge=0)
    eval_every: int = setting(1, "rounds between evaluations on the test set; the last round is always evaluated", ge=1)
    target: float = setting(
        0.0, "stop when the test score reaches this, as a fraction such as 0.9; 0 = off", example=0.9, ge=0, le=1
    )
    patience: int = setting(0, "stop after this many evaluations without a new best; 0 = off", example=10, ge=0)

    def cohort_size(self, clients: int) -> int:
        """The size of a cohort that is drawn from this many clients, where it is fixed; at least 1.

        >>> Rounds(participation=0.25).cohort_size(10), Rounds(participation=0.01).cohort_size(10)
        (3, 1)
        """
        return max(1, math.floor(self.participation * clients + 0.5))


class Protection(Protocol):
    """Decides who takes part in a round and what the server sees of the replies; see `fedptr.privacy`."""

    def check(self, method: Method, rounds: Rounds) -> None: ...
    def cohort(self, clients: Sequence[int], rounds: Rounds, key: Key) -> list[int]: ...
    def release(self, replies: list[Reply], x: Tensor, rounds: Rounds, site: Site) -> list[Reply]: ...
    def record(self, rounds: Rounds, done: int) -> dict[str, float]: ...
    def commit(self, run: Run) -> None: ...  # before anything of the run's new model leaves the server


@dataclass(frozen=True)
class NoProtection:
    """No protection: the server sees every reply."""

    def check(self, method: Method, rounds: Rounds) -> None: ...

    def cohort(self, clients: Sequence[int], rounds: Rounds, key: Key) -> list[int]:
        return draw_cohort(clients, rounds, key)

    def release(self, replies: list[Reply], x: Tensor, rounds: Rounds, site: Site) -> list[Reply]:
        return replies

    def record(self, rounds: Rounds, done: int) -> dict[str, float]:
        return {}

    def commit(self, run: Run) -> None: ...


def federate(
    method: Method,
    task: Task,
    clients: Sequence[Any],
    test: Any = None,
    rounds: Rounds | None = None,
    local: Local | None = None,
    faults: Faults | None = None,
    start: Run | None = None,
    state_store: StateStore | None = None,
    visits: VisitCohort | None = None,
    privacy: Protection | None = None,
    client_tests: Sequence[Any] = (),
    bench: Workbench | None = None,
) -> Iterator[Run]:
    """Trains one model over the clients, yielding after every round. Stop with `break`; resume with `start=run`.

    A client's data is a `Samples`, a pair (x, y) of arrays, a torch Dataset or DataLoader, or a Hugging Face dataset.
    Clients' states are kept in memory, or in a `state_store` with a budget; a resumed run keeps the store it has.
    `visits` replaces `visit_in_process`, for cohorts that visit in another way. Where the data is elsewhere, `clients`
    holds numbers of samples instead of samples. `client_tests` are the clients' own test sets, in the same order: with
    them every client evaluates the global model and its own whenever the test set is due. With `rounds.target` or
    `rounds.patience` it may end before the last round; `fedptr.core.early_stopping.why_stopped` says why. A `bench`
    keeps long work within a round, so that a run that is killed there need not repeat it.
    """
    rounds = rounds or (Rounds(rounds=1) if method.one_shot else Rounds())
    local, faults, privacy = local or Local(), faults or Faults(), privacy or NoProtection()
    for settings, name in ((method, "method"), (rounds, "run"), (local, "local"), (faults, "faults")):
        check_settings(settings, name)
    check_participation(method, rounds)
    check_local(method, local)
    privacy.check(method, rounds)
    check_task(method, task)
    clients = read_clients(task, clients, "client")
    client_tests = read_clients(task, client_tests, "the test set of client")
    test = None if test is None else read_samples(task, test, "the test set")
    sizes, tests = count_samples(clients), count_samples(client_tests)
    if not sizes:
        raise UserError("no client has any data; check the split")
    check_stopping(rounds, evaluates=bool(tests) or (test is not None and len(test) > 0))
    known, total, tested = sorted(sizes), sum(sizes.values()), sorted(sizes.keys() & tests.keys())
    shares = {i: len(sizes) * size / total for i, size in sizes.items()}
    server = Site(task, local, Key(rounds.seed).at("server"), 0, len(sizes), numbers=len(clients), bench=bench)
    channel = Channel(method, faults, rounds.on_failure == "drop", visits or visit_in_process)
    run = start or first_run(method, server, state_store)

    def visit_site(site: Site, i: int, test: Samples | int = 0) -> Site:
        return site_of_client(site, rounds.seed, i, clients[i], sizes[i], shares[i], test)

    while not has_ended(run, rounds):
        site = site_of_round(server, local, rounds, run.round if run.evaluated else run.round - 1)
        if run.evaluated:
            cohort = privacy.cohort(known, rounds, Key(rounds.seed).at("round", run.round))
            run = next_round(method, run, site, {i: visit_site(site, i) for i in cohort}, channel, privacy, rounds)
            privacy.commit(run)
        if run.round % rounds.eval_every == 0 or run.round == rounds.rounds:
            testers = {i: visit_site(site, i, client_tests[i]) for i in tested}
            run = evaluate_run(method, run, site, test, testers, channel)
        best = update_best(run.best, run.record, run.round, rounds)
        run = replace(run, task=task, evaluated=True, best=best)
        yield run


def read_clients(task: Task, parts: Sequence[Any], whose: str) -> Sequence[Samples | int]:
    """All clients' samples, checked."""
    read = (read_client(task, data, f"{whose} {i}") for i, data in enumerate(parts))
    if isinstance(parts, SampleParts):
        collections.deque(read, maxlen=0)
        return parts
    return list(read)


def read_client(task: Task, data: Any, whose: str) -> Samples | int:
    """A client's samples; where they are elsewhere, their number."""
    return data if isinstance(data, int) else read_samples(task, data, whose)


def read_samples(task: Task, data: Any, whose: str) -> Samples:
    samples = collect_samples(data, whose)
    if isinstance(task, ModelTask) and len(samples):
        task.check_labels(samples.labels, whose)
    return samples


def count_samples(parts: Sequence[Samples | int]) -> dict[int, int]:
    """The number of samples of every client that has any."""
    counts = [data if isinstance(data, int) else len(data) for data in parts]
    return {i: size for i, size in enumerate(counts) if size}


def check_participation(method: Method, rounds: Rounds) -> None:
    if method.everyone and rounds.participation < 1:
        raise UserError(f"{method.name} needs every client in every round; set run.participation = 1")


def check_local(method: Method, local: Local) -> None:
    """Refuses local settings that the method would ignore, or is wrong with."""
    if method.sgd_only and local.optimiser != "sgd":
        raise UserError(f"{method.name} {method.sgd_only}; set local.optimiser = sgd, or choose another method")
    if method.no_augment and local.augment != "none":
        raise UserError(f"{method.name} {method.no_augment}; set local.augment = none, or choose another method")


def check_stopping(rounds: Rounds, evaluates: bool) -> None:
    if (rounds.target or rounds.patience) and not evaluates:
        raise UserError("run.target and run.patience need a test set; give one, or leave them at 0")


def check_task(method: Method, task: Task) -> None:
    """Refuses a model that the method cannot train."""
    if method.needs_classes and not task.classes:
        raise UserError(f"{method.name} trains classifiers, and this task has no classes; choose another method")
    if method.needs_linear and not is_linear_model(task):
        raise UserError(
            f"{method.name} trains linear models only, and this model is not one linear layer on the inputs; set "
            "model.name = linear"
        )
    if method.needs_features and not has_features(task):
        raise UserError(
            f"{method.name} needs the features before a model's last nn.Linear layer, and this model has none; choose "
            "another method or model"
        )
    check_own_part(method, task)
    method.check(task)
    if method.sends_sets:
        check_for_sets(method, task)
    if method.personalised and task.initial_buffers() is not None:
        raise UserError(
            f"{method.name} keeps a model for every client, but not its running statistics (BatchNorm); use a model "
            "with GroupNorm or InstanceNorm"
        )


def check_for_sets(method: Method, task: Task) -> None:
    """Refuses a model that cannot be trained on the server on samples that clients send."""
    texts = takes_texts(task)
    if texts or task.initial_buffers() is not None:
        what = "texts, whose words are numbers" if texts else "running statistics (BatchNorm)"
        raise UserError(
            f"{method.name} sends sets of samples and trains the model on the server, which does not work with {what}; "
            "choose another method or model"
        )


def last_run(runs: Iterable[Run]) -> Run:
    """Runs a federation to its end, for callers that need only the result."""
    return collections.deque(runs, maxlen=1).pop()


def first_run(method: Method, site: Site, state_store: StateStore | None = None) -> Run:
    """Round 0: the state before any training."""
    server = method.server_init(site.task.init(), site)
    buffers = site.task.initial_buffers()
    return Run(0, server if buffers is None else {**server, "buffers": buffers}, ClientStates(store=state_store))


def site_of_round(site: Site, local: Local, rounds: Rounds, t: int) -> Site:
    """The server's site in round t."""
    key = Key(rounds.seed).at("round", t, "server")
    return replace(site, local=replace(local, lr=rate_of_round(local, t, rounds.rounds)), key=key, round=t)


def site_of_client(
    site: Site, seed: int, i: int, data: Samples | int, size: int, share: float, test: Samples | int = 0
) -> Site:
    """A client's site in the round of the server's `site`."""
    key = Key(seed).at("round", site.round, "client", i)
    here, own_test = (None if isinstance(part, int) else part for part in (data, test))
    return replace(site, key=key, data=here, size=size, share=share, test=own_test)


def draw_cohort(clients: Sequence[int], rounds: Rounds, key: Key) -> list[int]:
    """The clients of a round. They depend on (seed, round) only, so they are the same for every method."""
    n, generator = len(clients), key("sampling")
    if rounds.sampling == "bernoulli":
        chosen = (torch.rand(n, generator=generator) < rounds.participation).nonzero().flatten()
        if len(chosen) == 0:  # never an empty round
            chosen = torch.randint(n, (1,), generator=generator)
    else:
        chosen = torch.randperm(n, generator=generator)[: rounds.cohort_size(n)]
    return sorted(clients[i] for i in chosen.tolist())


class Channel(NamedTuple):
    """How messages reach a cohort, including simulated faults."""

    method: Method
    faults: Faults
    tolerant: bool  # whether the round continues without a client that fails
    visits: VisitCohort

    def send(self, request: Request, states: Mapping[int, State], sites: Mapping[int, Site]) -> VisitResults:
        present, gone = self.faults.simulate(sites)
        visits, dropped = self.visits(self.method, request, states, present, self.tolerant) if present else ({}, {})
        return visits, dict(sorted((gone | dropped).items()))


class Exchange(NamedTuple):
    """The result of a round's messages."""

    server: State
    x: Tensor  # the model the cohort was sent
    log: State
    visits: dict[int, Visit]
    dropped: dict[int, str]
    down: int  # bytes, of all messages
    up: int = 0  # bytes, of answers; replies are counted with the visits


def exchange_messages(method: Method, run: Run, site: Site, sites: Mapping[int, Site], channel: Channel) -> Exchange:
    """The broadcast and the cohort's visits; if the method asks a question, it and its answers come first.

    A question is an ordinary message, so every engine that runs visits can deliver it. A client that does not answer
    does not train in this round.
    """
    server, silent, down, up = run.server, dict[int, str](), 0, 0
    with name_failures(method, site.round, "server"), site.key.fixed("model"):
        question = method.ask(server, site)
    if question is not None:
        request = Request("answer", run.w, question, with_model_type(method.answers(site.task), run.w))
        heard, silent = channel.send(request, run.clients, sites)
        answers = collect_replies(heard, sites)
        down, up = request.bytes_to(sites), sum(count_bytes(answer.state) for answer in answers)
        if not answers:
            return Exchange(server, run.w, {}, {}, silent, down)
        server = method.learn(server, answers, site)
        sites = {i: sites[i] for i in sorted(heard)}
    with name_failures(method, site.round, "server"), site.key.fixed("model"):
        msg, server = method.broadcast(server, site)
    msg, log = split_log(msg)
    if "buffers" in run.server:
        msg["buffers"] = run.server["buffers"]
    own = {i: method.message(server, i) for i in sites}
    largest = max((there.size for there in sites.values()), default=0)
    request = Request("train", msg.get("x", server["x"]), msg, expected_reply(method, run, site, largest), own)
    visits, dropped = channel.send(request, run.clients, sites)
    return Exchange(server, request.x, log, visits, silent | dropped, down + request.bytes_to(sites), up)


def expected_reply(method: Method, run: Run, site: Site, largest: int) -> dict[str, Entry]:
    """What a reply of this round holds, of a client with up to `largest` samples."""
    if method.silent(site):
        return {}
    entries = {name: entry.up_to(largest) for name, entry in with_model_type(method.sends(site.task), run.w).items()}
    buffers = run.server.get("buffers")
    return entries if buffers is None or not entries else {**entries, "buffers": Entry(buffers.shape, buffers.dtype)}


def with_model_type(entries: Mapping[str, Entry], x: Tensor) -> dict[str, Entry]:
    """The entries, with the model's type where they leave it open."""
    return {name: entry if entry.dtype else entry._replace(dtype=x.dtype) for name, entry in entries.items()}


def next_round(
    method: Method,
    run: Run,
    site: Site,
    sites: Mapping[int, Site],
    channel: Channel,
    privacy: Protection,
    rounds: Rounds,
) -> Run:
    """One round: the exchange with the cohort, and aggregation. The new model is not evaluated yet."""
    clock = Clock()
    met = exchange_messages(method, run, site, sites, channel)
    clock.lap("visits")
    replies = collect_replies(met.visits, sites)
    seen = privacy.release(replies, met.x, rounds, site)
    with name_failures(method, site.round, "server"):
        server = aggregate_replies(method, met.server, seen, site) if seen else met.server
        if not bool(server["x"].isfinite().all()):
            raise ReplyError("its model is no longer finite; a smaller method.server_lr or local.lr may help")
    clock.lap("aggregation")
    record: dict[str, Any] = {
        "round": site.round + 1,
        "cohort": list(sites),
        **({"dropped": met.dropped} if met.dropped else {}),
        "bytes_down": met.down,
    }
    record |= describe_round(run.w, server["x"], met.log, replies, met.visits, clock)
    record["bytes_up"] += met.up
    record |= privacy.record(rounds, site.round + 1)
    clients = run.clients.updated({i: result.client for i, result in met.visits.items()})
    return Run(site.round + 1, server, clients, record, evaluated=False, best=run.best)


def evaluate_run(
    method: Method, run: Run, site: Site, test: Samples | None, testers: Mapping[int, Site], channel: Channel
) -> Run:
    """The run, whose record now has the scores of its model on the test set, and on the clients' own test sets."""
    clock, record = Clock(), run.record
    if test is not None:
        scores = site.task.evaluate(run.w, test, run.server.get("buffers"))
        record = {"round": run.round, **{f"test_{name}": value for name, value in scores.items()}, **record}
    if testers:
        record = {**record, **evaluate_clients(method, run, site, testers, channel)}
    clock.lap("evaluation")
    times = record["seconds"]
    more = {"evaluation": times["evaluation"] + clock.total, "total": times["total"] + clock.total}
    return replace(run, record={**record, "seconds": {**times, **more}})


def evaluate_clients(
    method: Method, run: Run, site: Site, testers: Mapping[int, Site], channel: Channel
) -> dict[str, Any]:
    """For the record: the scores of every client that has test data, whether or not it took part."""
    own = {i: method.message(run.server, i) for i in testers}
    request = Request("evaluate", run.w, evaluation_message(run), expected_scores(method, site.task), own)
    visits, missing = channel.visits(method, request, run.clients, testers, channel.tolerant)
    scores = record_scores({i: visit.reply for i, visit in visits.items()})
    return {**scores, "not_evaluated": missing} if missing else scores


def personal_model(method: Method, run: Run, site: Site, i: int) -> tuple[Task, Tensor]:
    """The model that client i would use after this run, as when it is evaluated, and the task that it is of."""
    msg = {**evaluation_message(run), **method.message(run.server, i)}
    site = replace(site, local=method.settings(site.local))
    client = run.clients.get(i)
    with site.key.fixed("model"):
        return find_own_model(method, msg, first_state(method, msg, site, i) if client is None else client, site)


def evaluation_message(run: Run) -> State:
    """What every client is sent of a run when it evaluates."""
    return {name: value for name, value in run.server.items() if name in ("x", "buffers")}


def aggregate_replies(method: Method, server: State, replies: Sequence[Reply], site: Site) -> State:
    """The method's own aggregation; methods do not see buffers, which are averaged like the models."""
    new = method.aggregate(server, replies, site)
    if "buffers" in server and any("buffers" in reply.state for reply in replies):
        new = {**new, "buffers": method.mean(replies, "buffers")}
    return new


def collect_replies(visits: Mapping[int, Visit], sites: Mapping[int, Site]) -> list[Reply]:
    """The part of the visits that methods see, in client order."""
    return [Reply(i, sites[i].size, visits[i].reply, int(visits[i].log.get("steps", 0))) for i in sorted(visits)]
