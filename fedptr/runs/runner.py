"""Runs a plan in its folder, and continues where a run was stopped.

plan.toml            the complete plan; `fedptr run DIR/plan.toml` repeats the run exactly
split.json           which sample belongs to which client
rounds.jsonl         one line a round
auxiliary/           now and then a picture of the auxiliary images, for methods that have any; the sets if asked for
privacy.json         with differential privacy, how many models were released; see fedptr.privacy.ledger
checkpoint/          the last two checkpoints; one when the run is finished; while it runs, also clients' states that
                     memory has no room for
unfinished/          while a round is computed, the state of long work in it; see fedptr.core.long_work
audit/               what `fedptr audit` found, and the shadow models it trained
summary.json         the result, its cost, and what it was made with
failure.txt          why the run failed, if it did; a resume removes it
class_scores.json    the final global model's accuracy on every class, and what it confuses
weights.safetensors  the final global model, by parameter name
model.json           what is needed to use it: network, preprocessing, class names; see fedptr.core.predictor
best.safetensors     the global model of the most accurate round, where it was asked for
tensorboard/, mlflow/, wandb/  where these were asked for; mlflow_run.txt, wandb_run.txt: their number of the run
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedptr.atomic_files import DamagedFileError, Header, write_text
from fedptr.compute import memory_estimate
from fedptr.compute.available_memory import available_bytes
from fedptr.compute.side_by_side import open_visits
from fedptr.core.client_states import StateStore
from fedptr.core.early_stopping import STOPPED, has_ended, has_enough_rounds, why_stopped
from fedptr.core.federation import Run, federate
from fedptr.core.predictor import WEIGHTS
from fedptr.core.task import Classification, ModelTask
from fedptr.core.visit import VisitCohort
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.runs import auxiliary_pictures, auxiliary_sets, class_scores, extend, trackers
from fedptr.runs import summary as summaries
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.runs.class_scores import write_class_scores
from fedptr.runs.computing import Computing
from fedptr.runs.divergence import find_divergence, print_divergence
from fedptr.runs.experiment import Experiment, prepare_experiment
from fedptr.runs.final_weights import save_weights
from fedptr.runs.folder import CHECKPOINTS, FAILURE
from fedptr.runs.lock import StoppedError, StopRequest, advise_resume, defer_signals, locked
from fedptr.runs.mend_split import mend_split
from fedptr.runs.plan import Plan, load_plan
from fedptr.runs.private_releases import Save, protect_releases
from fedptr.runs.rounds_file import Record, RoundsFile
from fedptr.runs.same_run import check_same_plan, identity_text
from fedptr.runs.trained_model import describe_best, describe_model, keep_best, mend_best
from fedptr.runs.unfinished_work import UnfinishedWork

Show = Callable[[Record], None]
# How a run's cohorts visit.
Engine = Callable[[Plan, Experiment], contextlib.AbstractContextManager[VisitCohort]]


def in_process(plan: Plan, experiment: Experiment) -> contextlib.AbstractContextManager[VisitCohort]:
    """The engine that needs nothing: clients visit in this process."""
    return open_visits(experiment.at_once)


def start_run(
    plan: Plan, experiment: Experiment, out: Path, show: Show, engine: Engine = in_process
) -> tuple[Record, list[Record]]:
    """Trains into an empty folder; returns the summary and every round's record. `show` gets them as they come."""
    with locked(out):
        write_text(out / "plan.toml", plan.toml())
        experiment.split.save(out / "split.json")
        with contextlib.closing(make_state_store(plan, experiment, out)) as state_store:
            computing = Computing(out, experiment.task)
            return run_rounds(plan, experiment, out, show, state_store, None, RoundsFile(out), engine, computing)


def read_if_finished(out: Path, rounds: int) -> tuple[Record, list[Record]] | None:
    """The summary and the rounds of a run that is finished with this many rounds, or that stopped before."""
    with contextlib.suppress(DamagedFileError):
        done = summaries.read_finished(out)
        return done if done[0]["rounds"] <= rounds and has_enough_rounds(done[0], rounds) else None
    return None


def resume_run(
    plan: Plan,
    out: Path,
    show: Show,
    engine: Engine = in_process,
    rounds: int | None = None,
    recompute: bool = False,
) -> tuple[Record, list[Record]]:
    """Goes on after the newest sound checkpoint, as if the run had never been stopped.

    `rounds`: to this end instead of the plan's, as if that had been asked for from the start. `recompute`: even if it
    is computed another way than it was, which the summary then tells.
    """
    rounds = plan.run.rounds if rounds is None else rounds
    with locked(out):
        extend.check_extension(out, plan, rounds)
        own = out / "split.json"  # not there yet where a queue starts a run
        kept = replace(plan, split=replace(plan.split, file=str(own))) if plan.split.file and own.exists() else plan
        with note_failure(out):
            experiment = prepare_experiment(kept)
        with contextlib.closing(make_state_store(plan, experiment, out)) as state_store:
            same, device = checkpoint_header(plan, experiment), experiment.task.device
            computing = Computing(out, experiment.task, accept_changes=recompute)
            start, history = load_newest_checkpoint(out, plan, same, device, state_store, computing)
            every = plan.run.checkpoint_every
            if start is None and every and extend.would_lose_progress(out, every):
                raise UserError(
                    f"the checkpoints of {out} are gone; start it again with `fedptr run` and another --out"
                )
            mend_split(out, experiment)
            if rounds != plan.run.rounds:
                plan = extend.extend_run(plan, rounds, experiment, out, load_plan(out))
            if start is not None:
                print_notice(f"{out}: resuming after round {start.round} of {plan.run.rounds}")
                if history and plan.output.best:
                    mend_best(out, start, history.records, experiment.task)
            history = history or RoundsFile(out)
            return run_rounds(plan, experiment, out, show, state_store, start, history, engine, computing)


def make_state_store(plan: Plan, experiment: Experiment, out: Path) -> StateStore:
    """Where the clients' states are kept during the run."""
    return StateStore(
        memory_estimate.client_state_budget(plan.machine, available_bytes(experiment.task.device)), out / CHECKPOINTS
    )


def run_rounds(
    plan: Plan,
    experiment: Experiment,
    out: Path,
    show: Show,
    state_store: StateStore,
    start: Run | None,
    history: RoundsFile,
    engine: Engine,
    computing: Computing,
) -> tuple[Record, list[Record]]:
    """The loop around `federate`: record, checkpoint, and stop when asked to."""
    e, p, total = experiment, plan, plan.run.rounds
    store, same = CheckpointStore(out / CHECKPOINTS, state_store), checkpoint_header(plan, experiment)
    bench = UnfinishedWork(out.absolute(), same) if plan.run.checkpoint_every else None
    with (
        note_failure(out),
        contextlib.closing(history),
        trackers.track_rounds(out, history.records) as track,
        engine(plan, experiment) as visits,
        defer_signals(advise_resume(out)) as stop,
    ):
        privacy, save = protect_releases(plan, out, start, store, history, lambda: {**same, **computing.header()})

        def look(run: Run) -> None:
            show(run.record)
            track(run.record)
            ended, pictures = has_ended(run, plan.run), plan.output.pictures
            if auxiliary_pictures.is_picture_due(pictures, run.round, total) or (ended and pictures):
                auxiliary_pictures.save_picture(run, experiment.dataset, out / auxiliary_pictures.FOLDER)
            auxiliary_sets.keep_sets(run, out, plan.output.sets, run.round if ended else total)

        asked = (e.test, p.run, p.local, p.faults, start, state_store, visits, privacy, e.client_tests, bench)
        runs = computing.checked(federate(p.method, e.task, e.clients, *asked))
        run = record_rounds(plan, out, runs, start, store, history, look, save, stop, bench)
    changed = {"recomputed": computing.changes} if computing.changes else {}
    return finish_run(plan, experiment, out, run, store, history, **changed), history.records


@contextlib.contextmanager
def note_failure(out: Path) -> Iterator[None]:
    """Writes down why a run fails, for `fedptr status`; to be stopped is not to fail."""
    (out / FAILURE).unlink(missing_ok=True)
    try:
        yield
    except StoppedError:
        raise
    except Exception as error:
        with contextlib.suppress(OSError):  # a full disk must not hide what it did to the run
            write_text(out / FAILURE, " ".join(str(error).split()) + "\n")
        raise


def record_rounds(
    plan: Plan,
    out: Path,
    runs: Iterable[Run],
    start: Run | None,
    store: CheckpointStore,
    history: RoundsFile,
    look: Callable[[Run], None],
    save: Save,
    stop: StopRequest | None = None,
    bench: UnfinishedWork | None = None,
) -> Run:
    """Records every round, lets `look` see it, and saves a checkpoint; returns the last."""
    if start is not None:
        store.adopt(start)
    summaries.reset_peak_memory()
    run, every = start, plan.run.checkpoint_every
    for run in runs:
        history.append(run.record)
        if plan.output.best and isinstance(run.task, ModelTask):
            keep_best(run, history.records, run.task, out)
        look(run)  # before the checkpoint: a resume starts after the round, and does not look at it again
        asked, ended = stop.number if stop else 0, has_ended(run, plan.run)
        if every and (run.round % every == 0 or ended or asked):
            save(run)
            if bench:
                bench.clear()
            asked = stop.number if stop else 0  # perhaps only while this was written
        if asked and not ended:
            raise StoppedError(out, run.round, asked)
    assert run is not None
    if bench:  # a kill may have come after the last checkpoint
        bench.clear()
    return run


def finish_run(
    plan: Plan, experiment: Experiment, out: Path, run: Run, store: CheckpointStore, history: RoundsFile, **more: Any
) -> Record:
    """The weights and the summary, with `more` in it; of the checkpoints the last remains."""
    save_weights(run, experiment.task, out / WEIGHTS)
    if len(experiment.test) and isinstance(experiment.task, Classification):
        names = tuple(map(str, experiment.dataset.classes))
        write_class_scores(out / class_scores.NAME, experiment.task, names, run, experiment.test)
    describe_model(plan, experiment.dataset, run.round).save(out)
    best = describe_best(out) if plan.output.best else {}
    summary = summaries.summarise_run(plan, experiment, run, history) | best | more
    if reason := why_stopped(run, plan.run):
        summary[STOPPED] = {"round": run.round, "reason": reason}
    if reason := find_divergence(experiment.task, experiment.test, history.records):
        summary["diverged"] = reason
    summaries.write_summary(out, summary)
    store.prune(1)
    summaries.print_advice(plan.method, summary)
    print_divergence(summary)
    return summary


def checkpoint_header(plan: Plan, experiment: Experiment) -> Header:
    """What must not have changed when a run is resumed: the plan, the split, and the data."""
    return {"plan": identity_text(plan), "split": experiment.split.sha256, **experiment.digests}


def load_newest_checkpoint(
    out: Path,
    plan: Plan,
    same: Header,
    device: str,
    state_store: StateStore | None = None,
    computing: Computing | None = None,
) -> tuple[Run | None, RoundsFile | None]:
    """The newest sound checkpoint with the rounds that led to it; what was passed over is said, and left alone."""
    store, problems = CheckpointStore(out / CHECKPOINTS, state_store), []
    for round_ in store.rounds():
        try:
            run, header = store.load(round_, device)
            check_same_plan(out, plan, header)
            for what in [name for name in same if name != "plan"]:
                if header.get(what, same[what]) != same[what]:
                    words = "changed since the run was started; undo that, or start another run"
                    raise UserError(f"the {what.removeprefix('all ')} of {out} {words}")
            if computing:
                computing.resume_from(header)
            history = RoundsFile(out, header)
        except DamagedFileError as error:
            problems.append(f"round {round_}: {error}")
            continue
        if problems:
            print_notice(
                f"{out}: using the checkpoint of round {round_}, as a newer one is damaged ({'; '.join(problems)})"
            )
        if "computed" not in header and header.get("torch", torch.__version__) != torch.__version__:
            print_notice(
                f"{out} was started with torch {header['torch']}; bit for bit is promised for one version only"
            )
        return run, history
    if problems:
        raise UserError(f"{out} has no sound checkpoint ({'; '.join(problems)}); nothing was deleted; start it again")
    return None, None
