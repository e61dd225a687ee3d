"""The audit of FedPTR's auxiliary sets: what would follow if one left its owner, which FedPTR never lets it do.

The run is repeated twice, keeping all sets over the rounds: with sets that start from own samples and with sets that
start from noise (on a server from noise only). The one that starts as the run's own did has the same weights, to the
last bit, which is checked. Then the questions of `fedptr.audit.set_questions` are asked after every kept round.
"""

from __future__ import annotations

import typing
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedptr.audit import closest_pairs
from fedptr.audit.neighbours import OwnedClass, find_start_samples, list_owned_classes
from fedptr.audit.roc import Flags
from fedptr.audit.set_questions import FOLDER, Result, ask_questions
from fedptr.audit.shadows import SPLIT, TrainingJob, make_generator, train_jobs
from fedptr.audit.target import Target
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.methods.ptr.trajectory import Trajectory
from fedptr.runs import auxiliary_sets
from fedptr.runs.plan import OutputPlan, Plan
from fedptr.types import State

KEPT = 5  # rounds, about, besides the first
LEAVES = "An auxiliary set never leaves its owner in FedPTR; these numbers say what would follow if it did."


def check_has_auxiliary_sets(plan: Plan) -> None:
    """Raises if the run has no auxiliary sets."""
    if not isinstance(plan.method, Trajectory) or not getattr(plan.method, "active", True):
        raise UserError(f"this run of {plan.method.name} has no auxiliary data; leave auxiliary out of --attack")


def possible_starts(plan: Plan) -> tuple[str, ...]:
    """How the method's sets can begin."""
    return typing.get_args(typing.get_type_hints(type(plan.method))["init"])


def audit_auxiliary_sets(run: Target, seed: int, place: Path, jobs: int) -> Result:
    every = -(-run.plan.run.rounds // KEPT)
    wanted = {place / FOLDER / init: repeat_run(run, init, every) for init in possible_starts(run.plan)}
    board = train_jobs(wanted, jobs, "auxiliary run")
    kept = {folder.name: auxiliary_sets.load_sets(folder) for folder in wanted}
    for folder in wanted:
        if not (kept[folder.name] and auxiliary_sets.load_starts(folder)):
            raise UserError(f"the auxiliary sets of {folder} are gone; remove {folder} and audit again")
    own = run.plan.method.init  # type: ignore[attr-defined]
    same = board.done[place / FOLDER / own][0]["weights_sha256"] == run.summary["weights_sha256"]
    if not same:
        print_notice(
            f"note: repeated here, the run has other weights than {run.folder}; the sets may differ a little too"
        )
    owners = sorted({owner for rounds in kept.values() for state in rounds.values() for owner in state})
    found = list_owned_classes(run, owners, make_generator(seed, FOLDER))
    if not found:
        raise UserError("no class that an owner has samples of is held out, so there is nothing to compare with")
    began = find_beginnings(run, found, auxiliary_sets.load_starts(place / FOLDER / "real"))
    return {
        "note": LEAVES,
        "owners": owners,
        "init": own,
        "repeats_the_run": same,
        "series": {
            init: [entry for t, state in rounds.items() if (entry := ask_questions(run, found, began, t, state, seed))]
            for init, rounds in kept.items()
        },
        "pairs": {
            init: closest_pairs.save_closest_pairs(run, found, rounds, place / f"pairs-{init}.png")
            for init, rounds in kept.items()
        },
    }


def repeat_run(run: Target, init: str, every: int) -> TrainingJob:
    """The run again, with sets that start from `init` and are saved every `every` rounds."""
    plan = replace(
        run.plan,
        method=replace(run.plan.method, init=init),  # type: ignore[call-arg]
        split=replace(run.plan.split, file=SPLIT),
        machine=replace(run.plan.machine, engine="local", ray_address="", workers=0),
        output=OutputPlan(pictures=0, sets=every),
    )
    return TrainingJob(plan, run.split)


def find_beginnings(run: Target, found: list[OwnedClass], first: dict[str, State]) -> list[Flags]:
    """For every owner and class, the samples that its real-initialised set began as copies of."""
    return [
        find_start_samples(run, group, first[group.owner])
        if group.owner in first
        else np.zeros(len(group.own), dtype=bool)
        for group in found
    ]
