"""A comparison as a table: for the terminal, and as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from fedptr.runs.summary import LAST, describe_tested
from fedptr.stats import mean_with_interval

Summaries = Mapping[str, Sequence[Mapping[str, Any]]]  # method -> one summary a seed


def comparison_rows(results: Summaries, seeds: int) -> list[list[str]]:
    """± is the half width of a 95 % confidence interval; [n] is for a method of which only n seeds did not fail."""
    best = max(statistics.fmean(s["accuracy"] for s in runs) for runs in results.values() if runs)
    lines, scored = [], has_client_scores(results)
    for name, runs in results.items():
        if not runs:
            lines.append([name, "failed", *["–"] * (len(column_headings(results, seeds)) - 2)])
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
            *(client_columns(runs) if scored else []),
        ])  # fmt: skip
    return lines


def has_client_scores(results: Summaries) -> bool:
    return any("clients_global" in run for runs in results.values() for run in runs)


def client_columns(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """On the clients' own test data: the global model, the models that clients use, and the worst client with those."""
    if not all("clients_global" in run for run in runs):
        return ["–", "–", "–"]
    used = [run.get("clients_personal", run["clients_global"]) for run in runs]
    own = f"{100 * statistics.fmean(one['weighted'] for one in used):.2f}"
    return [
        f"{100 * statistics.fmean(run['clients_global']['weighted'] for run in runs):.2f}",
        own if all("clients_personal" in run for run in runs) else "–",
        f"{100 * statistics.fmean(one['worst'] for one in used):.2f}",
    ]


def column_headings(results: Summaries, seeds: int) -> list[str]:
    several = f", mean ± 95 % CI of {seeds} seeds" if seeds > 1 else ""
    averaged = max((run.get("accuracy_rounds", LAST) for runs in results.values() for run in runs), default=LAST)
    last = "last round" if averaged == 1 else f"last {averaged} rounds"
    headings = ["method", f"accuracy % ({last}{several})", "best %", "s/round", "MB/round"]
    return headings + (["clients: global %", "personal %", "worst %"] if has_client_scores(results) else [])


def terminal_table(results: Summaries, seeds: int, title: str) -> Table:
    tested = next((f"; {words}" for runs in results.values() for run in runs if (words := describe_tested(run))), "")
    caption = f"* highest mean; MB/round is up and down together, over all clients of a round{tested}"
    table = Table(title=Text(title), caption=caption)
    for number, heading in enumerate(column_headings(results, seeds)):
        table.add_column(heading, justify="left" if number == 0 else "right")
    for row in comparison_rows(results, seeds):
        table.add_row(*row, style="bold" if row[1].endswith("*") else "")
    return table


def markdown_table(results: Summaries, seeds: int) -> str:
    headings = column_headings(results, seeds)
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *comparison_rows(results, seeds)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
