"""Whether our numbers agree with the paper's.

A smaller model on less data has other accuracies than the paper's. The sign and size of the gap to the reference in the
same row can be compared, and so can the order of the methods. A gap is the mean of the differences seed by seed, as the
two runs of a seed share everything else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedptr.stats import Interval

ALIKE = 0.5  # points: the paper's smaller gaps count as none, as single runs differ by more
NARROW = 2.0  # points: an interval within this counts as no gap
MEANING = {
    "agrees": "our gap has the paper's sign and its interval does not reach zero, or neither has a gap "
    f"(ours within {NARROW:g} points)",
    "contradicts": "our gap has the other sign",
    "open": "our interval reaches zero",
    "paper sees none": "we see a gap, and the paper's is below half a point",
    "one seed": "no interval, so no verdict",
}


def judge_gap(ours: Interval, paper: float | None) -> str:
    """The verdict on a cell, from our gap to the reference and the paper's.

    >>> [judge_gap(Interval(mean, half, 3), 13.6) for mean, half in ((1.2, 0.5), (-1.2, 0.5), (1.2, 2.5))]
    ['agrees', 'contradicts', 'open']
    >>> judge_gap(Interval(0.1, 0.6, 3), 0.0), judge_gap(Interval(-1.5, 7.1, 3), 0.0)
    ('agrees', 'open')
    """
    if paper is None:
        return "not in the paper"
    if not ours.n:
        return "not run"
    if ours.n == 1:
        return "one seed"
    if not ours.excludes_zero:
        return "agrees" if abs(paper) < ALIKE and abs(ours.mean) + ours.half < NARROW else "open"
    if abs(paper) < ALIKE:
        return "paper sees none"
    return "agrees" if (ours.mean > 0) == (paper > 0) else "contradicts"


def rank_correlation(ours: Sequence[float], paper: Sequence[float]) -> float:
    """Spearman's rank correlation of two rows: 1 = the same order; NaN if all values of a row are equal.

    >>> rank_correlation([1, 2, 3], [10, 20, 30]), rank_correlation([3, 2, 1], [10, 20, 30])
    (1.0, -1.0)
    """
    if min(len(set(ours)), len(set(paper))) < 2:
        return math.nan
    from scipy.stats import spearmanr

    return round(float(spearmanr(ours, paper).statistic), 2)
