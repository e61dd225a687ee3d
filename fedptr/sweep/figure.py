"""The scores of a sweep against each setting that is varied."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from fedptr.plots import choose_looks, save_figure
from fedptr.sweep.axes import Range
from fedptr.sweep.outcome import Outcome, TrialResult, format_setting

WIDE = 3  # panels beside each other
TITLE = 64  # letters that fit above one or two panels


def plot_scores(outcome: Outcome, title: str, path: Path) -> list[Path]:
    """A panel for each setting. Dots are means of settings, dashes their seeds; the line is the best at a value.

    A ring marks the best of all; crosses at the foot are what failed or diverged.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = outcome.places or ["method"]
    columns = min(WIDE, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(max(6.0, 4.2 * columns), 0.6 + 3.4 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    declared = {result.trial.plans[0].method.name: result.trial.plans[0].method.look for result in outcome.results}
    looks = choose_looks({name: declared[name] for name in outcome.methods})
    for axes, place in zip(grid, panels, strict=False):
        draw_panel(axes, outcome, place, {name: look.colour for name, look in looks.items()})
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[::columns]:
        axes.set_ylabel(f"validation {outcome.score_name}")
    if len(outcome.methods) > 1:
        handles = [Line2D([], [], color=look.colour, marker="o", label=name) for name, look in looks.items()]
        figure.legend(handles=handles, loc="outside right center", frameon=False)
    figure.suptitle("\n".join(textwrap.wrap(title, TITLE * max(1, columns - 1))), fontsize=11, parse_math=False)
    return save_figure(figure, path)


def draw_panel(axes: Any, outcome: Outcome, place: str, colours: dict[str, str]) -> None:
    there = [r for r in outcome.results if place == "method" or place in r.trial.settings]
    spots = place_values(axes, there, place)
    finished = [result for result in there if result.state == "finished"]
    for name in outcome.methods:
        own = [result for result in finished if name_of(result) == name]
        highest: dict[float, float] = {}
        for result in own:
            x, score = spots[id(result)], result.score
            highest[x] = max(score.mean, highest.get(x, score.mean))
            axes.plot([x] * score.n, list(result.scores.values()), "_", color=colours[name], markersize=7, alpha=0.5)
            axes.plot([x], [score.mean], "o", color=colours[name], markersize=4.5)
        if place != "method" and not any(isinstance(result.trial.space.axes[place], Range) for result in own):
            xs = sorted(highest)
            axes.plot(xs, [highest[x] for x in xs], color=colours[name], linewidth=1.2)
    lost = [spots[id(result)] for result in there if result.state in ("failed", "diverged")]
    if lost:
        axes.plot(lost, [0.02] * len(lost), "x", color="0.4", transform=axes.get_xaxis_transform())
    if outcome.best in there and outcome.best:
        x, y = spots[id(outcome.best)], outcome.best.score.mean
        axes.plot([x], [y], "o", markersize=11, fillstyle="none", color="black", zorder=5)
    axes.set_xlabel(place)
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def place_values(axes: Any, results: list[TrialResult], place: str) -> dict[int, float]:
    """Where each result is on the axis: ranges are to scale, named values side by side."""
    ranges = [axis for result in results if isinstance(axis := result.trial.space.axes.get(place), Range)]
    values: dict[int, Any] = {id(r): name_of(r) if place == "method" else r.trial.settings[place] for r in results}
    if ranges:
        axes.set_xscale("log" if ranges[0].log else "linear")
        return values
    numbers = all(isinstance(value, (int, float)) for value in values.values())
    known = sorted(set(values.values())) if numbers else list(dict.fromkeys(values.values()))
    axes.set_xticks(range(len(known)), [format_setting(v) for v in known], rotation=30 if len(known) > 6 else 0)
    axes.set_xlim(-0.5, len(known) - 0.5)
    return {key: float(known.index(value)) for key, value in values.items()}


def name_of(result: TrialResult) -> str:
    return result.trial.plans[0].method.name
