"""Table 11: the clients' sizes, drawn again; no training, so the paper's numbers are met exactly or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedptr.atomic_files import write_text
from fedptr.data.partition import partition
from fedptr.data.sources import SIZES
from fedptr.errors import UserError
from fedptr.reproduce.recipe import Column, Recipe
from fedptr.runs.plan import check

NOBODY = Column("")


def splits(recipe: Recipe, out: Path) -> int:
    """Balanced labels are all that is needed: each of these datasets has as many images of every class."""
    lines = [f"# {recipe.title}", "", f"{recipe.about}.", "", "| | ours | paper | |", "|---|---|---|---|"]
    table, found = Table("", "ours", "paper", "", title=recipe.title), []
    for row in recipe.rows:
        plan = check(recipe.tables(row, NOBODY, "paper", 0))
        sizes = list(partition(labels(plan.data.name), classes(plan.data.name), plan.split).sizes)
        paper = [int(value) for value in row.paper if value is not None]
        words = "exactly" if sizes == paper else "differs"
        found.append({"row": row.label, "ours": sizes, "paper": paper, "verdict": words})
        cells = [row.label, *(" ".join(map(str, part)) for part in (sizes, paper)), words]
        lines.append(f"| {' | '.join(cells)} |")
        table.add_row(*cells)
    folder = out / recipe.name
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "table.md", "\n".join(lines) + "\n")
    write_text(folder / "splits.json", json.dumps(found, indent=1) + "\n")
    Console().print(table)
    print(f"table: {folder / 'table.md'}")
    return 0


def classes(name: str) -> int:
    if name not in SIZES:
        raise UserError(f"the number of images of {name} is not known here; use {', '.join(SIZES)}")
    return SIZES[name][0]


def labels(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.repeat(np.arange(classes(name)), SIZES[name][1])
