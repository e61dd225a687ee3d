"""Runs a recipe's cells, and writes their results with the paper's numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from fedptr.atomic_files import write_text
from fedptr.jobs.run_queue import QueueState, find_finished_runs, run_plans
from fedptr.regular_files import read_bytes
from fedptr.reproduce import audit_recipe, figures, tables
from fedptr.reproduce.outcome import Outcome, collect_results
from fedptr.reproduce.recipe import Cell, Recipe, candidate_folders, longest_plans, make_cells
from fedptr.runs.archive import fetch_runs, unpack_runs
from fedptr.runs.folder import AUDIT
from fedptr.runs.lock import locked
from fedptr.runs.rounds_file import to_json_values

Progress = AbstractContextManager[Callable[[QueueState], None]]  # shows how far the runs are


def fetch_cells(recipe: Recipe, scale: str, seeds: int, out: Path) -> list[Cell]:
    """The cells of a recipe; unpacks those of their runs that are in archives."""
    fetch_runs(candidate_folders(recipe, scale, seeds, out))
    return list(make_cells(recipe, scale, seeds, out))


def run_cells(
    recipe: Recipe,
    scale: str,
    wanted: list[Cell],
    jobs: int,
    out: Path,
    progress: Progress,
    recompute: bool = False,
) -> QueueState:
    """Runs the cells that are not finished, and audits them if the recipe is an audit; jobs = 0 starts nothing."""
    plans, folder = longest_plans(wanted), out / recipe.name
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        with progress as show:
            board = run_plans(plans, jobs, show, recompute=recompute) if jobs else find_finished_runs(plans)
        if recipe.kind == "audit" and jobs and not board.stopped:
            if (out / AUDIT).is_dir():
                unpack_runs(out / AUDIT)
            audit_recipe.audit_runs(recipe, scale, board, jobs, out)
    return board


def gather_outcome(recipe: Recipe, scale: str, seeds: int, wanted: list[Cell], board: QueueState) -> Outcome:
    """The numbers of the cells; for an audit, those of its attacks."""
    outcome = collect_results(recipe, scale, seeds, wanted, board.runs, board.failed)
    return audit_recipe.use_attack_accuracies(outcome) if recipe.kind == "audit" else outcome


def with_earlier_cells(whole: Recipe, part: Outcome, board: QueueState, folder: Path, out: Path) -> Outcome:
    """The outcome of a part of the recipe, with the other rows, columns and seeds of the folder's table."""
    try:
        before = json.loads(read_bytes(folder / "reproduce.json"))
        known = [(str(cell["row"]), str(cell["column"]), len(cell["folders"])) for cell in before["cells"]]
        if before["scale"] != part.scale or not known:
            return part
    except (OSError, ValueError, KeyError, TypeError):
        return part
    rows, columns, counts = (set(values) for values in zip(*known, strict=True))
    rows |= {row.label for row in part.recipe.rows}
    columns |= {column.name for column in part.recipe.columns}
    recipe, seeds = whole.keep(rows, columns, part.recipe.only), max(part.seeds, *counts)
    wanted = fetch_cells(recipe, part.scale, seeds, out)
    found = find_finished_runs(longest_plans(wanted))
    found.failed = board.failed
    return gather_outcome(recipe, part.scale, seeds, wanted, found)


def write_outcome(outcome: Outcome, folder: Path, out: Path) -> None:
    """Writes the table in three formats, reproduce.json and the curves."""
    audit = outcome.recipe.kind == "audit"
    more = "\n".join(["", *audit_recipe.format_audits(outcome), ""]) if audit else ""
    write_text(folder / "table.md", tables.format_markdown(outcome) + more)
    write_text(folder / "table.tex", tables.format_latex(outcome))
    write_text(folder / "table.csv", tables.format_csv(outcome))
    write_text(folder / "reproduce.json", json.dumps(to_json_values(outcome.to_json(out)), indent=1) + "\n")
    (audit_recipe.plot_mean_roc if audit else figures.plot_curves)(outcome, folder / "curves")
