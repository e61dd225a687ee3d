"""Learning curves as PNG and SVG: accuracy against rounds, and against seconds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedptr.stats import mean_with_interval

Records = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]  # method -> seeds -> rounds

LONG, SHORT, DOTS, MIXED = (0, (5, 2)), (0, (2.5, 1.5)), (0, (1, 1)), (0, (3, 1, 1, 1))


class Look(NamedTuple):
    """A method looks the same in every comparison, and declares how.

    The first colours are Okabe and Ito's, the others Tol's, which colour-blind people tell apart. Dashes do it in
    print, and within a family of methods, which has one colour.
    """

    colour: str
    dashes: str | tuple[float, tuple[float, ...]] = "-"
    bold: bool = False  # thicker, and below, so that a curve that runs along with it is seen too


# For methods that declare none.
OTHERS = tuple(
    Look(colour, dashes) for dashes in (LONG, MIXED) for colour in ("#882255", "#117733", "#aa4499", "#999933")
)
# For lines that are no methods.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933", "#882255")
FEW = 20  # so few evaluations are marked each


def choose_looks(declared: Mapping[str, Look | None]) -> dict[str, Look]:
    """The look of every method; those that declare none get the others in turn."""
    others = itertools.cycle(OTHERS)
    return {name: look or next(others) for name, look in declared.items()}


def plot(records: Records, looks: Mapping[str, Look], title: str, path: Path) -> tuple[Path, Path]:
    """Mean over the seeds, with its 95 % confidence interval as a band."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    by_round, by_second = figure.subplots(1, 2, sharey=True)
    lines = []
    for name, seeds in records.items():
        colour, dashes, bold = looks[name]
        rounds, seconds, accuracy = measured(seeds)
        mean, half = mean_with_interval(accuracy)
        look = {"color": colour, "linestyle": dashes, "linewidth": 2.8 if bold else 1.4, "zorder": 3 if bold else 4}
        look |= {"marker": "o", "markersize": 5 if bold else 3.5} if len(rounds) <= FEW else {}
        for axes, x in ((by_round, rounds), (by_second, seconds)):
            (line,) = axes.plot(x, mean, label=name, **look)
            if half is not None:
                axes.fill_between(x, mean - half, mean + half, color=colour, alpha=0.12, linewidth=0)
        lines.append((mean[-1], line))
    repeated = f", mean ± 95 % CI of {len(seeds)} seeds" if len(seeds) > 1 else ""
    by_round.set(xlabel="communication round", ylabel=f"test accuracy (%){repeated}")
    by_round.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    by_second.set(xlabel="seconds of computation, all clients one after another", xscale="log")
    by_second.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    by_second.xaxis.set_minor_locator(NullLocator())
    by_second.xaxis.set_major_formatter("{x:g}")
    for axes in (by_round, by_second):
        axes.grid(color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    # In the order in which the curves end, so that eye and legend go the same way.
    in_order = [line for _, line in sorted(lines, key=lambda pair: -pair[0])]
    figure.legend(handles=in_order, loc="outside right center", frameon=False, handlelength=2.6)
    figure.suptitle(title, fontsize=11, parse_math=False)
    png, svg = save_figure(figure, path)
    return png, svg


def save_figure(figure: Any, path: Path) -> list[Path]:
    """As PNG and SVG; the same figure gives the same files."""
    png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
    figure.savefig(png, dpi=150)
    figure.savefig(svg, metadata={"Date": None})
    return [png, svg]


def measured(seeds: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[Any, Any, Any]:
    """The evaluated rounds, the mean seconds until then, and the accuracies (%) by seed."""
    rounds = np.array([r["round"] for r in seeds[0] if "test_accuracy" in r])
    accuracy = 100 * np.array([[r["test_accuracy"] for r in records if "test_accuracy" in r] for records in seeds])
    seconds = np.cumsum([[r["seconds"]["total"] for r in records] for records in seeds], axis=1)
    return rounds, seconds.mean(0)[rounds - 1], accuracy
