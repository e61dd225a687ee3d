"""Runs a recipe's cells, and writes what came of them beside the paper's numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from fedptr.atomic_files import write_text
from fedptr.jobs.run_queue import Board, find_finished_runs, run_plans
from fedptr.reproduce import audit_recipe, figures, tables
from fedptr.reproduce.outcome import Outcome, gather
from fedptr.reproduce.recipe import Cell, Recipe, candidate_folders, cells, longest
from fedptr.runs.archive import fetch_runs, unpack_runs
from fedptr.runs.folder import AUDIT
from fedptr.runs.lock import locked
from fedptr.runs.rounds_file import jsonable

Progress = AbstractContextManager[Callable[[Board], None]]  # shows how far the runs are


def fetch_cells(recipe: Recipe, scale: str, seeds: int, out: Path) -> list[Cell]:
    """The cells of a recipe; those of their runs that are packed are unpacked."""
    fetch_runs(candidate_folders(recipe, scale, seeds, out))
    return list(cells(recipe, scale, seeds, out))


def run_cells(recipe: Recipe, scale: str, wanted: list[Cell], jobs: int, out: Path, progress: Progress) -> Board:
    """Runs the cells that are not finished, and audits them where the recipe is about that; no jobs = only looks."""
    plans, folder = longest(wanted), out / recipe.name
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        with progress as show:
            board = run_plans(plans, jobs, show) if jobs else find_finished_runs(plans)
        if recipe.kind == "audit" and jobs and not board.stopped:
            if (out / AUDIT).is_dir():
                unpack_runs(out / AUDIT)
            audit_recipe.audits(recipe, scale, board, jobs, out)
    return board


def gather_outcome(recipe: Recipe, scale: str, seeds: int, wanted: list[Cell], board: Board) -> Outcome:
    """The cells' numbers; of an audit those of its attacks."""
    outcome = gather(recipe, scale, seeds, wanted, board.runs, board.failed)
    return audit_recipe.attacked(outcome) if recipe.kind == "audit" else outcome


def with_earlier_cells(whole: Recipe, part: Outcome, board: Board, folder: Path, out: Path) -> Outcome:
    """The part, with the rows, columns and seeds that the folder's table has besides: none of them is lost."""
    try:
        before = json.loads((folder / "reproduce.json").read_bytes())
        known = [(str(cell["row"]), str(cell["column"]), len(cell["folders"])) for cell in before["cells"]]
        if before["scale"] != part.scale or not known:
            return part
    except (OSError, ValueError, KeyError, TypeError):
        return part
    rows, columns, counts = (set(values) for values in zip(*known, strict=True))
    rows |= {row.label for row in part.recipe.rows}
    columns |= {column.name for column in part.recipe.columns}
    recipe, seeds = whole.part(rows, columns, part.recipe.only), max(part.seeds, *counts)
    wanted = fetch_cells(recipe, part.scale, seeds, out)
    found = find_finished_runs(longest(wanted))
    found.failed = board.failed
    return gather_outcome(recipe, part.scale, seeds, wanted, found)


def write_outcome(outcome: Outcome, folder: Path, out: Path) -> None:
    """The table in three formats, reproduce.json and the curves."""
    audit = outcome.recipe.kind == "audit"
    more = "\n".join(["", *audit_recipe.details(outcome), ""]) if audit else ""
    write_text(folder / "table.md", tables.markdown(outcome) + more)
    write_text(folder / "table.tex", tables.latex(outcome))
    write_text(folder / "table.csv", tables.sheet(outcome))
    write_text(folder / "reproduce.json", json.dumps(jsonable(outcome.jsonable(out)), indent=1) + "\n")
    (audit_recipe if audit else figures).plot(outcome, folder / "curves")
