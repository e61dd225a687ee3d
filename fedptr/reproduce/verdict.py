"""What our numbers say about the paper's, as far as the scale lets them.

Absolute accuracies of a smaller model on less data cannot be compared; the sign and size of a gap to the reference of
the same row can, and so can the order of the methods. Gaps are taken seed by seed, as both runs share everything else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedptr import stats

ALIKE = 0.5  # points: a gap in the paper below this is none, as single runs differ by more
NARROW = 2.0  # points: an interval within which there is no gap worth the name
MEANING = {
    "agrees": "our gap has the paper's sign and its interval does not reach zero, or neither has a gap "
    f"(ours within {NARROW:g} points)",
    "contradicts": "our gap has the other sign",
    "open": "our interval reaches zero",
    "paper sees none": "we see a gap, and the paper's is below half a point",
    "one seed": "no interval, so no verdict",
}


class Interval(NamedTuple):
    """A mean with its 95 % confidence interval over seeds (Student's t); one value has none."""

    mean: float
    half: float
    n: int

    @property
    def told(self) -> bool:
        """Whether it is told apart from zero."""
        return self.n > 1 and abs(self.mean) > self.half

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" ± {self.half:.2f}" if self.n > 1 else "")


def interval(values: Sequence[float]) -> Interval:
    """
    >>> str(interval([1.0, 2.0, 3.0]))
    '2.00 ± 2.48'
    """
    if not values:
        return Interval(math.nan, math.nan, 0)
    mean, half = stats.mean_with_interval(values)
    return Interval(float(mean), math.nan if half is None else float(half), len(values))


def gap(ours: Mapping[int, float], reference: Mapping[int, float]) -> Interval:
    """Over the seeds both have."""
    return interval([ours[seed] - reference[seed] for seed in sorted(ours.keys() & reference.keys())])


def judge(ours: Interval, paper: float | None) -> str:
    """One cell: our gap to the reference beside the paper's.

    >>> judge(Interval(1.2, 0.5, 3), 13.6), judge(Interval(-1.2, 0.5, 3), 13.6), judge(Interval(1.2, 2.5, 3), 13.6)
    ('agrees', 'contradicts', 'open')
    >>> judge(Interval(0.1, 0.6, 3), 0.0), judge(Interval(-1.5, 7.1, 3), 0.0)
    ('agrees', 'open')
    """
    if paper is None:
        return "not in the paper"
    if not ours.n:
        return "not run"
    if ours.n == 1:
        return "one seed"
    if not ours.told:
        return "agrees" if abs(paper) < ALIKE and abs(ours.mean) + ours.half < NARROW else "open"
    if abs(paper) < ALIKE:
        return "paper sees none"
    return "agrees" if (ours.mean > 0) == (paper > 0) else "contradicts"


def order(ours: Sequence[float], paper: Sequence[float]) -> float:
    """Spearman's rank correlation of two rows: 1 = the same order; not a number where a row is all alike.

    >>> order([1, 2, 3], [10, 20, 30]), order([3, 2, 1], [10, 20, 30])
    (1.0, -1.0)
    """
    if min(len(set(ours)), len(set(paper))) < 2:
        return math.nan
    from scipy.stats import spearmanr

    return round(float(spearmanr(ours, paper).statistic), 2)
