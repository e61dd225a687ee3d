"""A table with many columns is transposed, so that it fits a screen and a page."""

from __future__ import annotations

from collections.abc import Sequence

MOST = 8  # columns: the paper's tables have up to seven, and the control is one more


def is_wide(columns: int) -> bool:
    return columns > MOST


def transpose_if_wide(grid: Sequence[Sequence[str]], columns: int) -> list[list[str]]:
    """The lines of a table, headings first, of a recipe with this many columns; transposed if these are many.

    >>> transpose_if_wide([["", "a", "b"], ["x", "1", "2"]], 2)
    [['', 'a', 'b'], ['x', '1', '2']]
    >>> transpose_if_wide([["", *"abcdefghi"], ["x", *"123456789"]], 9)[:3]
    [['', 'x'], ['a', '1'], ['b', '2']]
    """
    return list(map(list, zip(*grid, strict=True) if is_wide(columns) else grid))
