"""A split as a picture: a map of samples by client and class, and the clients' sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedptr.errors import UserError

CELL = (0.55, 0.36)  # inches wide and high, until the map reaches its largest size
LARGEST = (9.0, 7.2)
NUMBERED = 20  # with more clients or classes than this a cell is too small for its number
NAMED = 40  # with more clients or classes than this only some are named on the axis


def plot_split(counts: npt.ArrayLike, class_names: Sequence[str], title: str, path: str | Path) -> tuple[Path, Path]:
    """Draws counts (clients × classes) to `path` as PNG and as SVG; the suffix may be left out."""
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot, which keeps global state

    table = np.asarray(counts, dtype=np.int64)
    clients, classes = table.shape
    width = min(LARGEST[0], max(3.0, classes * CELL[0]))
    height = min(LARGEST[1], max(2.4, clients * CELL[1]))
    figure = Figure(figsize=(width + 3.2, height + 1.6), layout="constrained")
    cells, bars, scale = figure.subplots(1, 3, width_ratios=(width, 1.3, 0.14))
    bars.sharey(cells)
    image = _draw_map(cells, table)
    _name_clients(cells, clients)
    _name_classes(cells, class_names)
    _draw_sizes(bars, table.sum(axis=1))
    figure.colorbar(image, cax=scale, label="samples in cell (log scale, blank = 0)", format="%d")
    scale.minorticks_off()
    figure.suptitle(title, parse_math=False)  # a dollar sign is not markup
    with matplotlib.rc_context({"svg.hashsalt": "fedptr"}):  # the same split gives the same file
        return _save_figure(figure, Path(path))


def _draw_map(axes: Any, table: npt.NDArray[np.int64]) -> Any:
    from matplotlib.colors import LogNorm

    # logarithmic, as counts span 1 to thousands and a few samples still matter
    most = max(10, int(table.max()))
    seen = np.ma.masked_equal(table, 0)
    image = axes.imshow(seen, norm=LogNorm(vmin=1, vmax=most), cmap="YlGnBu", aspect="auto", interpolation="none")
    if max(table.shape) <= NUMBERED:
        for (client, label), count in np.ndenumerate(table):
            if count:
                ink = "white" if count > most**0.6 else "black"
                axes.text(label, client, count, ha="center", va="center", fontsize=8, color=ink)
    return image


def _name_clients(axes: Any, clients: int) -> None:
    axes.set_yticks(range(0, clients, _label_step(clients)))
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.set_ylabel("client")
    for edge in range(1, clients) if clients <= NAMED else ():
        axes.axhline(edge - 0.5, color="0.9", linewidth=0.5)


def _name_classes(axes: Any, names: Sequence[str]) -> None:
    """Names are horizontal if they fit, slanted if not, and vertical if classes are narrow."""
    step = _label_step(len(names))
    room = min(CELL[0], LARGEST[0] / len(names)) * step
    flat = max(map(len, names)) * 0.08 <= room  # inches: a letter of size 8 is about 0.08 wide
    lean = {"ha": "right", "va": "center", "rotation_mode": "anchor", "rotation": 40 if room > 0.4 else 90}
    axes.set_xticks(range(0, len(names), step), names[::step], parse_math=False, **({} if flat else lean))
    axes.tick_params(axis="x", length=0, labelsize=8)
    axes.set_xlabel("class")
    for edge in range(1, len(names)) if len(names) <= NAMED else ():
        axes.axvline(edge - 0.5, color="0.9", linewidth=0.5)


def _label_step(count: int) -> int:
    """Names every, every second, every fifth … so that at most `NAMED` are named."""
    return next((step for step in (1, 2, 5, 10, 20, 50) if count <= NAMED * step), count)


def _draw_sizes(axes: Any, sizes: npt.NDArray[np.int64]) -> None:
    axes.barh(range(len(sizes)), sizes, color="0.6", height=0.7)
    axes.set_xlabel("client size\n(samples)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", left=False, labelleft=False)
    axes.tick_params(axis="x", labelsize=8)
    axes.locator_params(axis="x", nbins=3, integer=True)


def _save_figure(figure: Any, path: Path) -> tuple[Path, Path]:
    stem = path.with_suffix("") if path.suffix in (".png", ".svg") else path  # "alpha-0.04" has no ending to drop
    png, svg = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")
    try:
        png.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(png, dpi=160)
        figure.savefig(svg, metadata={"Date": None})
    except OSError as error:
        raise UserError(f"picture {png} cannot be written ({error.strerror}); choose another place") from None
    return png, svg
