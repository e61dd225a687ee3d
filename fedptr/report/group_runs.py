"""Which runs belong together: one group has one experimental condition, one series one method with its settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedptr.methods import all_methods
from fedptr.report.condition_words import describe_training, find_unusual, find_usual, write_heading
from fedptr.report.find_runs import FoundRun
from fedptr.runs.plan import Plan
from fedptr.runs.same_run import METHOD, Settings, identity, shared_by_seeds


@dataclass(frozen=True, eq=False)
class Series:
    """Runs that differ in their seeds alone; an unfinished run is a series of its own."""

    label: str
    method: str
    key: str  # the same for the same method and settings in every group
    runs: list[FoundRun]
    repeats: list[FoundRun]  # of a seed that `runs` has already; not counted

    @property
    def unfinished(self) -> bool:
        return self.runs[0].summary is None


@dataclass(frozen=True, eq=False)
class Group:
    title: str
    about: str  # how it was trained
    settings: Settings  # all that the runs have in common, whatever the method
    series: list[Series]

    @property
    def runs(self) -> list[FoundRun]:
        return [run for series in self.series for run in (*series.runs, *series.repeats)]


def group_runs(runs: Sequence[FoundRun]) -> list[Group]:
    """Groups in the order in which their first runs were found."""
    by_condition: dict[str, list[FoundRun]] = {}
    longer = {to_json(without_rounds(run.plan)): run.plan for run in reversed(runs) if not run.plan.method.one_shot}
    for run in runs:
        # A one-shot method stands beside those that have more rounds of the same.
        plan = longer.get(to_json(without_rounds(run.plan)), run.plan) if run.plan.method.one_shot else run.plan
        by_condition.setdefault(to_json(condition_settings(plan)), []).append(run)
    usual = find_usual_settings(runs)
    plans = [max((run.plan for run in members), key=lambda plan: plan.run.rounds) for members in by_condition.values()]
    conditions = list(map(condition_settings, plans))
    groups = []
    together = zip(by_condition.values(), plans, conditions, find_unusual(conditions), strict=True)
    for members, plan, settings, unusual in together:
        title, about = write_heading(plan, unusual), describe_training(plan)
        groups.append(Group(title, about, settings, make_series(members, usual)))
    return groups


def make_series(members: Sequence[FoundRun], usual: dict[str, Settings]) -> list[Series]:
    """A label names the settings in which a method's series differ here, and those that are unusual on the page."""
    found: dict[tuple[str, str], Series] = {}
    named = find_method_differences(members)
    for run in members:
        method, settings = run.plan.method.name, method_settings(run.plan)
        unusual = {name for name, value in settings.items() if to_json(value) != to_json(usual[method].get(name))}
        told = {name: settings[name] for name in sorted((named[method] | unusual) & set(settings))}
        label = f"{method} {describe_settings(told)}".strip()
        apart = ""
        if run.summary is None:
            apart = str(run.folder)
            label += f", seed {run.plan.run.seed} ({run.state})"
        key = method + to_json(settings)
        series = found.setdefault((key, apart), Series(label, method, key, [], []))
        known = {other.seeds for other in series.runs}
        (series.repeats if run.seeds in known else series.runs).append(run)
    return sorted(found.values(), key=sort_key)


def sort_key(series: Series) -> tuple[bool, int, list[Any]]:
    """Methods in the order of the paper, then unknown methods, then unfinished runs."""
    known = list(all_methods())
    place = known.index(series.method) if series.method in known else len(known)
    # H=5 before H=20
    natural = [(part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"(\d+)", series.label)]
    return series.unfinished, place, natural


def find_method_differences(runs: Iterable[FoundRun]) -> dict[str, set[str]]:
    """For each method, the settings in which its runs differ."""
    return {method: find_differing(settings) for method, settings in settings_by_method(runs).items()}


def find_usual_settings(runs: Iterable[FoundRun]) -> dict[str, Settings]:
    """For each method, the value that most of its runs have of each setting."""
    return {method: find_usual(settings) for method, settings in settings_by_method(runs).items()}


def settings_by_method(runs: Iterable[FoundRun]) -> dict[str, list[Settings]]:
    found: dict[str, list[Settings]] = {}
    for run in runs:
        found.setdefault(run.plan.method.name, []).append(method_settings(run.plan))
    return found


def find_differing(tables: Sequence[Settings]) -> set[str]:
    """The names whose values are not the same in all tables."""
    names = {name for table in tables for name in table}
    return {name for name in names if len({to_json(table.get(name)) for table in tables}) > 1}


def condition_settings(plan: Plan) -> Settings:
    of_method = ("method.", "privacy.")
    return {name: value for name, value in shared_by_seeds(plan).items() if not name.startswith(of_method)}


def without_rounds(plan: Plan) -> Settings:
    return {name: value for name, value in condition_settings(plan).items() if name != "run.rounds"}


def method_settings(plan: Plan) -> Settings:
    """A method with differential privacy or secure aggregation is a series of its own, beside the plain method."""
    told = {name: value for name, value in shared_by_seeds(plan).items() if name.startswith("method.")}
    if told[METHOD] == plan.method.name:  # only a plug-in is more than its name
        del told[METHOD]
    private = identity(plan) if plan.privacy.clip or plan.privacy.secure else {}
    return {
        **{name.removeprefix("method."): value for name, value in told.items()},
        **{name: value for name, value in private.items() if name.startswith("privacy.")},
    }


def describe_settings(settings: Settings) -> str:
    return ", ".join(f"{name}={show_value(value)}" for name, value in settings.items())


def show_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
