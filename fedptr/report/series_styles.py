"""How a series looks: a method has one colour on the whole page, its variants have shades, dashes and symbols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedptr.plots import Look, choose_looks
from fedptr.report.group_runs import Group

DARK = {
    "#333333": "#dddddd",
    "#882255": "#e38fb1",
    "#117733": "#7cc48a",
    "#332288": "#a99bf0",
    "#aa4499": "#d98cc8",
}  # on a dark page
DASHES = ("solid", "9px,4px", "2px,3px", "9px,3px,2px,3px", "15px,4px", "5px,2px")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "x", "star")
FARTHEST = 0.5  # how far the last variant of a method is mixed with black, or on a dark page with white


def choose_styles(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """The style of every series, by its key."""
    variants: dict[str, dict[str, None]] = {}
    declared: dict[str, Look | None] = {}
    for series in (series for group in groups for series in group.series):
        declared[series.method] = series.runs[0].plan.method.look
        variants.setdefault(series.method, {})[series.key] = None
    looks, found = choose_looks(declared), {}
    for number, (method, keys) in enumerate(variants.items()):
        colour, dashes, bold = looks[method]
        for k, key in enumerate(keys):
            part = FARTHEST * k / max(1, len(keys) - 1)
            found[key] = {
                "light": mix_with_grey(colour, part, 0),
                "dark": mix_with_grey(DARK.get(colour, colour), part, 255),
                "dash": plotly_dash(dashes) if k == 0 else DASHES[k % len(DASHES)],
                "symbol": SYMBOLS[(number + k) % len(SYMBOLS)],
                "width": 2.8 if bold else 1.8,
            }
    return found


def plotly_dash(dashes: Any) -> str:
    """Matplotlib's dashes in Plotly's notation."""
    return "solid" if dashes == "-" else ",".join(f"{1.6 * length:g}px" for length in dashes[1])


def mix_with_grey(colour: str, part: float, grey: int) -> str:
    """The colour with a part of grey: 0 is black and 255 white.

    >>> mix_with_grey("#000000", 0.5, 255), mix_with_grey("#d55e00", 0, 0)
    ('#808080', '#d55e00')
    """
    levels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(level + part * (grey - level)):02x}" for level in levels)
