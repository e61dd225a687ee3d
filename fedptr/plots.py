"""Learning curves as PNG and SVG: accuracy, or another score, against rounds, and against seconds."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedptr.headline import Headline, headline_of_rounds
from fedptr.stats import mean_with_interval

Records = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]  # method -> seeds -> rounds

LONG, SHORT, DOTS, MIXED = (0, (5, 2)), (0, (2.5, 1.5)), (0, (1, 1)), (0, (3, 1, 1, 1))


class Look(NamedTuple):
    """How a method's curves look; it declares this, so that it looks the same in every comparison.

    The first colours are Okabe and Ito's, the others Tol's: colour-blind people can tell them apart. Dashes distinguish
    curves in print, and methods of one family, which share a colour.
    """

    colour: str
    dashes: str | tuple[float, tuple[float, ...]] = "-"
    bold: bool = False  # thicker, and drawn below, so that a curve at the same place stays visible


# For methods that declare no look.
SPARE_LOOKS = tuple(
    Look(colour, dashes) for dashes in (LONG, MIXED) for colour in ("#882255", "#117733", "#aa4499", "#999933")
)
# For lines that are not methods.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933", "#882255")
PALETTE = 128  # colours of a PNG
MARKED = 20  # up to this many evaluations are marked with dots


def choose_looks(declared: Mapping[str, Look | None]) -> dict[str, Look]:
    """The look of every method; those that declare none get the spare ones in turn."""
    spare = itertools.cycle(SPARE_LOOKS)
    return {name: look or next(spare) for name, look in declared.items()}


def plot_learning_curves(records: Records, looks: Mapping[str, Look], title: str, path: Path) -> tuple[Path, Path]:
    """Draws the mean over seeds, with its 95 % confidence interval as a band."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    by_round, by_second = figure.subplots(1, 2, sharey=True)
    lines, headline = [], headline_of_rounds(record for seeds in records.values() for one in seeds for record in one)
    for name, seeds in records.items():
        colour, dashes, bold = looks[name]
        rounds, seconds, scores = stack_scores(seeds, headline)
        mean, half = mean_with_interval(scores)
        look = {"color": colour, "linestyle": dashes, "linewidth": 2.8 if bold else 1.4, "zorder": 3 if bold else 4}
        look |= {"marker": "o", "markersize": 5 if bold else 3.5} if len(rounds) <= MARKED else {}
        for axes, x in ((by_round, rounds), (by_second, seconds)):
            (line,) = axes.plot(x, mean, label=name, **look)
            if half is not None:
                draw_band(axes, x, mean - half, mean + half, colour, 0.12)
        lines.append((mean[-1], line))
    repeated = f", mean ± 95 % CI of {len(seeds)} seeds" if len(seeds) > 1 else ""
    by_round.set(
        xlabel="communication round", ylabel=f"test {headline.words}{' (%)' if headline.percent else ''}{repeated}"
    )
    by_round.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    by_second.set(xlabel="seconds of computation (logarithmic), all clients one after another", xscale="log")
    by_second.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    by_second.xaxis.set_minor_locator(NullLocator())
    by_second.xaxis.set_major_formatter("{x:g}")
    for axes in (by_round, by_second):
        axes.grid(color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    # The legend has the order in which the curves end.
    in_order = [line for _, line in sorted(lines, key=lambda pair: -pair[0])]
    figure.legend(handles=in_order, loc="outside right center", frameon=False, handlelength=2.6)
    figure.suptitle(title, fontsize=11, parse_math=False)
    png, svg = save_figure(figure, path)
    return png, svg


def draw_band(axes: Any, x: Any, low: Any, high: Any, colour: str, alpha: float) -> None:
    """Fills an interval. Lines alone decide how far the axes reach; the interval of two seeds may be far higher."""
    reach = axes.dataLim.get_points().copy()
    axes.fill_between(x, low, high, color=colour, alpha=alpha, linewidth=0)
    axes.dataLim.set_points(reach)


def save_figure(figure: Any, path: Path) -> list[Path]:
    """Saves as PNG and SVG; the same figure gives the same files."""
    png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
    save_png(figure, png, dpi=150)
    figure.savefig(svg, metadata={"Date": None})
    return [png, svg]


def save_png(figure: Any, path: Path, dpi: int) -> None:
    """With a palette: a third of the size, and figures have few colours."""
    from PIL import Image

    content = io.BytesIO()
    figure.savefig(content, dpi=dpi, format="png")
    image = Image.open(content).convert("RGB")
    image.quantize(PALETTE, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, "PNG", optimize=True)


def stack_scores(seeds: Sequence[Sequence[Mapping[str, Any]]], headline: Headline) -> tuple[Any, Any, Any]:
    """The rounds that all seeds evaluated, the mean seconds until each, and the scores by seed and round.

    A seed that stopped early has fewer than the others.
    """
    found = [{r["round"]: r[headline.test] for r in records if headline.test in r} for records in seeds]
    rounds = np.array([t for t in found[0] if all(t in one for one in found)])
    scores = headline.factor * np.array([[one[t] for t in rounds.tolist()] for one in found])
    shortest = min(map(len, seeds))
    seconds = np.cumsum([[r["seconds"]["total"] for r in records[:shortest]] for records in seeds], axis=1)
    return rounds, seconds.mean(0)[rounds - 1], scores
