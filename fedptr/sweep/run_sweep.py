"""Runs a sweep on the queue, and writes what came out of it.

Every run has a folder of its own, which is named by what it computes. So a sweep that was stopped continues, and one
with more values, seeds or rounds takes over what is finished.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedptr.atomic_files import write_text
from fedptr.errors import UserError
from fedptr.jobs.run_queue import SAME_COMMAND, QueueState, find_finished_runs, longest_plans, run_plans
from fedptr.messages import count_noun
from fedptr.regular_files import read_text
from fedptr.runs.folder import FAILURE
from fedptr.runs.lock import StoppedError, locked
from fedptr.runs.plan import Plan
from fedptr.runs.rounds_file import to_json_values
from fedptr.runs.runner import Engine, in_process
from fedptr.sweep import tables
from fedptr.sweep.figure import plot_scores
from fedptr.sweep.outcome import Outcome, Trial, collect_results, make_trial
from fedptr.sweep.space import Settings, Space

NAME = "sweep.json"


@dataclass(frozen=True)
class Sweep:
    """What is asked for. `random` and `optuna`: how many settings of a method are tried; 0 = all of the grid."""

    spaces: Sequence[Space]
    first_seed: int
    seeds: int
    random: int = 0
    optuna: int = 0
    draw_seed: int = 0

    def list_trials(self, out: Path) -> list[Trial]:
        """All that is known before the first run; with Optuna, only settings that need no search."""
        return [trial for space in self.spaces for trial in self.make_trials(space, self.list_settings(space), out)]

    def list_settings(self, space: Space) -> list[Settings]:
        if self.optuna and space.axes:
            return []
        return space.draw(self.random, self.draw_seed) if self.random and space.axes else space.grid()

    def make_trials(self, space: Space, settings: Sequence[Settings], out: Path) -> list[Trial]:
        return [make_trial(space, one, self.first_seed, self.seeds, out) for one in settings]

    def to_json(self) -> dict[str, Any]:
        return {
            "methods": [space.method for space in self.spaces],
            "varied": {space.method: {place: axis.describe() for place, axis in space.axes.items()}
                       for space in self.spaces},
            "first_seed": self.first_seed,
            "seeds": self.seeds,
            "random": self.random,
            "optuna": self.optuna,
            "draw_seed": self.draw_seed,
            "plans": {space.method: space.tables for space in self.spaces},
        }  # fmt: skip


Show = Callable[[Sequence[Trial]], AbstractContextManager[Callable[[QueueState], None]]]


@dataclass
class SweepRunner:
    """Runs trials of a sweep; what failed is remembered."""

    sweep: Sweep
    out: Path
    jobs: int
    show: Show
    engine: Engine = in_process
    recompute: bool = False

    def __post_init__(self) -> None:
        self.trials: list[Trial] = []
        self.failed: dict[Path, str] = {}  # why, by run folder

    def note(self, trials: Sequence[Trial]) -> None:
        """Remembers trials for the table; those of the same runs and rounds count once."""
        for trial in trials:
            if not any(trial.folders == known.folders and trial.plans == known.plans for known in self.trials):
                self.trials.append(trial)

    def run(self, trials: Sequence[Trial]) -> None:
        """Runs what is not finished; raises StoppedError if asked to stop."""
        self.note(trials)
        with self.show(self.trials) as show:
            board = run_plans(self.plans(trials), self.jobs, show, engine=self.engine, recompute=self.recompute)
        self.failed |= board.failed
        if board.stopped:
            plans = self.plans(self.trials)
            done = len(find_finished_runs(plans).done)
            words = f"stopped with {done} of {len(plans)} runs finished; {SAME_COMMAND}"
            raise StoppedError(self.out, 0, board.stopped, words)

    def plans(self, trials: Sequence[Trial]) -> dict[Path, Plan]:
        """Seed by seed, so that every setting has a score early."""
        seeds = range(self.sweep.seeds)
        return longest_plans((trial.folders[k], trial.plans[k]) for k in seeds for trial in trials)

    def collect(self, trials: Sequence[Trial]) -> Outcome:
        plans = self.plans(trials)
        board = find_finished_runs(plans)
        board.failed = {folder: self.failed.get(folder) or read_failure(folder) for folder in plans}
        board.failed = {folder: words for folder, words in board.failed.items() if words and folder not in board.done}
        return collect_results(trials, board, self.sweep.seeds)


def read_failure(folder: Path) -> str:
    """Why a run failed, if it did."""
    try:
        return read_text(folder / FAILURE).strip()
    except OSError:
        return ""


def run_sweep(runner: SweepRunner) -> Outcome:
    """Runs every setting with every seed."""
    sweep, out = runner.sweep, runner.out
    with locked(out):
        write_asked(sweep, out)
        first = sweep.list_trials(out)
        if first:
            runner.run(first)
        if sweep.optuna:
            from fedptr.sweep.optuna_search import search_space

            for space in sweep.spaces:
                if space.axes:
                    search_space(space, runner)
        return runner.collect(runner.trials)


def claim_sweep_folder(out: Path) -> None:
    """A folder that is new, empty, or a sweep's already."""
    try:
        if out.is_dir() and any(out.iterdir()) and not (out / NAME).is_file():
            raise UserError(f"{out} holds something that is not a sweep; choose another --out")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be used for results ({error.strerror or error}); choose another --out") from None


def write_asked(sweep: Sweep, out: Path) -> None:
    """So that the folder is known as a sweep's from its first moment; results of before stay until there are others."""
    if not (out / NAME).exists():
        write_text(out / NAME, json.dumps(to_json_values({"asked": sweep.to_json()}), indent=1) + "\n")


def write_outcome(outcome: Outcome, sweep: Sweep, conditions: str, out: Path) -> None:
    """Writes the table, the figure, sweep.json, and the best setting's plan, ready to run."""
    title = title_of(outcome, conditions)
    write_text(out / "table.md", tables.format_markdown(outcome, title))
    write_text(out / "table.csv", tables.format_csv(outcome, out))
    for old in out.glob("best*.toml"):
        old.unlink()
    if outcome.best:
        write_text(out / "best.toml", format_best(outcome, outcome.best.trial, out / "best.toml"))
        for name in outcome.methods if len(outcome.methods) > 1 else []:
            if own := outcome.best_of(name):
                path = out / f"best-{name}.toml"
                write_text(path, format_best(outcome, own.trial, path))
    plot_scores(outcome, title, out / "scores")
    write_text(out / NAME, json.dumps(to_json_values(tables.to_json(outcome, sweep.to_json(), out)), indent=1) + "\n")


def title_of(outcome: Outcome, conditions: str) -> str:
    return f"{conditions}: {count_noun(len(outcome.results), 'setting')}, {count_noun(outcome.seeds, 'seed')}"


def format_best(outcome: Outcome, trial: Trial, path: Path) -> str:
    """The complete plan of a setting, to be trained on all training samples and tested on the test set."""
    plan = trial.plans[0]
    whole = replace(plan, data=replace(plan.data, validation=0.0))
    about = f"# {trial.name}: the best of {count_noun(len(outcome.results), 'setting')} on held-out training samples."
    if len(outcome.methods) > 1 and path.stem != "best":
        about = f"# {trial.name}: the best setting of this method on held-out training samples."
    return f"{about}\n# `fedptr run {path}` trains it on all of them, and tests it on the test set.\n\n{whole.toml()}"
