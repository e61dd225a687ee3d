"""A recipe's outcome: every cell's numbers over its seeds, beside the paper's, with a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedptr.reproduce.recipe import Cell, Column, Recipe, Row, reduced
from fedptr.reproduce.verdict import Interval, gap, interval, judge, order
from fedptr.runs.plan import Plan
from fedptr.runs.rounds_file import Record
from fedptr.runs.summary import summary_at_round

RUNS = dict[int, tuple[Record, list[Record]]]  # seed -> summary and rounds


@dataclass
class Result:
    """One cell of the table."""

    row: Row
    column: Column
    paper: float | None
    runs: RUNS = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)

    @property
    def accuracies(self) -> dict[int, float]:
        return {seed: 100 * float(summary["accuracy"]) for seed, (summary, _) in sorted(self.runs.items())}

    @property
    def accuracy(self) -> Interval:
        return interval(list(self.accuracies.values()))

    @property
    def few(self) -> str:
        """How many seeds there are, where some are missing yet."""
        return f" [{len(self.runs)}]" if 0 < len(self.runs) < len(self.folders) else ""

    def mean(self, name: str) -> float:
        return statistics.fmean(float(summary[name]) for summary, _ in self.runs.values())


@dataclass(frozen=True)
class Outcome:
    recipe: Recipe
    scale: str
    seeds: int
    results: dict[tuple[str, str], Result]  # by row's label and column's name

    def at(self, row: Row, column: Column) -> Result:
        return self.results[row.label, column.name]

    def reference(self, row: Row, column: Column) -> Result:
        return self.results[row.label, column.against or self.recipe.reference]

    def gap(self, row: Row, column: Column) -> Interval:
        return gap(self.at(row, column).accuracies, self.reference(row, column).accuracies)

    def paper_gap(self, row: Row, column: Column) -> float | None:
        here, there = self.at(row, column).paper, self.reference(row, column).paper
        return None if here is None or there is None else here - there

    def verdict(self, row: Row, column: Column) -> str:
        if column.name == self.recipe.reference:
            return "reference"
        return judge(self.gap(row, column), self.paper_gap(row, column))

    def order(self, row: Row) -> tuple[float, str, str] | None:
        """Rank correlation with the paper over the columns both have, and either's best."""
        both = [
            (column.name, result.accuracy.mean, result.paper)
            for column in self.recipe.columns
            if (result := self.at(row, column)).runs and result.paper is not None
        ]
        if len(both) < 3:
            return None
        ours, theirs = [mean for _, mean, _ in both], [paper for _, _, paper in both]
        best = [max(both, key=lambda entry, k=k: entry[k])[0] for k in (1, 2)]  # type: ignore[misc]
        return order(ours, theirs), best[0], best[1]

    def jsonable(self, out: Path) -> dict[str, Any]:
        """All numbers with what made them."""
        return {
            "recipe": self.recipe.name,
            "title": self.recipe.title,
            "measure": self.recipe.measure,
            "scale": self.scale,
            "only": list(self.recipe.only),
            "reference": self.recipe.reference,
            "reduced": {place: {"paper": a, "here": b} for place, (a, b) in reduced(self.recipe, self.scale).items()},
            "cells": [self.cell(result, out) for result in self.results.values()],
        }

    def cell(self, result: Result, out: Path) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "row": result.row.label,
            "column": result.column.name,
            "against": result.column.against or self.recipe.reference,
            "paper": result.paper,
            "accuracies": result.accuracies,
            "folders": [str(folder.relative_to(out)) for folder in result.folders],
            "failures": result.failures,
        }
        if result.runs:
            own = self.gap(result.row, result.column)
            entry |= {
                "mean": result.accuracy.mean,
                "ci95": result.accuracy.half,
                "gap": own.mean,
                "gap_ci95": own.half,
                "paper_gap": self.paper_gap(result.row, result.column),
                "verdict": self.verdict(result.row, result.column),
                "seconds": result.mean("seconds"),
                "megabytes": result.mean("bytes_per_round") * result.mean("rounds") / 1e6,
                "weights_sha256": {
                    seed: summary["weights_sha256"]
                    for seed, (summary, _) in result.runs.items()
                    if "weights_sha256" in summary  # a run that goes on after the cell's last round has lost them
                },
                "split_sha256": sorted({summary["split_sha256"] for summary, _ in result.runs.values()}),
                "versions": next(iter(result.runs.values()))[0]["versions"],
            }
        return entry


def as_asked(plan: Plan, summary: Record, records: list[Record]) -> tuple[Record, list[Record]]:
    """The run as far as the plan goes: it may have been made longer for others."""
    return summary_at_round(summary, records, plan.run.rounds, plan.run.eval_every), records[: plan.run.rounds]


def gather(
    recipe: Recipe,
    scale: str,
    seeds: int,
    cells: Iterable[Cell],
    done: dict[Path, tuple[Record, list[Record]]],
    failed: dict[Path, str],
) -> Outcome:
    results: dict[tuple[str, str], Result] = {}
    for cell in cells:
        key = cell.row.label, cell.column.name
        result = results.setdefault(key, Result(cell.row, cell.column, recipe.paper(cell.row, cell.column)))
        seed = cell.plan.run.seed
        result.folders.append(cell.folder)
        if cell.folder in done and done[cell.folder][0]["rounds"] >= cell.plan.run.rounds:
            result.runs[seed] = as_asked(cell.plan, *done[cell.folder])
        elif cell.folder in failed:
            result.failures[seed] = failed[cell.folder]
    return Outcome(recipe, scale, seeds, results)
