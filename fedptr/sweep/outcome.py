"""What came out of a sweep: every setting's scores over the seeds, the best one, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedptr.core.early_stopping import has_enough_rounds
from fedptr.jobs.run_queue import QueueState, name_run_folder
from fedptr.runs.plan import Plan
from fedptr.runs.rounds_file import Record
from fedptr.runs.same_run import lineage
from fedptr.runs.summary import cut_to_plan
from fedptr.settings import is_in_range
from fedptr.stats import Interval, compute_gap, compute_interval
from fedptr.sweep.axes import Range, Values, class_of
from fedptr.sweep.score import name_score, read_score
from fedptr.sweep.space import Settings, Space

NEAR = 0.05  # of a range, from its end


@dataclass(frozen=True)
class Trial:
    """One setting of a method: a run for each seed. Those that differ only in their number of rounds share a folder."""

    space: Space
    settings: Settings
    plans: list[Plan]
    folders: list[Path]

    @property
    def name(self) -> str:
        """The method and what is varied, in words."""
        told = ", ".join(f"{place} = {format_setting(value)}" for place, value in self.settings.items())
        return f"{self.plans[0].method.name}{f', {told}' if told else ''}"


def make_trial(space: Space, settings: Settings, first_seed: int, seeds: int, out: Path) -> Trial:
    plans = [space.plan_at(settings, first_seed + k) for k in range(seeds)]
    return Trial(space, settings, plans, [name_run_folder(plan, out, lineage(plan)) for plan in plans])


def format_setting(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


@dataclass
class TrialResult:
    trial: Trial
    personal: bool
    runs: dict[int, tuple[Record, list[Record]]] = field(default_factory=dict)  # by seed
    failures: dict[int, str] = field(default_factory=dict)

    @property
    def scores(self) -> dict[int, float]:
        return {seed: read_score(summary, self.personal) for seed, (summary, _) in sorted(self.runs.items())}

    @property
    def score(self) -> Interval:
        return compute_interval(list(self.scores.values()))

    @property
    def state(self) -> str:
        """`failed` and `diverged` if one of the seeds did."""
        if self.failures or any(math.isnan(score) for score in self.scores.values()):
            return "failed"
        if any("diverged" in summary for summary, _ in self.runs.values()):
            return "diverged"
        return "finished" if len(self.runs) == len(self.trial.plans) else "unfinished"

    @property
    def seconds(self) -> float:
        return sum(float(summary["seconds"]) for summary, _ in self.runs.values())


@dataclass(frozen=True)
class Outcome:
    """The results, best first; what failed or diverged comes last and never wins."""

    results: list[TrialResult]
    seeds: int
    personal: bool

    @property
    def score_name(self) -> str:
        summary = next((summary for result in self.results for summary, _ in result.runs.values()), {})
        return name_score(summary, self.personal)

    @property
    def finished(self) -> list[TrialResult]:
        return [result for result in self.results if result.state == "finished"]

    @property
    def best(self) -> TrialResult | None:
        return next(iter(self.finished), None)

    def gap_to_best(self, result: TrialResult) -> Interval:
        """How much better the best is, seed by seed: the runs of a seed share all that is not varied."""
        return compute_gap(self.best.scores, result.scores) if self.best else compute_interval([])

    def is_within_noise(self, result: TrialResult) -> bool:
        """Whether the seeds cannot tell it from the best."""
        gap = self.gap_to_best(result)
        return gap.n > 1 and not gap.excludes_zero

    def note(self, result: TrialResult) -> str:
        if result.state != "finished":
            return result.state
        return "best" if result is self.best else "within noise" if self.is_within_noise(result) else ""

    @property
    def places(self) -> list[str]:
        """All settings that are varied, whatever the method."""
        return list(dict.fromkeys(place for result in self.results for place in result.trial.space.axes))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(result.trial.plans[0].method.name for result in self.results))

    def best_of(self, method: str) -> TrialResult | None:
        return next((result for result in self.finished if result.trial.plans[0].method.name == method), None)


def collect_results(trials: Sequence[Trial], board: QueueState, seeds: int) -> Outcome:
    personal = any(trial.plans[0].personalised for trial in trials)
    results = []
    for trial in trials:
        result = TrialResult(trial, personal)
        for plan, folder in zip(trial.plans, trial.folders, strict=True):
            if folder in board.runs and has_enough_rounds(board.runs[folder][0], plan.run.rounds):
                result.runs[plan.run.seed] = cut_to_plan(plan, *board.runs[folder])
            elif folder in board.failed:
                result.failures[plan.run.seed] = board.failed[folder]
        results.append(result)
    order = {"finished": 0, "unfinished": 1, "diverged": 2, "failed": 3}
    return Outcome(sorted(results, key=lambda r: (order[r.state], -r.score.mean if r.runs else 0.0)), seeds, personal)


def describe_best(outcome: Outcome) -> list[str]:
    """Which setting is best, how sure that is, and where to look further: one sentence a line."""
    best = outcome.best
    if best is None:
        return ["no setting finished with every seed, so there is no best one"]
    summary = next(iter(best.runs.values()))[0]
    tested = f"on {summary['test_images']:,} held-out training samples"
    over = f", mean of {outcome.seeds} seeds ± 95 % interval" if outcome.seeds > 1 else ""
    lines = [f"best: {best.trial.name}: {best.score} % {tested}{over}"]
    others = outcome.finished[1:]
    if others:
        second, gap = others[0], outcome.gap_to_best(others[0])
        if gap.n < 2:
            sure = f"{gap.mean:.2f} points behind; one seed does not tell the noise, so repeat with --seeds 3"
        elif outcome.is_within_noise(second):
            more = sum(map(outcome.is_within_noise, others))
            sure = f"{gap} points behind, which is within noise{f', as are {more - 1} more' if more > 1 else ''}"
        else:
            sure = f"{gap} points behind, which is more than noise"
        lines.append(f"runner-up: {second.trial.name}: {sure}")
    return lines + find_edges(best.trial)


def find_edges(trial: Trial) -> list[str]:
    """The numbers of a setting that are at the edge of what was tried, where one can go further."""
    lines = []
    for place, axis in trial.space.axes.items():
        value = trial.settings[place]
        side = 0 if isinstance(value, bool) or not isinstance(value, (int, float)) else find_side(axis, value)
        if side and not is_at_bound(place, trial.space.method, value, side):
            size, further = ("largest", "larger") if side > 0 else ("smallest", "smaller")
            where = f"is near the {size} end" if isinstance(axis, Range) else f"is the {size} value"
            lines.append(f"edge: {place} = {format_setting(value)} {where} that was tried: try {further}")
    return lines


def find_side(axis: Values | Range, value: float) -> int:
    """1 at the upper edge, -1 at the lower, 0 within."""
    if isinstance(axis, Range):
        at = axis.position(value)
        return 1 if at > 1 - NEAR else -1 if at < NEAR else 0
    numbers = [v for v in axis.values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) < 2:
        return 0
    return 1 if value == max(numbers) else -1 if value == min(numbers) else 0


def is_at_bound(place: str, method: str, value: float, side: int) -> bool:
    """Whether the setting takes nothing beyond this value."""
    section, key = place.split(".")
    bounds: Mapping[str, float] = next(
        (spec.metadata.get("bounds", {}) for spec in fields(class_of(section, method)) if spec.name == key), {}
    )
    return not is_in_range(value + side * max(abs(value) * 1e-9, 1e-12), bounds)
