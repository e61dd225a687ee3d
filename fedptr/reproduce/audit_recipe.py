"""Table 10: audits a recipe's runs. Its numbers are the accuracies of the attacks instead of the models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedptr.audit import audit_json, audit_table, roc_figure
from fedptr.audit.audit_table import HEADINGS
from fedptr.audit.options import SCALES, AuditOptions
from fedptr.audit.run_audit import run_audit
from fedptr.errors import ClientError, UserError
from fedptr.jobs.run_queue import QueueState
from fedptr.messages import format_duration, print_notice
from fedptr.reproduce.outcome import CellResult, Outcome
from fedptr.reproduce.recipe import Recipe
from fedptr.runs.folder import AUDIT
from fedptr.runs.rounds_file import Record


def audit_runs(recipe: Recipe, scale: str, board: QueueState, jobs: int, out: Path) -> None:
    """Audits every finished run that is not audited yet. Runs that can share shadows share them.

    A table compares methods, so all are audited alike: a run's larger audit is put aside.
    """
    options = AuditOptions(**SCALES[scale]._asdict(), jobs=jobs, shadows_dir=out / AUDIT, force=True)
    attacks = {row.attack for row in recipe.rows}
    waiting = [
        folder
        for folder, (summary, _) in sorted(board.done.items())
        if not read_matching_audit(folder, attacks, summary, scale)
    ]
    for number, folder in enumerate(waiting, 1):
        print_notice(f"audit {number} of {len(waiting)}: {folder.parent.name} {folder.name}")
        try:
            run_audit(folder, options)
        except (ClientError, UserError) as error:
            board.failed[folder] = str(error)
            del board.done[folder]


def use_attack_accuracies(outcome: Outcome) -> Outcome:
    """Replaces accuracies with those of the row's attack; runs without such an audit are left out."""
    for found in outcome.results.values():
        for folder in found.folders:
            seed = int(folder.name.removeprefix("seed"))
            if seed not in found.runs:
                continue
            summary, rounds = found.runs.pop(seed)
            if audit := read_matching_audit(folder, {found.row.attack}, summary, outcome.scale):
                numbers = {"accuracy": audit["attacks"][found.row.attack]["accuracy"], "model": summary["accuracy"]}
                found.runs[seed] = {**summary, **numbers, "audit": audit}, rounds
    return outcome


def read_matching_audit(folder: Path, attacks: set[str], summary: Record, scale: str) -> Record | None:
    """A run's audit, if it holds these attacks and was made with the options that `audit_runs` uses."""
    if not (folder / AUDIT / audit_json.NAME).exists():
        return None
    audit = audit_json.read_audit(folder / AUDIT)
    numbers = [audit["attacks"].get(attack) for attack in attacks]
    return audit if all(one and has_expected_options(audit, one, summary, scale) for one in numbers) else None


def has_expected_options(audit: Record, numbers: Record, summary: Record, scale: str) -> bool:
    """Whether an attack was made on this run's weights, with the options of the scale."""
    amount, usual = SCALES[scale], AuditOptions()
    wanted: Record = {"target": usual.target, "seed": usual.seed, "examples": amount.examples}
    wanted |= {"weights_sha256": summary.get("weights_sha256")}
    how = {"shadows": amount.shadows, "variance": replace(usual, shadows=amount.shadows).sigma, "flip": usual.flip}
    return all(audit.get(k) == value for k, value in wanted.items()) and (
        "shadows" not in numbers or all(numbers.get(k) == value for k, value in how.items())
    )


def format_audits(outcome: Outcome) -> list[str]:
    """A table of every audit, with the accuracy of the model: a model that learned less gives away less."""
    lines = ["## Every audit; intervals are over examples (bootstrap)", ""]
    lines += [f"| method | seed | model's accuracy % | attack | {' | '.join(HEADINGS)} |"]
    lines += ["|---" * 2 + "|---:|---" + "|---:" * len(HEADINGS) + "|"]
    for column in outcome.recipe.columns:
        runs = outcome.result(outcome.recipe.rows[0], column).runs
        for seed, (summary, _) in sorted(runs.items()):
            first = [column.name, str(seed), f"{100 * summary['model']:.2f}"]
            lines += [f"| {' | '.join([*first, *row])} |" for row in audit_table.attack_rows(summary["audit"])]
    return [*lines, "", *format_shadow_costs(outcome)]


def format_shadow_costs(outcome: Outcome) -> list[str]:
    """The number of shadows and the seconds they took, for each method; its seeds share them."""
    row, costs = outcome.recipe.rows[-1], []
    for column in outcome.recipe.columns:
        for summary, _ in list(outcome.result(row, column).runs.values())[:1]:
            numbers = summary["audit"]["attacks"][row.attack]
            if "shadows" in numbers:
                costs.append(f"{column.name} {numbers['shadows']} in {format_duration(numbers['shadow_seconds'])}")
    return [f"Shadows, shared by the seeds of a method, one after another: {', '.join(costs)}."] if costs else []


def plot_mean_roc(outcome: Outcome, path: Path) -> None:
    """Draws a panel for each attack, with a curve for each method: the mean over seeds."""
    panels = {
        row.label: {
            column.name: mean_roc(found)
            for column in outcome.recipe.columns
            if (found := outcome.result(row, column)).runs
        }
        for row in outcome.recipe.rows
    }
    known = {label: curves for label, curves in panels.items() if curves}
    if known:
        roc_figure.plot_roc_curves(known, f"{outcome.recipe.title} (scale {outcome.scale})", path)


def mean_roc(found: CellResult) -> dict[str, list[float]]:
    """The mean over seeds of the true-positive rates, at the false-positive rates of the first seed."""
    curves = [summary["audit"]["attacks"][found.row.attack]["roc"] for summary, _ in found.runs.values()]
    grid = np.array(curves[0]["fpr"])
    at = [np.searchsorted(curve["fpr"], grid, side="right") - 1 for curve in curves]
    tpr = [np.where(place < 0, 0.0, np.array(curve["tpr"])[place]) for place, curve in zip(at, curves, strict=True)]
    return {"fpr": grid.tolist(), "tpr": np.mean(tpr, axis=0).tolist()}
