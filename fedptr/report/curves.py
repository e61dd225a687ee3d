"""Learning curves as PNG and SVG: accuracy against rounds, and against seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Records = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]  # method -> seeds -> rounds
COLOURS = ("#7f7f7f", "#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#d62728", "#ff7f0e", "#17becf", "#bcbd22", "#e377c2")


def plot(records: Records, title: str, path: Path) -> tuple[Path, Path]:
    """Mean over the seeds, with a band of ± one standard deviation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    by_round, by_second = figure.subplots(1, 2, sharey=True)
    for (name, seeds), colour in zip(records.items(), COLOURS * len(records), strict=False):
        evaluated = [[r for r in rounds if "test_accuracy" in r] for rounds in seeds]
        accuracy = 100 * np.array([[r["test_accuracy"] for r in rounds] for rounds in evaluated])
        rounds = np.array([r["round"] for r in evaluated[0]])
        seconds = np.mean([np.cumsum([r["seconds"]["total"] for r in rs])[rounds - 1] for rs in seeds], axis=0)
        mean, spread = accuracy.mean(0), accuracy.std(0, ddof=min(1, len(seeds) - 1))
        width = 2.2 if name.startswith("fedptr") else 1.4
        for axes, x in ((by_round, rounds), (by_second, seconds)):
            axes.plot(x, mean, label=name, color=colour, linewidth=width)
            if len(seeds) > 1:
                axes.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.12, linewidth=0)
    by_round.set(xlabel="communication round", ylabel="test accuracy (%)")
    by_second.set(xlabel="seconds of computation, all clients one after another")
    for axes in (by_round, by_second):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    by_second.set_xscale("log")
    by_round.legend(frameon=False, fontsize=9, loc="lower right")
    figure.suptitle(title, parse_math=False)
    png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
    figure.savefig(png, dpi=150)
    figure.savefig(svg, metadata={"Date": None})
    return png, svg
