"""ROC curves with logarithmic axes: what matters to privacy is the left end, where false alarms are few."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedptr.plots import COLOURS, save_figure

Curves = Mapping[str, Mapping[str, list[float]]]  # name -> fpr and tpr


def plot_roc_curves(panels: Mapping[str, Curves], title: str, path: Path) -> list[Path]:
    """A panel for each group of curves; PNG and SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6 * len(panels), 5.2), layout="constrained")
    every = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (name, curves) in zip(every, panels.items(), strict=True):
        draw_panel(axes, curves)
        axes.set_title(name)
    figure.suptitle(title)
    return save_figure(figure, path)


def draw_panel(axes: Any, curves: Curves) -> None:
    least = min(min(curve["fpr"]) for curve in curves.values())
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        axes.step(curve["fpr"], curve["tpr"], where="post", label=name, color=colour, linewidth=1.5)
    axes.plot([least, 1], [least, 1], color="#777777", linewidth=1, linestyle="--", label="chance")
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.05))
    axes.set_xlabel("false-positive rate")
    axes.set_ylabel("true-positive rate")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8, loc="lower right")
