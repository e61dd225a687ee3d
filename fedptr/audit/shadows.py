"""Shadow models: the same training on other members, as runs that survive any kill.

A shadow is trained on the background (the training images that are not audited) and on a random half of the audited
examples, members and non-members alike. It is a run of the target's own plan: the same method, clients, rounds and
local training. What differs is the seed, that clients are given the pool's images, and which of them (a split file).

Numbered details:
1. Shadows come in pairs: the second has the other half. So every example is IN for exactly half of the shadows, for any
   even number of them, and more shadows can be added without training the first ones again.
2. The background is the target's: the attacker is taken to know all other training images.
3. `centralised` shadows train one client with everybody's data by plain SGD (FedAvg of one client). They do not know
   the target's method, so they are cheaper for methods that cost more than FedAvg, and a weaker stand-in for all.
4. A shadow's accuracy is not reported: half of its test images may have been among its training images.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedptr.atomic_files import DamagedFileError
from fedptr.audit.examples import Examples
from fedptr.audit.roc import Flags
from fedptr.core.faults import Faults
from fedptr.core.randomness import Key
from fedptr.data.partition import SplitPlan
from fedptr.data.split import Split
from fedptr.engines.choose_engine import open_engine
from fedptr.errors import ClientError, UserError
from fedptr.jobs.run_queue import QueueState, put_aside, run_plans
from fedptr.messages import format_duration, print_notice
from fedptr.methods.fedavg import FedAvg
from fedptr.privacy.differential import Privacy
from fedptr.runs.lock import StoppedError
from fedptr.runs.plan import OutputPlan, Plan
from fedptr.runs.same_run import fingerprint
from fedptr.runs.summary import read_finished

Trainer = Literal["federated", "centralised"]
SPLIT = "split.json"


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """A run on a part of the examples."""

    plan: Plan
    split: Split


def draw_halves(n: int, shadows: int, seed: int) -> Flags:
    """[shadow, example], whether it is inside: a random half for every even shadow, the other half for the next.

    >>> inside = draw_halves(10, 4, seed=0)
    >>> inside.sum(axis=0).tolist() == [2] * 10, bool((inside[0] == ~inside[1]).all()), inside.sum(axis=1).tolist()
    (True, True, [5, 5, 5, 5])
    """
    inside = np.zeros((shadows, n), dtype=bool)
    for j in range(0, shadows, 2):
        inside[j, make_generator(seed, "shadow", j).permutation(n)[: n // 2]] = True
        inside[j + 1] = ~inside[j]
    return inside


def make_generator(seed: int, *place: int | str) -> np.random.Generator:
    return np.random.default_rng(Key(seed).at("audit", *place).number("numpy"))


def make_job(plan: Plan, examples: Examples, inside: Flags, seed: int, trainer: Trainer = "federated") -> TrainingJob:
    """The target's training, from another seed, on the background and the examples inside."""
    split = examples.split(inside, 1 if trainer == "centralised" else plan.split.clients, f"{trainer} audit")
    plan = replace(
        plan,
        run=replace(plan.run, seed=seed, eval_every=plan.run.rounds),
        data=replace(plan.data, pool="all"),
        split=replace(plan.split, file=SPLIT, test="auto"),  # the run folder's own, which has no test sets
        machine=replace(plan.machine, engine="local", ray_address="", workers=0),
        output=OutputPlan(pictures=0),
    )
    if trainer == "centralised":
        one = SplitPlan(clients=1, file=SPLIT)
        everyone = replace(plan.run, participation=1.0)
        plan = replace(plan, run=everyone, split=one, faults=Faults(), privacy=Privacy(), method=FedAvg())
    return TrainingJob(plan, split)


def plan_shadows(
    plan: Plan, data: str, examples: Examples, inside: Flags, seed: int, trainer: Trainer, folder: Path
) -> dict[Path, TrainingJob]:
    """Where each shadow is, in order. The name tells what decides them, so others of the same plan can share them.

    `data`: a digest of the pool, which the plan only names.
    """
    found = {}
    for j, own in enumerate(inside):
        made = make_job(plan, examples, own, Key(seed).at("audit", "shadow", j).number("seed") % 2**31, trainer)
        told = f"{fingerprint(made.plan)} {examples.sha256} {data} {seed}"
        name = f"{trainer}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
        found[folder / name / f"shadow{j:03}"] = made
    return found


def train_jobs(jobs: dict[Path, TrainingJob], number: int, what: str) -> QueueState:
    """Runs what is not finished, `number` at a time; resumes what was stopped."""
    for folder, one in jobs.items():
        prepare_folder(folder, one)
    plans = {folder: one.plan for folder, one in jobs.items()}
    board = run_plans(plans, number, announce_finished(what), keep=False, engine=open_engine)
    for path, words in board.failed.items():
        raise ClientError(f"{path} failed: {words}")
    if board.stopped:
        words = f"stopped with {len(board.done)} of {len(jobs)} {what}s finished; run the same command to continue"
        raise StoppedError(next(iter(jobs)), 0, board.stopped, words)
    for path, (summary, _) in board.done.items():
        if summary["split_sha256"] != jobs[path].split.sha256:
            raise UserError(f"{path} was trained on other examples than are asked for; remove it and audit again")
    return board


def prepare_folder(folder: Path, one: TrainingJob) -> None:
    """Makes a folder to train in, with its split."""
    try:
        with contextlib.suppress(DamagedFileError):
            read_finished(folder)
            return
        put_aside(folder, one.plan)
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(UserError):
            if Split.load(folder / SPLIT).sha256 == one.split.sha256:
                return
        one.split.save(folder / SPLIT)
    except OSError as error:
        raise UserError(f"{folder} cannot be made or written ({error.strerror}); choose another place") from None


def announce_finished(what: str) -> Callable[[QueueState], None]:
    """Prints a line for every run that finishes."""
    known = 0

    def show(board: QueueState) -> None:
        nonlocal known
        if len(board.done) > known and board.left is not None:  # None = all of them were there already
            left = f", about {format_duration(board.left)} left" if board.left else ""
            print_notice(f"{what} {len(board.done)} of {len(board.plans)} is trained{left}")
        known = len(board.done)

    return show
