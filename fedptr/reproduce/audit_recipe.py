"""Table 10: the runs of a recipe are audited, and its numbers are the attacks' accuracies instead of the models'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedptr.audit import audit_json, roc_figure
from fedptr.audit import audit_table as audit_table
from fedptr.audit.audit_table import HEADINGS
from fedptr.audit.options import SCALES, Options
from fedptr.audit.run_audit import run_audit
from fedptr.errors import ClientError, UserError
from fedptr.jobs.run_queue import Board
from fedptr.messages import format_duration, print_notice
from fedptr.reproduce.outcome import Outcome, Result
from fedptr.reproduce.recipe import Recipe
from fedptr.runs.folder import AUDIT
from fedptr.runs.rounds_file import Record


def audits(recipe: Recipe, scale: str, board: Board, jobs: int, out: Path) -> None:
    """Audits every finished run that is not audited yet. Shadows are shared by all runs that can share them."""
    options = Options(**SCALES[scale]._asdict(), jobs=jobs, shadows_dir=out / AUDIT)
    attacks = {row.attack for row in recipe.rows}
    waiting = [
        folder for folder, (summary, _) in sorted(board.done.items()) if not made(folder, attacks, summary, scale)
    ]
    for number, folder in enumerate(waiting, 1):
        print_notice(f"audit {number} of {len(waiting)}: {folder.parent.name} {folder.name}")
        try:
            run_audit(folder, options)
        except (ClientError, UserError) as error:
            board.failed[folder] = str(error)
            del board.done[folder]


def attacked(outcome: Outcome) -> Outcome:
    """The same outcome with every row's attack in place of the accuracy; what is not audited so does not count."""
    for found in outcome.results.values():
        for folder in found.folders:
            seed = int(folder.name.removeprefix("seed"))
            if seed not in found.runs:
                continue
            summary, rounds = found.runs.pop(seed)
            if audit := made(folder, {found.row.attack}, summary, outcome.scale):
                told = {"accuracy": audit["attacks"][found.row.attack]["accuracy"], "model": summary["accuracy"]}
                found.runs[seed] = {**summary, **told, "audit": audit}, rounds
    return outcome


def made(folder: Path, attacks: set[str], summary: Record, scale: str) -> Record | None:
    """A run's audit, if these attacks are in it and were made as `audits` would."""
    if not (folder / AUDIT / audit_json.NAME).exists():
        return None
    audit = audit_json.read_audit(folder / AUDIT)
    numbers = [audit["attacks"].get(attack) for attack in attacks]
    return audit if all(one and as_asked(audit, one, summary, scale) for one in numbers) else None


def as_asked(audit: Record, numbers: Record, summary: Record, scale: str) -> bool:
    """The run may have been audited with other options since."""
    amount, usual = SCALES[scale], Options()
    wanted: Record = {"target": usual.target, "seed": usual.seed, "examples": amount.examples}
    wanted |= {"weights_sha256": summary.get("weights_sha256")}
    how = {"shadows": amount.shadows, "variance": replace(usual, shadows=amount.shadows).sigma, "flip": usual.flip}
    return all(audit.get(k) == value for k, value in wanted.items()) and (
        "shadows" not in numbers or all(numbers.get(k) == value for k, value in how.items())
    )


def details(outcome: Outcome) -> list[str]:
    """Every audit with its intervals, beside the accuracy of the model itself: who learned less can give away less."""
    lines = ["## Every audit; intervals are over examples (bootstrap)", ""]
    lines += [f"| method | seed | model's accuracy % | attack | {' | '.join(HEADINGS)} |"]
    lines += ["|---" * 2 + "|---:|---" + "|---:" * len(HEADINGS) + "|"]
    for column in outcome.recipe.columns:
        runs = outcome.at(outcome.recipe.rows[0], column).runs
        for seed, (summary, _) in sorted(runs.items()):
            first = [column.name, str(seed), f"{100 * summary['model']:.2f}"]
            lines += [f"| {' | '.join([*first, *row])} |" for row in audit_table.attack_rows(summary["audit"])]
    return [*lines, "", *shadows(outcome)]


def shadows(outcome: Outcome) -> list[str]:
    """What they cost; a method's seeds share them."""
    row, costs = outcome.recipe.rows[-1], []
    for column in outcome.recipe.columns:
        for summary, _ in list(outcome.at(row, column).runs.values())[:1]:
            numbers = summary["audit"]["attacks"][row.attack]
            if "shadows" in numbers:
                costs.append(f"{column.name} {numbers['shadows']} in {format_duration(numbers['shadow_seconds'])}")
    return [f"Shadows, shared by the seeds of a method, one after another: {', '.join(costs)}."] if costs else []


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
        roc_figure.plot_roc_curves(known, f"{outcome.recipe.title} (scale {outcome.scale})", path)


def mean(found: Result) -> dict[str, list[float]]:
    """Of the seeds' TPR at the first one's false-positive rates."""
    curves = [summary["audit"]["attacks"][found.row.attack]["roc"] for summary, _ in found.runs.values()]
    grid = np.array(curves[0]["fpr"])
    at = [np.searchsorted(curve["fpr"], grid, side="right") - 1 for curve in curves]
    tpr = [np.where(place < 0, 0.0, np.array(curve["tpr"])[place]) for place, curve in zip(at, curves, strict=True)]
    return {"fpr": grid.tolist(), "tpr": np.mean(tpr, axis=0).tolist()}
