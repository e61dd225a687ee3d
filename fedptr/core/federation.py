"""The engine. It knows no method: it draws cohorts, lets clients visit, folds replies in client order, and yields."""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedptr.core.client_states import Shelf, States
from fedptr.core.exchange import exchange, named, replies_of
from fedptr.core.faults import Faults
from fedptr.core.local_training import Local, local_sgd
from fedptr.core.randomness import Key
from fedptr.core.round_record import Clock, describe, split_log
from fedptr.core.samples import Samples
from fedptr.core.site import Reply, Site
from fedptr.core.task import State, Task
from fedptr.errors import ClientError, ReplyError, UserError
from fedptr.methods.fedavg import FedAvg
from fedptr.privacy.differential import Privacy, epsilon
from fedptr.privacy.differential import check as check_privacy
from fedptr.settings import setting, verify


@dataclass(frozen=True)
class Rounds:
    """How long, with whom, and from which seed."""

    rounds: int = setting(50, "communication rounds T", ge=1)
    participation: float = setting(1.0, "part of the clients that is selected in a round", gt=0, le=1)
    sampling: Literal["fixed", "bernoulli"] = setting("fixed", "cohorts of one size, or a coin per client")
    seed: int = setting(0, "seed of initial weights, cohorts, batch order and auxiliary data", ge=0)
    on_failure: Literal["stop", "drop"] = setting("stop", "when a client fails: stop the run, or go on without it")
    checkpoint_every: int = setting(1, "rounds between checkpoints of a run folder; 0 = none", ge=0)
    eval_every: int = setting(1, "evaluate on the test set after every so many rounds, and after the last", ge=1)


@dataclass(frozen=True)
class Run:
    """Everything a federation is after `round` rounds; all that is needed to go on.

    It stays what it is for as long as it is held, wherever its clients' states are and whatever later rounds do.
    """

    round: int
    server: State
    clients: States
    record: dict[str, Any] = field(default_factory=dict)  # of the last round, as in rounds.jsonl

    def __post_init__(self) -> None:
        if not isinstance(self.clients, States):  # whoever makes a run may give a plain mapping
            object.__setattr__(self, "clients", States(self.clients))

    @property
    def w(self) -> Tensor:
        """The global model as one vector."""
        return self.server["x"]


class Visit(NamedTuple):
    """What came of one client's round."""

    reply: State  # sent to the server
    client: State  # kept by the client
    log: State  # recorded
    seconds: float


Visits = Callable[
    [FedAvg, State, Mapping[int, State], Mapping[int, Site], bool], tuple[dict[int, Visit], dict[int, str]]
]  # see `visit_all`


Release = Callable[[list[Reply], Tensor, Site], list[Reply]]  # what the server may see of the replies to x


def federate(
    method: FedAvg,
    task: Task,
    clients: Sequence[Samples | int],
    test: Samples | None = None,
    rounds: Rounds | None = None,
    local: Local | None = None,
    faults: Faults | None = None,
    start: Run | None = None,
    shelf: Shelf | None = None,
    visits: Visits | None = None,
    privacy: Privacy | None = None,
) -> Iterator[Run]:
    """Trains one model over the clients, yielding after every round. Stop with `break`; go on with `start=run`.

    Clients' states are kept in memory, or on a shelf with a budget; a run that goes on keeps the shelf it has. `visits`
    is another way than `visit_all` to let a cohort visit; of clients that are elsewhere the number of samples will do.
    """
    rounds, local, faults, privacy = rounds or Rounds(), local or Local(), faults or Faults(), privacy or Privacy()
    parts = (method, "method"), (rounds, "run"), (local, "local"), (faults, "faults"), (privacy, "privacy")
    for settings, name in parts:
        verify(settings, name)
    fit(method, rounds)
    check_privacy(privacy, method, rounds)
    counts = [data if isinstance(data, int) else len(data) for data in clients]
    sizes = {i: size for i, size in enumerate(counts) if size}
    if not sizes:
        raise UserError("no client has any data; check the split")
    known, total = sorted(sizes), sum(sizes.values())
    server = Site(task, local, Key(rounds.seed).at("server"), 0, len(sizes))
    run = start or begin(method, server, shelf)
    for t in range(run.round, rounds.rounds):
        key = Key(rounds.seed).at("round", t)
        site = replace(server, local=replace(local, lr=local.lr * local.decay**t), key=key.at("server"), round=t)
        draw = privacy.cohort if privacy.clip else draw_cohort
        cohort = draw(known, rounds, key)
        sites = {i: client_site(site, rounds.seed, i, clients[i], sizes[i], total) for i in cohort}
        due = test is not None and ((t + 1) % rounds.eval_every == 0 or t + 1 == rounds.rounds)
        asked = (faults, rounds.on_failure == "drop", visits or visit_all)
        release = partial(privacy.release, rounds.participation)
        run = next_round(method, run, site, sites, test if due else None, *asked, release)
        if privacy.clip:
            spent = epsilon(rounds.participation, privacy.noise, t + 1, privacy.delta)
            run = replace(run, record={**run.record, "epsilon": spent})
        yield run


def fit(method: FedAvg, rounds: Rounds) -> None:
    """Whether the method can do with so many clients."""
    if method.everyone and rounds.participation < 1:
        raise UserError(f"{method.name} needs every client in every round; set run.participation = 1")


def last(runs: Iterable[Run]) -> Run:
    """The end of a federation whose rounds nobody needs to see."""
    return collections.deque(runs, maxlen=1).pop()


def client_site(site: Site, seed: int, i: int, data: Samples | int, size: int, total: int) -> Site:
    """A client's place in the round of the server's `site`."""
    key = Key(seed).at("round", site.round, "client", i)
    here = None if isinstance(data, int) else data
    return replace(site, key=key, data=here, size=size, share=site.clients * size / total)


def next_round(
    method: FedAvg,
    run: Run,
    site: Site,
    sites: Mapping[int, Site],
    test: Samples | None,
    faults: Faults,
    tolerant: bool,
    visits_of: Visits,
    release: Release,
) -> Run:
    """One round: the exchanges with the cohort, aggregation, evaluation."""
    clock = Clock()

    def send(msg: State, asked: Mapping[int, Site]) -> tuple[dict[int, Visit], dict[int, str]]:
        there, gone = faults.meet(asked)
        visits, dropped = visits_of(method, msg, run.clients, there, tolerant) if there else ({}, {})
        return visits, dict(sorted((gone | dropped).items()))

    met = exchange(method, run, site, sites, send)
    clock.lap("visits")
    replies = replies_of(met.visits, sites)
    seen = release(replies, met.x, site)
    with named(method, site.round, "server"):
        server = aggregate(method, met.server, seen, site) if seen else met.server
        if not bool(server["x"].isfinite().all()):
            raise ReplyError("its model is not finite any more; a smaller method.server_lr or local.lr may help")
    clock.lap("aggregation")
    scores = {} if test is None else site.task.evaluate(server["x"], test, server.get("buffers"))
    clock.lap("evaluation")
    record: dict[str, Any] = {"round": site.round + 1, **{f"test_{name}": value for name, value in scores.items()}}
    record |= {
        "cohort": list(sites),
        **({"dropped": met.dropped} if met.dropped else {}),
        "bytes_down": met.down,
    }
    record |= describe(run.w, server["x"], met.log, replies, met.visits, clock)
    record["bytes_up"] += met.up
    clients = run.clients.updated({i: result.client for i, result in met.visits.items()})
    return Run(site.round + 1, server, clients, record)


def visit_all(
    method: FedAvg,
    msg: State,
    states: Mapping[int, State],
    sites: Mapping[int, Site],
    tolerant: bool,
) -> tuple[dict[int, Visit], dict[int, str]]:
    """The visits that led to a reply, and why the others did not. Who did not reply is as if it had not been asked."""
    visits, dropped = {}, {}
    for i, site in sites.items():
        try:
            with named(method, site.round, f"client {i}"):
                result = visit(method, msg, states.get(i), site, i)
                check_reply(result.reply, msg)
        except ClientError as error:
            if not tolerant:
                raise
            dropped[i] = str(error)
            continue
        visits[i] = result
    return visits, dropped


def begin(method: FedAvg, site: Site, shelf: Shelf | None = None) -> Run:
    """Round 0: the server's state before anything was trained."""
    server = method.server_init(site.task.init(), site)
    buffers = site.task.initial_buffers()
    return Run(0, server if buffers is None else {**server, "buffers": buffers}, States(shelf=shelf))


def draw_cohort(clients: Sequence[int], rounds: Rounds, key: Key) -> list[int]:
    """The clients of a round, from (seed, round) alone: the same for every method."""
    n, generator = len(clients), key("sampling")
    if rounds.sampling == "bernoulli":
        chosen = (torch.rand(n, generator=generator) < rounds.participation).nonzero().flatten()
        if len(chosen) == 0:  # at least one, or the round would be empty
            chosen = torch.randint(n, (1,), generator=generator)
    else:
        chosen = torch.randperm(n, generator=generator)[: max(1, math.floor(rounds.participation * n + 0.5))]
    return sorted(clients[i] for i in chosen.tolist())


def visit(method: FedAvg, msg: State, client: State | None, site: Site, i: int) -> Visit:
    """A client's whole round; pure. In-process, on a cluster or over a network it is this that runs."""
    site = replace(site, local=method.settings(site.local))
    if client is None:  # its first visit; the key does not depend on when that is
        client = method.client_init(msg["x"], replace(site, key=Key(site.key.seed).at("client", i)))
    with site.key.fixed("model"):
        began = time.perf_counter()
        answer = method.answer(msg, client, site)
        if answer is not None:
            return Visit(answer, client, {}, time.perf_counter() - began)
        msg, client = method.prepare(msg, client, site)
        began = time.perf_counter()
        buffers = site.task.unpack_buffers(msg.get("buffers"))
        trained = local_sgd(method, msg, client, site, buffers)
        seconds = time.perf_counter() - began
        reply, client = method.reply(trained.w, msg, client, trained.steps, site)
    (_, prepared), (reply, log) = split_log(msg), split_log(reply)
    if "buffers" in msg and reply:  # who sends nothing sends none of those either
        reply = {**reply, "buffers": site.task.pack_buffers(buffers)}
    log |= prepared
    for name, value in (("steps", trained.steps), ("train_loss", trained.loss), ("gamma", trained.gamma)):
        if value is not None:
            log[name] = torch.tensor(value, dtype=torch.int64 if name == "steps" else torch.float64)
    return Visit(reply, client, log, seconds)


def check_reply(reply: State, msg: State) -> None:
    """Whatever a client sends is of the model's size (or the buffers') and finite."""
    for name, value in reply.items():
        expected = msg["buffers" if name == "buffers" else "x"]
        if value.shape != expected.shape or value.dtype != expected.dtype:
            shapes = f"{value.dtype} of shape {tuple(value.shape)}, not {expected.dtype} of {tuple(expected.shape)}"
            raise ReplyError(f"its {name!r} is {shapes}")
        if not bool(torch.isfinite(value).all()):
            raise ReplyError(f"its {name!r} is not finite; a smaller local.lr or a local.clip may help")


def aggregate(method: FedAvg, server: State, replies: Sequence[Reply], site: Site) -> State:
    """The method's own aggregation; buffers, which no method knows, are averaged like the models."""
    new = method.aggregate(server, replies, site)
    if "buffers" in server and any("buffers" in reply.state for reply in replies):
        new = {**new, "buffers": method.mean(replies, "buffers")}
    return new
