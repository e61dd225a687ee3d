"""Which runs belong together: one group has one experimental condition, one series one method with its settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedptr.methods import all_methods
from fedptr.report.find_runs import Found
from fedptr.runs.compare import describe
from fedptr.runs.plan import Plan
from fedptr.runs.same_run import Settings, identity, shared_by_seeds

DESCRIBED = {"data.name", "data.subset", "split.kind", "split.clients", "run.participation", "run.rounds"}


@dataclass(frozen=True, eq=False)
class Series:
    """Runs that differ in their seeds alone; an unfinished run is a series of its own."""

    label: str
    method: str
    key: str  # the same for the same method and settings in every group
    runs: list[Found]
    repeats: list[Found]  # of a seed that is there already: they say nothing new

    @property
    def unfinished(self) -> bool:
        return self.runs[0].summary is None


@dataclass(frozen=True, eq=False)
class Group:
    title: str
    series: list[Series]

    @property
    def runs(self) -> list[Found]:
        return [run for series in self.series for run in (*series.runs, *series.repeats)]


def group(runs: Sequence[Found]) -> list[Group]:
    """In the order in which the runs were found."""
    by_condition: dict[str, list[Found]] = {}
    for run in runs:
        by_condition.setdefault(text_of(condition(run.plan)), []).append(run)
    differ = differing([condition(members[0].plan) for members in by_condition.values()]) - DESCRIBED
    named = method_differences(runs)
    groups = []
    for members in by_condition.values():
        plan = members[0].plan
        covered = {"split.alpha"} if "dirichlet" in plan.split.kind else set()
        extra = words({name: value for name, value in condition(plan).items() if name in differ - covered})
        groups.append(Group(describe(plan) + (f", {extra}" if extra else ""), series_of(members, named)))
    return groups


def series_of(members: Sequence[Found], named: dict[str, set[str]]) -> list[Series]:
    found: dict[tuple[str, str], Series] = {}
    for run in members:
        method, settings = run.plan.method.name, method_settings(run.plan)
        label = f"{method} {words({name: settings[name] for name in sorted(named[method] & set(settings))})}".strip()
        apart = ""
        if run.summary is None:
            apart = str(run.folder)
            label += f", seed {run.plan.run.seed} ({run.state})"
        key = method + text_of(settings)
        series = found.setdefault((key, apart), Series(label, method, key, [], []))
        known = {other.seeds for other in series.runs}
        (series.repeats if run.seeds in known else series.runs).append(run)
    return sorted(found.values(), key=order)


def order(series: Series) -> tuple[bool, int, list[Any]]:
    """As in the tables of papers; methods nobody knows here come last, and after all what is not finished."""
    known = list(all_methods())
    place = known.index(series.method) if series.method in known else len(known)
    # H=5 before H=20
    natural = [(part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"(\d+)", series.label)]
    return series.unfinished, place, natural


def method_differences(runs: Iterable[Found]) -> dict[str, set[str]]:
    """For each method, the settings in which its runs differ anywhere on the page."""
    plans: dict[str, list[Settings]] = {}
    for run in runs:
        plans.setdefault(run.plan.method.name, []).append(method_settings(run.plan))
    return {method: differing(settings) for method, settings in plans.items()}


def differing(tables: Sequence[Settings]) -> set[str]:
    """The names whose values are not the same in all tables."""
    names = {name for table in tables for name in table}
    return {name for name in names if len({text_of(table.get(name)) for table in tables}) > 1}


def condition(plan: Plan) -> Settings:
    of_method = ("method.", "privacy.")
    return {name: value for name, value in shared_by_seeds(plan).items() if not name.startswith(of_method)}


def method_settings(plan: Plan) -> Settings:
    """With the privacy it promises, where it does: what that costs is to be seen beside the method without."""
    told = {name: value for name, value in shared_by_seeds(plan).items() if name.startswith("method.")}
    private = identity(plan) if plan.privacy.clip or plan.privacy.secure else {}
    return {
        **{name.removeprefix("method."): value for name, value in told.items() if name != "method.name"},
        **{name: value for name, value in private.items() if name.startswith("privacy.")},
    }


def words(settings: Settings) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in settings.items())


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def text_of(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
