"""A deployed run on the server: the loop of `fedptr.runs.runner` with clients that are elsewhere.

The rules are in deploy.toml. A round starts when `min_nodes` are online and have joined. It ends when every node that
was asked has answered, failed or gone offline, or after `round_timeout`. With fewer than `min_replies` usable replies
it does not count and is repeated. After `patience` without a round that counts, the run stops; `fedptr resume` resumes
it. A node that joins in the middle is a client from the next round on. A node that is lost stays a client: it is drawn
and counts as dropped until it is back.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from flwr.serverapp import Grid

from fedptr import atomic_files
from fedptr.atomic_files import Header, write_text
from fedptr.compute.choose import choose_backend
from fedptr.core.early_stopping import has_ended
from fedptr.core.federation import Protection, Run, federate
from fedptr.core.samples import Samples
from fedptr.core.task import ModelTask
from fedptr.data.dataset import Dataset
from fedptr.data.split import Split
from fedptr.data.to_samples import to_samples
from fedptr.engines.flower.server import deploy_plan
from fedptr.engines.flower.server.admission import Admission
from fedptr.engines.flower.server.deploy_plan import DeployPlan
from fedptr.engines.flower.server.events import note_event
from fedptr.engines.flower.server.remote_visits import RemoteCohort, TooFewRepliesError
from fedptr.engines.flower.server.roster import Roster
from fedptr.engines.flower.wire.agreement import Agreement, make_empty_dataset, translate_dataset
from fedptr.engines.flower.wire.courier import Courier
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.models.initial_weights import digest_first_model, digest_initial_weights
from fedptr.runs import trackers
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.runs.computing import Computing
from fedptr.runs.experiment import Experiment, choose_device, load_data, make_task
from fedptr.runs.folder import CHECKPOINTS
from fedptr.runs.lock import locked
from fedptr.runs.plan import Plan, load_plan
from fedptr.runs.private_releases import protect_releases
from fedptr.runs.rounds_file import Record, RoundsFile
from fedptr.runs.runner import finish_run, load_newest_checkpoint, record_rounds
from fedptr.runs.same_run import identity_text
from fedptr.runs.unfinished_work import UnfinishedWork

IDENTITY = "flower.json"  # the experiment's name, and how often it was started


@dataclass
class Server:
    """One start of a deployed run."""

    plan: Plan
    rules: DeployPlan
    folder: Path
    courier: Courier
    experiment: str
    attempt: int


def serve_run(grid: Grid, folder: Path) -> Record:
    """Starts or resumes a run in its folder (plan.toml, deploy.toml); returns the summary."""
    plan, rules = load_plan(folder), deploy_plan.read_deploy_plan(folder)
    with locked(folder):
        experiment, attempt = count_start(folder)
        server = Server(plan, rules, folder, Courier(grid, rules.deploy.poll, experiment), experiment, attempt)
        same = {"plan": identity_text(plan), "experiment": experiment}
        if plan.model.init:
            same["initial weights"] = digest_initial_weights(plan.model)
        start, history = load_newest_checkpoint(folder, plan, same, choose_device(plan.machine.device))
        if start is not None:
            print_notice(f"{folder}: resuming after round {start.round} of {plan.run.rounds}")
        return run_until_finished(server, same, start, history)


def count_start(folder: Path) -> tuple[str, int]:
    """The experiment's name and the number of this start; on disk before any node is asked."""
    path = folder / IDENTITY
    known: Record = {"experiment": secrets.token_hex(8), "attempt": 0}
    if path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))
    known["attempt"] += 1
    write_text(path, json.dumps(known) + "\n")
    return str(known["experiment"]), int(known["attempt"])


def run_until_finished(server: Server, same: Header, start: Run | None, history: RoundsFile | None) -> Record:
    """Runs all rounds; each is recorded, saved, and shown in status.json."""
    plan, rules, out = server.plan, server.rules.deploy, server.folder
    deploy_plan.check_evaluation(plan, rules)
    header = (
        {} if start is None else atomic_files.read_tensors(CheckpointStore(out / CHECKPOINTS).server(start.round))[1]
    )
    bench = UnfinishedWork(out.absolute(), same) if plan.run.checkpoint_every else None
    registered = Path(server.rules.flower.nodes) if server.rules.flower.nodes else None
    roster = Roster.from_text(header.get("roster", "[]"), registered)
    own = load_data(plan.data) if rules.evaluate == "server" else None
    agreed = Agreement.from_words(json.loads(header["agreement"])) if "agreement" in header else None
    admission = Admission(server.courier, roster, rules, server.experiment, own, out)
    agreed = admission.agree_with_nodes(agreed)
    if agreed.target == "labels" and rules.evaluate == "nodes":
        raise UserError("nodes send no F1 of several labels a sample; set deploy.evaluate = server")
    task, test = prepare_task(plan, agreed, own)
    computing = Computing(out, task, rules.recompute, f"deploy.recompute = true in {out / deploy_plan.NAME}")
    store = CheckpointStore(out / CHECKPOINTS)
    asked = (plan.toml(), agreed, server.experiment, server.attempt)
    first = digest_first_model(task) if plan.model.init or task.held else ""
    remote = RemoteCohort(server.courier, roster, rules, *asked, make_oldest_round(store, plan), plan.privacy, first)
    history = history or RoundsFile(out)
    # Flower handles signals: it ends this process when its SuperLink ends. The last checkpoint is enough to resume.
    with contextlib.closing(history), trackers.track_rounds(out, history.records) as track:
        if start is not None:
            computing.resume_from(header)
        privacy, save = protect_releases(
            plan,
            out,
            start,
            store,
            history,
            lambda: {
                **same,
                **computing.header(),
                "roster": roster.to_text(),
                "agreement": json.dumps(agreed.to_words()),
            },
        )
        run = record_rounds(
            plan,
            out,
            computing.checked(rounds_that_count(server, admission, remote, task, test, privacy, bench, start)),
            start,
            store,
            history,
            lambda run: track(run.record),
            save,
            bench=bench,
        )
    dataset = make_empty_dataset(agreed) if own is None else translate_dataset(own, agreed)
    experiment = Experiment(dataset, make_split(roster), task, [], to_samples(dataset)[1])
    changed = {"recomputed": computing.changes} if computing.changes else {}
    summary = finish_run(plan, experiment, out, run, store, history, evaluated=rules.evaluate, **changed)
    admission.write_status("finished", run.record)
    return summary


def prepare_task(plan: Plan, agreed: Agreement, own: Dataset | None) -> tuple[ModelTask, Samples | None]:
    """The task as the nodes build it, and the server's test set if it has one."""
    device = choose_device(plan.machine.device)
    dataset = make_empty_dataset(agreed) if own is None else translate_dataset(own, agreed)
    task = choose_backend(plan, make_task(plan, dataset, device), agreed.images)
    return task, None if own is None else to_samples(dataset, device)[1]


def rounds_that_count(
    server: Server,
    admission: Admission,
    remote: RemoteCohort,
    task: ModelTask,
    test: Samples | None,
    privacy: Protection,
    bench: UnfinishedWork | None,
    run: Run | None,
) -> Iterator[Run]:
    """The rounds from `run` to the plan's last, or until it stops early."""
    while run is None or not has_ended(run, server.plan.run):
        run = next_round_that_counts(server, admission, remote, task, test, privacy, bench, run)
        yield run


def next_round_that_counts(
    server: Server,
    admission: Admission,
    remote: RemoteCohort,
    task: ModelTask,
    test: Samples | None,
    privacy: Protection,
    bench: UnfinishedWork | None,
    run: Run | None,
) -> Run:
    """The next round that counts."""
    plan, rules = server.plan, server.rules.deploy
    until = time.monotonic() + rules.patience
    t = 0 if run is None else run.round - (not run.evaluated)
    while True:
        remote.rests.begin_turn()
        admission.left_out = remote.rests.describe_all()
        admission.wait_for_nodes(until, t, run.record if run else {})
        try:
            sizes = remote.roster.sizes()
            tests = remote.roster.tests() if deploy_plan.nodes_evaluate(plan, rules) else []
            late = server.courier.late
            remote.entries_left_out.clear()
            asked = (test, plan.run, plan.local, plan.faults, run, None, remote.visit_cohort, privacy, tests, bench)
            new = next(federate(plan.method, task, sizes, *asked))
            record = {**new.record, "attempt": server.attempt}
            for i, why in record.get("dropped", {}).items():
                note_event(server.folder, "dropped", f"client {i}", f"round {t + 1}: {why}")
            if server.courier.late > late:
                record["late"] = server.courier.late - late
            if remote.entries_left_out:
                record["entries_left_out"] = dict(sorted(remote.entries_left_out.items()))
            due = (t + 1) % plan.run.eval_every == 0 or t + 1 == plan.run.rounds
            if rules.evaluate == "nodes" and "client_tests" in record:
                record |= describe_pooled(record)
                record["tested"] = record["client_tests"]["id"]
            return replace(new, record={**record, "evaluated": rules.evaluate} if due else record)
        except TooFewRepliesError as error:
            if time.monotonic() > until:
                words = f"round {t + 1} did not count within {rules.patience:g} s: {error}"
                raise UserError(f"{words}; check the nodes, then resume with `fedptr resume {server.folder}`") from None
            print_notice(f"round {t + 1} does not count and is repeated: {error}")
            note_event(server.folder, "repeated", f"round {t + 1}", str(error))
            time.sleep(min(5.0, rules.poll * 10))


def describe_pooled(record: Record) -> Record:
    """The scores over all nodes' test data together.

    Nodes without classes send their losses alone. Numbers are standardised with the deviation of all training labels,
    so 1 − loss is R² relative to that.
    """
    if "client_accuracy" not in record:
        return {"test_loss": record["client_loss"], "test_r2": 1 - record["client_loss"]}
    return {f"test_{name}": record[f"client_{name}"] for name in ("accuracy", "loss")}


def make_oldest_round(store: CheckpointStore, plan: Plan) -> Callable[[int], int]:
    """A function: client -> the round of its state in the oldest checkpoint; 0 = the run may start again."""

    def oldest(i: int) -> int:
        if not plan.run.checkpoint_every:
            return 1 << 62
        if len(store.indices) < 2:
            return 0
        index = store.indices[min(store.indices)]
        return int(index[i]) if i < len(index) else 0

    return oldest


def make_split(roster: Roster) -> Split:
    """The clients' numbers of samples in the form of a split; only the nodes know which samples they are."""
    sizes = roster.sizes()
    rows = torch.arange(sum(sizes)).split(sizes)
    return Split(tuple(part.numpy() for part in rows), sum(sizes), origin="the nodes' own data")
