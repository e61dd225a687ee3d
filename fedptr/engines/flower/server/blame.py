"""Whom to leave out when nodes do not trust each other.

A node that cannot open the share that another sent to it says so, and only these two know who is wrong. One node that
has trouble with several others is the likely one; between two alone the one that is accused is left out, until its
accuser accuses somebody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def find_blamed(doubts: Iterable[tuple[int, int]]) -> set[int]:
    """The nodes to leave out so that nobody is left who accuses another who is left; doubts are (accuser, accused).

    >>> find_blamed([(1, 3), (2, 3)]), find_blamed([(3, 1), (3, 2)]), find_blamed([(1, 2)])
    ({3}, {3}, {2})
    """
    left = set(doubts)
    out: set[int] = set()
    while left:
        trouble = Counter(node for pair in left for node in pair)
        accused = Counter(node for _, node in left)
        worst = max(trouble, key=lambda node: (trouble[node], accused[node], node))
        out.add(worst)
        left = {pair for pair in left if worst not in pair}
    return out
