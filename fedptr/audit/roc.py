"""ROC curves: who is called a member if everybody with at least some score is.

    member   whether an example was trained on          score   higher = more likely a member

Ties are one step, so no order within them is made up.

>>> r = Ranking.from_scores([3.0, 2.0, 2.0, 1.0], [True, True, False, False])
>>> area_under_curve(r.roc()), oracle_accuracy(r.roc()), tpr_at_fpr(r.roc(), 0.0)
(0.875, 0.75, 0.5)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class RocCurve(NamedTuple):
    """From nobody to everybody; both begin with 0 and end with 1."""

    fpr: Floats
    tpr: Floats


class Ranking(NamedTuple):
    """The examples by falling score, so that curves of many weightings need one sort."""

    order: npt.NDArray[np.int64]
    member: Flags
    ends: npt.NDArray[np.int64]  # the last place of every run of equal scores
    score: Floats  # at these places

    @classmethod
    def from_scores(cls, scores: npt.ArrayLike, member: npt.ArrayLike) -> Ranking:
        values, flags = np.asarray(scores, dtype=np.float64), np.asarray(member, dtype=bool)
        order = np.argsort(-values, kind="stable")
        ends = np.append(np.flatnonzero(np.diff(values[order])), len(values) - 1)
        return cls(order, flags[order], ends, values[order][ends])

    def roc(self, weights: Floats | None = None) -> RocCurve:
        """`weights` of the examples, in their own order: how often each is there."""
        w = np.ones(len(self.order)) if weights is None else weights[self.order]
        tp, fp = (np.cumsum(np.where(who, w, 0.0))[self.ends] for who in (self.member, ~self.member))
        return RocCurve(np.append(0.0, fp / fp[-1]), np.append(0.0, tp / tp[-1]))

    def thresholds(self) -> Floats:
        """A score τ for every point of the curve, so that "score ≥ τ" is that point; halfway between neighbours."""
        between = (self.score[1:] + self.score[:-1]) / 2
        return np.concatenate([[np.inf], between, [-np.inf]])


def area_under_curve(roc: RocCurve) -> float:
    """The area: how likely a member has a higher score than a non-member, ties counted half."""
    return float(np.sum(np.diff(roc.fpr) * (roc.tpr[1:] + roc.tpr[:-1])) / 2)


def oracle_accuracy(roc: RocCurve) -> float:
    """The best balanced accuracy of any threshold: an upper bound, as it is chosen knowing the answers."""
    return float((1 + (roc.tpr - roc.fpr).max()) / 2)


def tpr_at_fpr(roc: RocCurve, fpr: float) -> float:
    """The highest TPR at this FPR or less, without interpolation."""
    return float(roc.tpr[roc.fpr <= fpr + 1e-12].max())


def thin_curve(roc: RocCurve, points: int = 120) -> RocCurve:
    """What a plot with logarithmic axes needs: TPR at evenly spread powers of FPR."""
    least = roc.fpr[roc.fpr > 0].min()
    grid = np.geomspace(least, 1.0, points)
    at = np.searchsorted(roc.fpr, grid + 1e-12, side="right") - 1
    return RocCurve(grid, roc.tpr[at])
