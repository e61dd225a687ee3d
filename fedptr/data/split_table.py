"""A split as a table for the terminal: the samples of each client by class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedptr.data.split import Ints, Split, measure_heterogeneity

WIDEST = 12  # more classes than this do not fit side by side in a terminal
TOP = 4


def build_split_table(split: Split, labels: npt.ArrayLike, class_names: Sequence[str]) -> Table:
    """The samples of each client by class; with many classes, only their number and the largest ones."""
    counts = split.counts(labels, len(class_names))
    title = split.origin or f"split of {split.samples} samples over {len(split.clients)} clients"
    shown = Table(title=Text(title), caption=Text(_describe_sizes(split, counts)), show_footer=True, box=SIMPLE_HEAD)
    shown.padding = 0  # one space between columns: 12 classes of thousands fit in 80
    shown.add_column("client", justify="left" if split.names else "right", footer="all", no_wrap=not split.names)
    shown.add_column("size", justify="right", footer=str(sum(split.sizes)), no_wrap=True)
    fill = _add_class_columns if len(class_names) <= WIDEST else _add_largest_classes
    clients = [Text(f"{i} {name}".strip()) for i, name in enumerate(split.names or [""] * len(counts))]
    fill(shown, clients, counts, class_names)
    return shown


def _add_class_columns(shown: Table, clients: Sequence[Text], counts: Ints, class_names: Sequence[str]) -> None:
    for name, total in zip(class_names, counts.sum(axis=0), strict=True):
        # Text, because a name may look like markup; folded if too narrow, because a number must not lose digits
        shown.add_column(Text(name, overflow="fold"), justify="right", footer=str(total), overflow="fold")
    for client, row in zip(clients, counts, strict=True):
        shown.add_row(client, str(row.sum()), *(str(n) if n else Text("·", style="dim") for n in row))


def _add_largest_classes(shown: Table, clients: Sequence[Text], counts: Ints, class_names: Sequence[str]) -> None:
    shown.add_column("classes", justify="right", footer=str(np.count_nonzero(counts.sum(axis=0))))
    shown.add_column("largest classes")
    for client, row in zip(clients, counts, strict=True):
        top = [label for label in np.argsort(-row, kind="stable")[:TOP] if row[label]]
        words = ", ".join(f"{class_names[label]} {row[label]}" for label in top)
        present = np.count_nonzero(row)
        shown.add_row(client, str(row.sum()), str(present), Text(words + (", …" if present > TOP else "")))


def _describe_sizes(split: Split, counts: Ints) -> str:
    sizes = split.sizes
    parts = [
        f"sizes {min(sizes)} to {max(sizes)}",
        f"label skew {measure_heterogeneity(counts):.2f} (0 = iid)",
        f"draw {split.draws}" + (f", {split.moved} samples moved" if split.moved else ""),
        f"sha256 {split.sha256[:12]}",
    ]
    return " · ".join(parts)
