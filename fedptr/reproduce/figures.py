"""A recipe's curves: what the paper shows as a figure, mean over seeds with the range of the seeds as a band."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedptr.methods import all_methods
from fedptr.plots import COLOURS, DOTS, LONG, MIXED, SHORT, Look, save_figure
from fedptr.reproduce.outcome import Outcome, Result
from fedptr.reproduce.recipe import Row
from fedptr.reproduce.turned_table import wide
from fedptr.runs.rounds_file import Record

NAMES = {
    "test_accuracy": "test accuracy (%)",
    "cos_aux": "cosine with the auxiliary step",
    "cos_local": "cosine with the local step, mean over clients",
    "distances": "‖w_j − w̃_j‖, mean over clients",
}
BESIDE = 3  # panels
LEGEND = 24  # lines that fit into a panel's height
DASHES = ("-", LONG, DOTS, MIXED, SHORT)  # when the colours have been through


def plot(outcome: Outcome, path: Path) -> list[Path]:
    """One panel a row of the recipe; PNG and SVG."""
    recipe = outcome.recipe
    plots = recipe.plots or ("test_accuracy",)
    if plots == ("cost",):
        return costs(outcome, path)
    many = wide(len(recipe.columns))
    figure, panels = paned(outcome, 6.4, 5.6 if many else 4.4)
    for row, axes in panels:
        number = 0
        for column in recipe.columns:
            result = outcome.at(row, column)
            for name in plots:
                for label, take in series(name, result):
                    words = label if len(recipe.columns) == 1 else column.name
                    draw(axes, result, take, words, choose_look(words, number, many))
                    number += 1
        axes.set_title(row.label)
        axes.set_xlabel("round")
        axes.set_ylabel(NAMES[plots[0]] if len(plots) == 1 else "cosine with the real global step")
        axes.grid(alpha=0.3)
        if not many:
            axes.legend(fontsize=8)
    if panels and many:
        legend(figure, panels[0][1].get_lines())
    figure.suptitle(f"{recipe.title} (scale {outcome.scale})")
    return save_figure(figure, path)


def legend(figure: Any, lines: list[Any]) -> None:
    """One for all panels, beside them: there is no room within. As many columns as it takes."""
    columns = max(1, math.ceil(len(lines) / LEGEND))
    figure.set_figwidth(figure.get_figwidth() + 1.5 * (columns - 1))
    figure.legend(handles=lines, loc="outside right center", fontsize=8, handlelength=3.2, ncols=columns)


def choose_look(name: str, number: int, many: bool) -> Look:
    """How a line looks. Where there are many, a method looks as it does elsewhere."""
    declared = all_methods()[name].look if many and name in all_methods() else None
    return declared or Look(COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)])


def paned(outcome: Outcome, width: float, height: float) -> tuple[Any, list[tuple[Row, Any]]]:
    """A figure with a panel for every row of which something is known, some beside each other."""
    from matplotlib.figure import Figure

    columns = outcome.recipe.columns
    rows = [row for row in outcome.recipe.rows if any(outcome.at(row, column).runs for column in columns)]
    across = min(BESIDE, max(1, len(rows)))
    down = max(1, math.ceil(len(rows) / across))
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for empty in panels[len(rows) :]:
        empty.axis("off")
    return figure, list(zip(rows, panels, strict=False))


def costs(outcome: Outcome, path: Path) -> list[Path]:
    """Accuracy against seconds, a point a column."""
    recipe = outcome.recipe
    figure, panels = paned(outcome, 7.2, 4.6)
    for row, axes in panels:
        for number, column in enumerate(recipe.columns):
            result = outcome.at(row, column)
            if not result.runs:
                continue
            seconds, (mean, half, n) = result.mean("seconds_per_round"), result.accuracy
            colour = COLOURS[number % len(COLOURS)]
            axes.errorbar(seconds, mean, yerr=half if n > 1 else None, fmt="o", color=colour, capsize=3)
            axes.annotate(column.name, (seconds, mean), xytext=(6, 4), textcoords="offset points", fontsize=8)
        axes.set(title=row.label, xlabel="seconds per round", ylabel="accuracy, last five rounds (%)", xscale="log")
        for ticks in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            ticks(lambda value, _: f"{value:g}")
        axes.margins(x=0.2)
        axes.grid(alpha=0.3)
    figure.suptitle(f"{recipe.title} (scale {outcome.scale})")
    return save_figure(figure, path)


def series(name: str, result: Result) -> list[tuple[str, Callable[[Record], float | None]]]:
    """The lines that one of a round's records makes: the layers' distances make several."""
    if name != "distances":
        scale = 100 if name == "test_accuracy" else 1
        return [(NAMES[name], lambda record: None if name not in record else scale * float(record[name]))]
    layers: list[str] = next((summary["layers"] for summary, _ in result.runs.values()), [])

    def distance(place: int) -> Callable[[Record], float | None]:
        def take(record: Record) -> float | None:
            found = [client["distances"][place] for client in record["clients"] if "distances" in client]
            return statistics.fmean(found) if found else None

        return take

    # Weights of convolutions and of the linear layer, as in the paper; those of a norm are vectors beside them.
    weights = [place for place, layer in enumerate(layers) if layer.endswith(".weight")]
    shown = weights[::2] if len(weights) % 2 else weights
    return [(layers[place], distance(place)) for place in shown]


def draw(axes: Any, result: Result, take: Callable[[Record], float | None], label: str, look: Look) -> None:
    values: dict[int, list[float]] = {}
    for _, rounds in result.runs.values():
        for record in rounds:
            if (value := take(record)) is not None:
                values.setdefault(record["round"], []).append(value)
    if not values:
        return
    x = sorted(values)
    mean = [statistics.fmean(values[t]) for t in x]
    axes.plot(x, mean, label=label, color=look.colour, linestyle=look.dashes, linewidth=1.5)
    if len(result.runs) > 1:
        low, high = ([f(values[t]) for t in x] for f in (min, max))
        axes.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
