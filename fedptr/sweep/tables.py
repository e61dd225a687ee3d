"""A sweep as a table: for the terminal, as Markdown and CSV, and all of it as JSON."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from fedptr.jobs.run_queue import QueueState
from fedptr.messages import format_duration
from fedptr.sweep.outcome import Outcome, TrialResult, describe_best, find_edges, format_setting

SHOWN = 25  # rows in the terminal; the files have all


def list_headings(outcome: Outcome) -> list[str]:
    several = f", mean ± 95 % CI of {outcome.seeds} seeds" if outcome.seeds > 1 else ""
    return ["method", *outcome.places, f"validation {outcome.score_name}{several}", "seconds", ""]


def make_row(outcome: Outcome, result: TrialResult) -> list[str]:
    settings = (result.trial.settings.get(place) for place in outcome.places)
    few = f" [{len(result.runs)}]" if 0 < len(result.runs) < outcome.seeds else ""
    return [
        result.trial.plans[0].method.name,
        *("–" if value is None else format_setting(value) for value in settings),
        f"{result.score}{few}" if result.runs else "–",
        f"{result.seconds:.0f}" if result.runs else "–",
        outcome.note(result),
    ]


def build_terminal_table(outcome: Outcome, title: str, board: QueueState | None = None) -> Table:
    """`board`: of a sweep that is still running."""
    left_out = len(outcome.results) - SHOWN
    words = [f"{left_out} more settings are in table.md"] if left_out > 0 else []
    if board is not None:
        words = [f"{len(board.done) + len(board.failed)} of {len(board.plans)} runs, {len(board.running)} running"]
        words += [f"{format_duration(board.left)} left"] if board.left is not None else []
    table = Table(title=Text(title), caption=", ".join(words) or None)
    headings = list_headings(outcome)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number in (0, len(headings) - 1) else "right")
    for result in outcome.results[:SHOWN]:
        table.add_row(*map(Text, make_row(outcome, result)), style="bold" if result is outcome.best else "")
    return table


def format_markdown(outcome: Outcome, title: str) -> str:
    headings = list_headings(outcome)
    lines = [headings, ["---", *["---:"] * (len(headings) - 2), "---"]]
    lines += [make_row(outcome, result) for result in outcome.results]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    said = "\n".join(f"- {line}" for line in [*describe_best(outcome), *list_failures(outcome)])
    return f"{title}\n\n{table}\n\n{said}\n"


def list_failures(outcome: Outcome) -> list[str]:
    lines = []
    for result in outcome.results:
        told = {seed: f"failed: {words}" for seed, words in result.failures.items()}
        told |= {seed: f"diverged: {s['diverged']}" for seed, (s, _) in result.runs.items() if "diverged" in s}
        lines += [f"{result.trial.name}, seed {seed} {words}" for seed, words in sorted(told.items())]
    return lines


def format_csv(outcome: Outcome, out: Path) -> str:
    """One line a run; `score` is in percent."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", "method", *outcome.places, "seed", "score", "state", "seconds", "folder"])
    for rank, result in enumerate(outcome.results, 1):
        for plan, folder in zip(result.trial.plans, result.trial.folders, strict=True):
            done = result.runs.get(plan.run.seed)
            writer.writerow([
                rank,
                plan.method.name,
                *(result.trial.settings.get(place, "") for place in outcome.places),
                plan.run.seed,
                repr(result.scores[plan.run.seed]) if done else "",
                result.state,
                f"{done[0]['seconds']:.3f}" if done else "",
                folder.relative_to(out),
            ])  # fmt: skip
    return text.getvalue()


def to_json(outcome: Outcome, asked: dict[str, Any], out: Path) -> dict[str, Any]:
    """All numbers, with the runs behind them."""
    best = outcome.best
    return {
        "asked": asked,
        "score": f"validation {outcome.score_name}",
        "best": result_json(outcome, best, out) if best else None,
        "edges": find_edges(best.trial) if best else [],
        "said": describe_best(outcome),
        "settings": [result_json(outcome, result, out) for result in outcome.results],
    }


def result_json(outcome: Outcome, result: TrialResult, out: Path) -> dict[str, Any]:
    gap = outcome.gap_to_best(result)
    return {
        "method": result.trial.plans[0].method.name,
        "settings": result.trial.settings,
        "state": result.state,
        "scores": result.scores,
        "mean": result.score.mean,
        "ci95": result.score.half,
        "behind_best": gap.mean,
        "behind_best_ci95": gap.half,
        "within_noise": outcome.is_within_noise(result),
        "failures": result.failures,
        "seconds": result.seconds,
        "folders": [str(folder.relative_to(out)) for folder in result.trial.folders],
    }
