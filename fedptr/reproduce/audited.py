"""Table 10: the runs of a recipe are audited, and its numbers are the attacks' accuracies instead of the models'."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedptr.audit import figure, result
from fedptr.audit import table as audit_table
from fedptr.audit.options import Options
from fedptr.audit.run import audit
from fedptr.audit.table import HEADINGS
from fedptr.data.progress import notice
from fedptr.errors import ClientError, UserError
from fedptr.folder import AUDIT
from fedptr.reproduce.outcome import Outcome, Result
from fedptr.reproduce.queue import Board
from fedptr.reproduce.recipe import Recipe


def audits(recipe: Recipe, scale: str, board: Board, jobs: int, out: Path) -> None:
    """Audits every finished run. Shadows are shared by all runs that can share them."""
    options = Options(shadows=recipe.audit["shadows"][scale], jobs=jobs, shadows_dir=out / AUDIT)
    for number, folder in enumerate(sorted(board.done), 1):
        notice(f"audit {number} of {len(board.done)}: {folder.parent.name} {folder.name}")
        try:
            audit(folder, options)
        except (ClientError, UserError) as error:
            board.failed[folder] = str(error)
            del board.done[folder]


def attacked(outcome: Outcome) -> Outcome:
    """The same outcome with every row's attack in place of the accuracy; a run that is not audited does not count."""
    for found in outcome.results.values():
        for folder in found.folders:
            seed = int(folder.name.removeprefix("seed"))
            if seed not in found.runs:
                continue
            summary, rounds = found.runs.pop(seed)
            place = folder / AUDIT
            numbers = result.read(place)["attacks"].get(found.row.attack) if (place / result.NAME).exists() else None
            if numbers:
                found.runs[seed] = {**summary, "accuracy": numbers["accuracy"], "attack": numbers}, rounds
    return outcome


def details(outcome: Outcome) -> list[str]:
    """Every audit with its intervals, as Markdown."""
    lines = ["## Every audit: intervals are over examples (bootstrap)", ""]
    lines += [f"| | method | seed | {' | '.join(HEADINGS)} |", "|---" * 3 + "|---:" * len(HEADINGS) + "|"]
    for found in outcome.results.values():
        for seed, (summary, _) in sorted(found.runs.items()):
            cells = audit_table.cells(summary["attack"])
            lines.append(f"| {' | '.join([found.row.label, found.column.name, str(seed), *cells])} |")
    return lines


def plot(outcome: Outcome, path: Path) -> None:
    """A panel for each attack, a curve for each method: the mean over seeds."""
    panels = {
        row.label: {
            column.name: mean(found) for column in outcome.recipe.columns if (found := outcome.at(row, column)).runs
        }
        for row in outcome.recipe.rows
    }
    known = {label: curves for label, curves in panels.items() if curves}
    if known:
        figure.plot(known, f"{outcome.recipe.title} (scale {outcome.scale})", path)


def mean(found: Result) -> dict[str, list[float]]:
    """Of the seeds' TPR at the first one's false-positive rates."""
    curves = [summary["attack"]["roc"] for summary, _ in found.runs.values()]
    grid = np.array(curves[0]["fpr"])
    at = [np.searchsorted(curve["fpr"], grid, side="right") - 1 for curve in curves]
    tpr = [np.where(place < 0, 0.0, np.array(curve["tpr"])[place]) for place, curve in zip(at, curves, strict=True)]
    return {"fpr": grid.tolist(), "tpr": np.mean(tpr, axis=0).tolist()}
