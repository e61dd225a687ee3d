"""Another number of rounds for a run that is there: what changes in its folder, so that it continues to the new end.

A run of N rounds is the beginning of a longer one: nothing that is computed in a round depends on how many there will
be, but for `local.schedule = "cosine"`, with which a run keeps its length. Only the plan does, and the checkpoints know
the plan they are of. So they are sealed again first, for the new plan and for the one before, and plan.toml is replaced
after that: a kill at any instant leaves a folder that `fedptr resume` continues with, to the old end or to the new one.
The summary and the weights stay as they are until the new ones come.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from fedptr import atomic_files
from fedptr.atomic_files import DamagedFileError, write_text
from fedptr.compute.choose import choose_backend
from fedptr.core.learning_rate import depends_on_rounds
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.runs.experiment import Experiment, make_task
from fedptr.runs.folder import CHECKPOINTS
from fedptr.runs.plan import Plan, with_rounds
from fedptr.runs.rounds_file import vouched_lines, whole_lines
from fedptr.runs.same_run import identity_text, known_names
from fedptr.runs.summary import NAME as SUMMARY
from fedptr.runs.summary import PLAN, read_once_finished


def check_extension(out: Path, plan: Plan, rounds: int) -> None:
    """Whether the run in this folder, of this plan, can get this many rounds; nothing is changed."""
    if rounds < 1:
        raise UserError(f"--rounds must be at least 1, not {rounds}")
    if rounds == plan.run.rounds:
        return
    if plan.method.one_shot:
        raise UserError(f"{out} keeps its one round: {plan.method.name} is one-shot, its clients are asked once")
    if depends_on_rounds(plan.local):
        words = (
            f"its learning rates follow a {plan.local.schedule} over {plan.run.rounds} rounds, so they would be others"
        )
        raise UserError(f"{out} keeps its {plan.run.rounds} rounds: {words}; start another run with --rounds {rounds}")
    done = len(whole_lines(out))
    if rounds < done or (rounds == done and rounds % plan.run.eval_every):  # its last round must be an evaluated one
        raise UserError(f"{out} has {done} rounds already; ask for more with --rounds, or leave it as it is")
    try:
        read_once_finished(out, plan)
    except DamagedFileError:
        return  # whether an unfinished run can be continued is for the resume to say
    if not can_be_continued(out):
        again = f"`fedptr run {out / PLAN} --rounds {rounds} --out …`"
        words = f"{out} has no sound checkpoint, so it cannot be continued"
        raise UserError(f"{words}; run its plan from the start with {again}")


def can_be_continued(out: Path) -> bool:
    """Whether there is a checkpoint that is sound and fits the rounds that are written down."""
    store = CheckpointStore(out / CHECKPOINTS)
    for round_ in store.rounds():
        with contextlib.suppress(DamagedFileError):
            vouched_lines(out, store.read_server(round_)[1])
            return True
    return False


def would_lose_progress(out: Path, every: int) -> bool:
    """Whether a run that started again in its folder would replace more than the rounds before its first checkpoint."""
    saved = CheckpointStore(out / CHECKPOINTS).rounds() or (out / SUMMARY).exists()
    return bool(saved) or 0 < every < len(whole_lines(out))


def extend_run(plan: Plan, rounds: int, experiment: Experiment, out: Path, written: Plan) -> Plan:
    """The plan with this many rounds, computed as the run was begun; in the folder, too, where `written` stands now.

    They differ where a run continues with another engine, which is not written down.
    """
    new = with_same_backend(with_rounds(plan, rounds), experiment, out)
    before, after = identity_text(plan), identity_text(new)
    names = known_names(out, plan)
    store = CheckpointStore(out / CHECKPOINTS)
    for round_ in store.rounds():
        try:
            tensors, header = store.read_server(round_)
        except DamagedFileError:
            continue
        if names.intersection((header.get("plan"), header.get("plan_before"))):
            atomic_files.write_tensors(store.server(round_), tensors, {**header, "plan": after, "plan_before": before})
    machine = replace(written.machine, compile=new.machine.compile)
    write_text(out / PLAN, replace(with_rounds(written, rounds), machine=machine).toml())
    return new


def with_same_backend(new: Plan, experiment: Experiment, out: Path) -> Plan:
    """`machine.compile = "auto"` looks at the whole work of a plan; a run must not change in the middle of it."""
    if new.machine.compile != "auto":
        return new
    data, began = experiment.dataset, experiment.task
    otherwise = choose_backend(new, make_task(new, data, began.device), len(data.train_y))
    if otherwise.how == began.how:
        return new
    print_notice(
        f"{out} continues as it was begun ({began.how}); a run of {new.run.rounds} rounds from the start would be "
        f"computed otherwise ({otherwise.how}), which rounds differently"
    )
    return replace(new, machine=replace(new.machine, compile="off" if began.how == "blocks" else "on"))
