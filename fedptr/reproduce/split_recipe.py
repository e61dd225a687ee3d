"""Table 11: the clients' sizes. Nothing is trained, so our numbers equal the paper's exactly or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from fedptr.atomic_files import write_text
from fedptr.data.partition import partition
from fedptr.data.sources import SIZES
from fedptr.errors import UserError
from fedptr.reproduce.recipe import Column, Recipe
from fedptr.runs.plan import check_plan

NO_COLUMN = Column("")


def compare_splits(recipe: Recipe) -> list[dict[str, Any]]:
    """The clients' sizes, ours and the paper's.

    This needs only the labels, and in each of these datasets every class has the same number of images.
    """
    found = []
    for row in recipe.rows:
        plan = check_plan(recipe.make_tables(row, NO_COLUMN, "paper", 0))
        sizes = list(partition(make_labels(plan.data.name), count_classes(plan.data.name), plan.split).sizes)
        paper = [int(value) for value in row.paper if value is not None]
        verdict = "exactly" if sizes == paper else "differs"
        found.append({"row": row.label, "ours": sizes, "paper": paper, "verdict": verdict})
    return found


def write_splits(recipe: Recipe, found: list[dict[str, Any]], folder: Path) -> None:
    """Writes table.md and splits.json."""
    lines = [f"# {recipe.title}", "", f"{recipe.about}.", "", "| | ours | paper | |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(format_row(row))} |" for row in found]
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "table.md", "\n".join(lines) + "\n")
    write_text(folder / "splits.json", json.dumps(found, indent=1) + "\n")


def build_splits_table(recipe: Recipe, found: list[dict[str, Any]]) -> Table:
    """The table for the terminal."""
    table = Table("", "ours", "paper", "", title=recipe.title)
    for row in found:
        table.add_row(*format_row(row))
    return table


def format_row(row: dict[str, Any]) -> list[str]:
    return [row["row"], *(" ".join(map(str, row[name])) for name in ("ours", "paper")), row["verdict"]]


def count_classes(name: str) -> int:
    if name not in SIZES:
        raise UserError(f"the number of images of {name} is not known here; use {', '.join(SIZES)}")
    return SIZES[name][0]


def make_labels(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.repeat(np.arange(count_classes(name)), SIZES[name][1])
