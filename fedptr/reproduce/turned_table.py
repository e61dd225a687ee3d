"""A table with many columns is turned, so that it fits a screen and a page."""

from __future__ import annotations

from collections.abc import Sequence

MOST = 8  # columns: those of the paper's tables, and the control


def wide(columns: int) -> bool:
    return columns > MOST


def turned(grid: Sequence[Sequence[str]], columns: int) -> list[list[str]]:
    """Lines of cells, the headings first; if there are many columns they are the lines.

    >>> turned([["", "a", "b"], ["x", "1", "2"]], 2)
    [['', 'a', 'b'], ['x', '1', '2']]
    >>> turned([["", *"abcdefghi"], ["x", *"123456789"]], 9)[:3]
    [['', 'x'], ['a', '1'], ['b', '2']]
    """
    return list(map(list, zip(*grid, strict=True) if wide(columns) else grid))
