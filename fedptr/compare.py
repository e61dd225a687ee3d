"""Several methods under the same conditions: the same split, initial weights, cohorts and batch order for a seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedptr import methods
from fedptr.experiment import prepare
from fedptr.plan import Plan, Tables, check, check_sections, for_method
from fedptr.report import curves, table
from fedptr.report.progress import progress
from fedptr.runner import execute, jsonable
from fedptr.settings import unknown


def plans(tables: Tables, names: Sequence[str], seeds: int) -> dict[str, list[Plan]]:
    """All plans of a comparison, checked before anything runs: method -> one plan a seed."""
    check_sections(tables)
    known = {"name", *(f.name for name in names for f in fields(methods.get(name)))}
    for key in tables.get("method", {}):
        if key not in known:
            raise unknown(f"method.{key}", key, known, f"a setting of {' or '.join(names)}")
    first = check(for_method(tables, names[0])).run.seed
    return {
        name: [
            check({**for_method(tables, name), "run": {**tables.get("run", {}), "seed": first + k}})
            for k in range(seeds)
        ]
        for name in names
    }


def compare(all_plans: dict[str, list[Plan]], out: Path) -> dict[str, list[dict[str, Any]]]:
    """Runs every plan into out/METHOD/seedN and writes compare.json, table.md and the curves."""
    summaries: dict[str, list[dict[str, Any]]] = {name: [] for name in all_plans}
    records: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in all_plans}
    for k in range(len(next(iter(all_plans.values())))):
        for name, seeds in all_plans.items():
            plan = seeds[k]
            folder = out / name / f"seed{plan.run.seed}"
            folder.mkdir(parents=True)
            with progress(f"{name}, seed {plan.run.seed}", plan.run.rounds) as show:
                summary, rounds = execute(plan, prepare(plan), folder, show)
            summaries[name].append(summary)
            records[name].append(rounds)
    (out / "compare.json").write_text(json.dumps(jsonable(summaries), indent=2) + "\n", encoding="utf-8")
    (out / "table.md").write_text(table.markdown(summaries), encoding="utf-8")
    curves.plot(records, describe(next(iter(all_plans.values()))[0]), out / "curves")
    return summaries


def describe(plan: Plan) -> str:
    """The conditions of a comparison in one line."""
    split = plan.split
    how = f"{split.kind}({split.alpha:g})" if "dirichlet" in split.kind else split.kind
    data = Path(plan.data.name).stem + (f" (subset of {plan.data.subset})" if plan.data.subset else "")
    who = f"{split.clients} clients, {plan.run.participation:.0%} participation"
    return f"{data}, {how}, {who}, {plan.run.rounds} rounds"
