"""A recipe's curves: the mean over seeds, with its 95 % confidence interval as a band."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedptr.methods import all_methods
from fedptr.plots import COLOURS, DOTS, LONG, MIXED, SHORT, Look, draw_band, save_figure
from fedptr.reproduce.outcome import CellResult, Outcome
from fedptr.reproduce.recipe import Row
from fedptr.reproduce.wide_table import is_wide
from fedptr.runs.rounds_file import Record
from fedptr.stats import mean_with_interval

AXIS_LABELS = {
    "test_accuracy": "test accuracy (%)",
    "cos_aux": "cosine with the auxiliary step",
    "cos_local": "cosine with the local step, mean over clients",
    "distances": "‖w_j − w̃_j‖, mean over clients",
}
PANELS_ACROSS = 3
LEGEND_LINES = 24  # that fit into a panel's height
DASHES = ("-", LONG, DOTS, MIXED, SHORT)  # the next when all colours are used


def plot_curves(outcome: Outcome, path: Path) -> list[Path]:
    """Draws a panel for each row of the recipe, as PNG and SVG."""
    recipe = outcome.recipe
    plots = recipe.plots or ("test_accuracy",)
    if plots == ("cost",):
        return plot_costs(outcome, path)
    many = is_wide(len(recipe.columns))
    figure, panels = make_panels(outcome, 6.4, 5.6 if many else 4.4)
    for row, axes in panels:
        number = 0
        for column in recipe.columns:
            result = outcome.result(row, column)
            for name in plots:
                for label, take in choose_lines(name, result):
                    words = label if len(recipe.columns) == 1 else column.name
                    draw_line(axes, result, take, words, choose_look(words, number, many))
                    number += 1
        axes.set_title(row.label)
        axes.set_xlabel("round")
        axes.set_ylabel(AXIS_LABELS[plots[0]] if len(plots) == 1 else "cosine with the real global step")
        axes.grid(alpha=0.3)
        if not many:
            axes.legend(fontsize=8)
    if panels and many:
        add_legend(figure, panels[0][1].get_lines())
    figure.suptitle(make_title(outcome))
    return save_figure(figure, path)


def make_title(outcome: Outcome) -> str:
    """The recipe's title and scale, and what lines and bands are."""
    recipe = outcome.recipe
    seeds = {len(outcome.result(row, column).runs) for row in recipe.rows for column in recipe.columns} - {0}
    most = max(seeds, default=0)
    count = f"{most}" if len(seeds) == 1 else f"up to {most}"
    repeated = f"\nmean and 95 % confidence interval of {count} seeds" if most > 1 else ""
    return f"{outcome.recipe.title} (scale {outcome.scale}){repeated}"


def add_legend(figure: Any, lines: list[Any]) -> None:
    """Adds one legend for all panels, beside them, as it does not fit inside."""
    columns = max(1, math.ceil(len(lines) / LEGEND_LINES))
    figure.set_figwidth(figure.get_figwidth() + 1.5 * (columns - 1))
    figure.legend(handles=lines, loc="outside right center", fontsize=8, handlelength=3.2, ncols=columns)


def choose_look(name: str, number: int, many: bool) -> Look:
    """How a line looks. Among many lines, a method has the look it declares."""
    declared = all_methods()[name].look if many and name in all_methods() else None
    return declared or Look(COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)])


def make_panels(outcome: Outcome, width: float, height: float) -> tuple[Any, list[tuple[Row, Any]]]:
    """A figure with a panel for every row that has a finished run."""
    from matplotlib.figure import Figure

    columns = outcome.recipe.columns
    rows = [row for row in outcome.recipe.rows if any(outcome.result(row, column).runs for column in columns)]
    across = min(PANELS_ACROSS, max(1, len(rows)))
    down = max(1, math.ceil(len(rows) / across))
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for empty in panels[len(rows) :]:
        empty.axis("off")
    return figure, list(zip(rows, panels, strict=False))


def plot_costs(outcome: Outcome, path: Path) -> list[Path]:
    """Draws accuracy against seconds, with a point for each column."""
    recipe = outcome.recipe
    figure, panels = make_panels(outcome, 7.2, 4.6)
    for row, axes in panels:
        for number, column in enumerate(recipe.columns):
            result = outcome.result(row, column)
            if not result.runs:
                continue
            seconds, (mean, half, n) = result.mean_over_seeds("seconds_per_round"), result.accuracy
            colour = COLOURS[number % len(COLOURS)]
            axes.errorbar(seconds, mean, yerr=half if n > 1 else None, fmt="o", color=colour, capsize=3)
            axes.annotate(column.name, (seconds, mean), xytext=(6, 4), textcoords="offset points", fontsize=8)
        label = f"accuracy (%), {recipe.describe_averaged(outcome.scale)}"
        axes.set(title=row.label, xlabel="seconds per round (logarithmic)", ylabel=label, xscale="log")
        for set_formatter in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            set_formatter(lambda value, _: f"{value:g}")
        axes.margins(x=0.2)
        axes.grid(alpha=0.3)
    figure.suptitle(make_title(outcome))
    return save_figure(figure, path)


def choose_lines(name: str, result: CellResult) -> list[tuple[str, Callable[[Record], float | None]]]:
    """The lines that show one field of a round's record: labels and functions. Distances have a line for each layer."""
    if name != "distances":
        scale = 100 if name == "test_accuracy" else 1
        return [(AXIS_LABELS[name], lambda record: None if name not in record else scale * float(record[name]))]
    layers: list[str] = next((summary["layers"] for summary, _ in result.runs.values()), [])

    def distance(place: int) -> Callable[[Record], float | None]:
        def take(record: Record) -> float | None:
            found = [client["distances"][place] for client in record["clients"] if "distances" in client]
            return statistics.fmean(found) if found else None

        return take

    # Weights of convolutions and of the linear layer, as in the paper; every second weight is a norm's vector.
    weights = [place for place, layer in enumerate(layers) if layer.endswith(".weight")]
    shown = weights[::2] if len(weights) % 2 else weights
    return [(layers[place], distance(place)) for place in shown]


def draw_line(axes: Any, result: CellResult, take: Callable[[Record], float | None], label: str, look: Look) -> None:
    """Draws the mean over seeds, and its interval in the rounds that every seed has."""
    values: dict[int, list[float]] = {}
    for _, rounds in result.runs.values():
        for record in rounds:
            if (value := take(record)) is not None:
                values.setdefault(record["round"], []).append(value)
    if not values:
        return
    x = sorted(values)
    mean = [statistics.fmean(values[t]) for t in x]
    dot = {"marker": "o"} if len(x) == 1 else {}  # a one-shot method has one round
    axes.plot(x, mean, label=label, color=look.colour, linestyle=look.dashes, linewidth=1.5, **dot)
    shared = [t for t in x if len(values[t]) == len(result.runs)]
    if shared:
        middle, half = mean_with_interval(np.transpose([values[t] for t in shared]))
        if half is not None:
            draw_band(axes, shared, middle - half, middle + half, look.colour, 0.15)
