"""A recipe's outcome: the numbers of every cell over its seeds, the paper's numbers, and a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedptr.core.early_stopping import has_enough_rounds
from fedptr.reproduce.recipe import Cell, Column, Recipe, Row, find_reductions, is_comparable
from fedptr.reproduce.scores import SCORES
from fedptr.reproduce.verdict import judge_gap, rank_correlation
from fedptr.runs.rounds_file import Record
from fedptr.runs.summary import cut_to_plan
from fedptr.stats import Interval, compute_gap, compute_interval

Runs = dict[int, tuple[Record, list[Record]]]  # seed -> summary and rounds


@dataclass
class CellResult:
    """The runs of one cell of the table, one for each seed."""

    row: Row
    column: Column
    paper: float | None
    runs: Runs = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)
    score: str = "accuracy"

    @property
    def accuracies(self) -> dict[int, float]:
        return self.scores(self.score)

    def scores(self, name: str) -> dict[int, float]:
        """One of `SCORES` by seed, in percent."""
        compute = SCORES[name].compute
        return {seed: 100 * compute(summary, records) for seed, (summary, records) in sorted(self.runs.items())}

    def interval(self, name: str) -> Interval:
        return compute_interval(list(self.scores(name).values()))

    @property
    def accuracy(self) -> Interval:
        return self.interval(self.score)

    @property
    def seeds_note(self) -> str:
        """The number of finished seeds, if some are missing."""
        return f" [{len(self.runs)}]" if 0 < len(self.runs) < len(self.folders) else ""

    def mean_over_seeds(self, name: str) -> float:
        return statistics.fmean(float(summary[name]) for summary, _ in self.runs.values())

    @property
    def megabytes(self) -> float:
        """Sent in all rounds, mean over seeds."""
        return self.mean_over_seeds("bytes_per_round") * self.mean_over_seeds("rounds") / 1e6


@dataclass(frozen=True)
class Outcome:
    recipe: Recipe
    scale: str
    seeds: int
    results: dict[tuple[str, str], CellResult]  # by the row's label and the column's name

    def result(self, row: Row, column: Column) -> CellResult:
        return self.results[row.label, column.name]

    def reference_result(self, row: Row, column: Column) -> CellResult:
        return self.results[row.label, column.against or self.recipe.reference]

    def gap(self, row: Row, column: Column) -> Interval:
        return compute_gap(self.result(row, column).accuracies, self.reference_result(row, column).accuracies)

    def paper_gap(self, row: Row, column: Column) -> float | None:
        """None if the paper has none, or if the scale's gaps cannot be compared with it."""
        here, there = self.result(row, column).paper, self.reference_result(row, column).paper
        return None if here is None or there is None or not is_comparable(self.scale) else here - there

    def verdict(self, row: Row, column: Column) -> str:
        if column.name == self.recipe.reference:
            return "reference"
        if not is_comparable(self.scale):
            return "not compared"
        return judge_gap(self.gap(row, column), self.paper_gap(row, column))

    def compare_order(self, row: Row) -> tuple[float, str, str] | None:
        """Rank correlation with the paper over the columns that both have, our best column and the paper's."""
        both = [
            (column.name, result.accuracy.mean, result.paper)
            for column in self.recipe.columns
            if (result := self.result(row, column)).runs and result.paper is not None
        ]
        if len(both) < 3 or not is_comparable(self.scale):
            return None
        ours, theirs = [mean for _, mean, _ in both], [paper for _, _, paper in both]
        best = [max(both, key=lambda entry, k=k: entry[k])[0] for k in (1, 2)]  # type: ignore[misc]
        return rank_correlation(ours, theirs), best[0], best[1]

    def to_json(self, out: Path) -> dict[str, Any]:
        """All numbers, with the runs behind them."""
        return {
            "recipe": self.recipe.name,
            "title": self.recipe.title,
            "measure": self.recipe.describe_measure(self.scale),
            "scale": self.scale,
            "only": list(self.recipe.only),
            "reference": self.recipe.reference,
            "reduced": {
                place: {"paper": theirs, "here": ours}
                for place, (theirs, ours) in find_reductions(self.recipe, self.scale).items()
            },
            "cells": [self.cell_json(result, out) for result in self.results.values()],
        }

    def cell_json(self, result: CellResult, out: Path) -> dict[str, Any]:
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
                **{name: result.scores(name) for name in self.recipe.more_scores},
                "mean": result.accuracy.mean,
                "ci95": result.accuracy.half,
                "gap": own.mean,
                "gap_ci95": own.half,
                "paper_gap": self.paper_gap(result.row, result.column),
                "verdict": self.verdict(result.row, result.column),
                "seconds": result.mean_over_seeds("seconds"),
                "megabytes": result.megabytes,
                "weights_sha256": {
                    seed: summary["weights_sha256"]
                    for seed, (summary, _) in result.runs.items()
                    if "weights_sha256" in summary  # a run that continued after the cell's last round has no others
                },
                "split_sha256": sorted({summary["split_sha256"] for summary, _ in result.runs.values()}),
                "versions": next(iter(result.runs.values()))[0]["versions"],
            }
        return entry


def collect_results(
    recipe: Recipe,
    scale: str,
    seeds: int,
    cells: Iterable[Cell],
    done: dict[Path, tuple[Record, list[Record]]],
    failed: dict[Path, str],
) -> Outcome:
    results: dict[tuple[str, str], CellResult] = {}
    for cell in cells:
        key = cell.row.label, cell.column.name
        paper = recipe.paper_number(cell.row, cell.column)
        result = results.setdefault(key, CellResult(cell.row, cell.column, paper, score=recipe.score))
        seed = cell.plan.run.seed
        result.folders.append(cell.folder)
        if cell.folder in done and has_enough_rounds(done[cell.folder][0], cell.plan.run.rounds):
            result.runs[seed] = cut_to_plan(cell.plan, *done[cell.folder])
        elif cell.folder in failed:
            result.failures[seed] = failed[cell.folder]
    return Outcome(recipe, scale, seeds, results)
