"""A comparison as a table: for the terminal, and as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedptr.core.early_stopping import STOPPED
from fedptr.headline import Headline, find_headline
from fedptr.runs.summary import LAST, describe_tested
from fedptr.stats import mean_with_interval

GLOBAL, LOSS = "clients_global", "clients_global_loss"  # in a summary, of classifiers and of other models
Summaries = Mapping[str, Sequence[Mapping[str, Any]]]  # method -> one summary a seed


def comparison_rows(results: Summaries, seeds: int) -> list[list[str]]:
    """± is the half width of a 95 % confidence interval; [n] is for a method of which only n seeds did not fail."""
    headline = headline_of(results)
    key, factor = headline.key, headline.factor
    best = max(statistics.fmean(s[key] for s in runs) for runs in results.values() if runs)
    lines, scored, stopped = [], has_client_scores(results), has_early_stops(results)
    for name, runs in results.items():
        if not runs:
            lines.append([name, "failed", *["–"] * (len(column_headings(results, seeds)) - 2)])
            continue
        few = f" [{len(runs)}]" if len(runs) < seeds else ""
        mean, half = mean_with_interval([factor * run[key] for run in runs])
        interval = "" if half is None else f" ± {headline.number(float(half))}"
        lines.append([
            name,
            f"{headline.number(float(mean))}{interval}{few}" + (" *" if mean >= factor * best - 1e-9 else ""),
            headline.number(factor * statistics.fmean(run[f"{key}_best"] for run in runs)),
            f"{statistics.fmean(run['seconds_per_round'] for run in runs):.2f}",
            f"{statistics.fmean(run['bytes_per_round'] for run in runs) / 1e6:.2f}",
            *([f"{statistics.fmean(run['rounds'] for run in runs):.1f}"] if stopped else []),
            *(client_columns(runs) if scored else []),
        ])  # fmt: skip
    return lines


def has_early_stops(results: Summaries) -> bool:
    """Whether runs may have ended after different numbers of rounds."""
    return any(STOPPED in run for runs in results.values() for run in runs)


def headline_of(results: Summaries) -> Headline:
    return find_headline(next((run for runs in results.values() for run in runs), {}))


def has_client_scores(results: Summaries) -> bool:
    return any(name in run for runs in results.values() for run in runs for name in (GLOBAL, LOSS))


def client_columns(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """On the clients' own test data: the global model, the models that clients use, and the worst client with those."""
    if all(LOSS in run for run in runs):
        losses = [run.get("clients_personal_loss", run[LOSS]) for run in runs]
        personal = all("clients_personal_loss" in run for run in runs)
        return [
            f"{statistics.fmean(run[LOSS]['weighted'] for run in runs):.3f}",
            f"{statistics.fmean(one['weighted'] for one in losses):.3f}" if personal else "–",
            f"{statistics.fmean(one['worst'] for one in losses):.3f}",
        ]
    if not all(GLOBAL in run for run in runs):
        return ["–", "–", "–"]
    used = [run.get("clients_personal", run[GLOBAL]) for run in runs]
    own = f"{100 * statistics.fmean(one['weighted'] for one in used):.2f}"
    return [
        f"{100 * statistics.fmean(run[GLOBAL]['weighted'] for run in runs):.2f}",
        own if all("clients_personal" in run for run in runs) else "–",
        f"{100 * statistics.fmean(one['worst'] for one in used):.2f}",
    ]


def describe_mean(results: Summaries, seeds: int) -> str:
    """What the headline's column is the mean of."""
    several = f", mean ± 95 % CI of {seeds} seeds" if seeds > 1 else ""
    key = headline_of(results).key
    averaged = max((run.get(f"{key}_rounds", LAST) for runs in results.values() for run in runs), default=LAST)
    return ("last round" if averaged == 1 else f"last {averaged} rounds") + several


def column_headings(results: Summaries, seeds: int) -> list[str]:
    headline = headline_of(results)
    unit = headline.unit
    shown = f"{headline.words}{unit} ({describe_mean(results, seeds)})"
    headings = ["method", shown, f"best{unit}", "s/round", "MB/round"]
    headings += ["rounds"] if has_early_stops(results) else []
    first = f"clients: global{unit}" if headline.percent else "clients' loss: global"
    return headings + ([first, f"personal{unit}", f"worst{unit}"] if has_client_scores(results) else [])


def terminal_table(results: Summaries, seeds: int, title: str) -> Table:
    """With a heading's words one below another, so that all columns fit into 80 characters."""
    tested = next((f"; {words}" for runs in results.values() for run in runs if (words := describe_tested(run))), "")
    headline, (method, shown, *others) = headline_of(results), column_headings(results, seeds)
    mean = f"{headline.words}: {describe_mean(results, seeds)}"
    caption = f"{mean}; * highest mean; MB/round is up and down together, over all clients of a round{tested}"
    table = Table(
        title=Text(title), caption=Text(caption), box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False
    )
    table.add_column(method, no_wrap=True)
    table.add_column(shown.partition(" (")[0], justify="right")
    for heading in others:
        table.add_column(heading.replace(" ", "\n").replace("/", "/\n"), justify="right", no_wrap=True)
    for row in comparison_rows(results, seeds):
        table.add_row(*map(Text, row), style="bold" if row[1].endswith("*") else "")
    return table


def markdown_table(results: Summaries, seeds: int) -> str:
    headings = column_headings(results, seeds)
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *comparison_rows(results, seeds)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
