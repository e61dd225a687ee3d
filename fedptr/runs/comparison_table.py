"""A comparison as a table: for the terminal, and as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from fedptr.stats import mean_with_interval

Summaries = Mapping[str, Sequence[Mapping[str, Any]]]  # method -> one summary a seed


def rows(results: Summaries, seeds: int) -> list[list[str]]:
    """± is the half width of a 95 % confidence interval; [n] is for a method of which only n seeds did not fail."""
    best = max(statistics.fmean(s["accuracy"] for s in runs) for runs in results.values() if runs)
    lines = []
    for name, runs in results.items():
        if not runs:
            lines.append([name, "failed", "–", "–", "–"])
            continue
        few = f" [{len(runs)}]" if len(runs) < seeds else ""
        mean, half = mean_with_interval([100 * run["accuracy"] for run in runs])
        interval = "" if half is None else f" ± {half:.2f}"
        lines.append([
            name,
            f"{mean:.2f}{interval}{few}" + (" *" if mean >= 100 * best - 1e-9 else ""),
            f"{100 * statistics.fmean(run['accuracy_best'] for run in runs):.2f}",
            f"{statistics.fmean(run['seconds_per_round'] for run in runs):.2f}",
            f"{statistics.fmean(run['bytes_per_round'] for run in runs) / 1e6:.2f}",
        ])  # fmt: skip
    return lines


def headings(seeds: int) -> list[str]:
    several = f", mean ± 95 % CI of {seeds} seeds" if seeds > 1 else ""
    return ["method", f"accuracy % (last 5 rounds{several})", "best %", "s/round", "MB/round"]


def terminal(results: Summaries, seeds: int, title: str) -> Table:
    table = Table(
        title=Text(title), caption="* highest mean; MB/round is up and down together, over all clients of a round"
    )
    for number, heading in enumerate(headings(seeds)):
        table.add_column(heading, justify="left" if number == 0 else "right")
    for row in rows(results, seeds):
        table.add_row(*row, style="bold" if row[1].endswith("*") else "")
    return table


def markdown(results: Summaries, seeds: int) -> str:
    lines = [headings(seeds), ["---", *["---:"] * 4], *rows(results, seeds)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
