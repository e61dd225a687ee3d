"""An attack's numbers from its scores.

    accuracy          balanced; the threshold is chosen on a random half and scored on the other, both ways: headline
    accuracy_oracle   with the best threshold in hindsight: an upper bound, and what LiRA's own code calls accuracy
    tpr               true positives at a false-positive rate: what an attacker gets who must not be wrong often

Intervals are 95 % percentile bootstrap intervals over examples, members and non-members drawn apart. They say how much
another audit set would change the number, not another training of the target.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedptr.audit.roc import Flags, Floats, Ranking, area_under_curve, oracle_accuracy, thin_curve, tpr_at_fpr
from fedptr.errors import UserError

DRAWS = 1000
RATES = (0.001, 0.01)  # false positives
ENOUGH = 10  # examples of either kind; with fewer, no number is given
Measures = dict[str, Any]


def measure_attack(scores: Floats, member: Flags, rng: np.random.Generator, draws: int = DRAWS) -> Measures:
    """All numbers that are reported for one attack."""
    if not np.isfinite(scores).all():
        raise UserError("the model's outputs are not all finite, so nothing can be said of it; train it again")
    ranking = Ranking.from_scores(scores, member)
    curve = ranking.roc()
    low, high = bootstrap_intervals(ranking, member, rng, draws)
    drawn = thin_curve(curve)
    return {
        "members": int(member.sum()),
        "non_members": int((~member).sum()),
        "auc": area_under_curve(curve),
        "auc_ci95": [low[0], high[0]],
        "accuracy": calibrated_accuracy(scores, member, rng),
        "accuracy_oracle": oracle_accuracy(curve),
        "tpr": {f"{rate:g}": tpr_at_fpr(curve, rate) for rate in RATES},
        "tpr_ci95": {f"{rate:g}": [low[k], high[k]] for k, rate in enumerate(RATES, 1)},
        "roc": {"fpr": [round(float(v), 7) for v in drawn.fpr], "tpr": [round(float(v), 6) for v in drawn.tpr]},
    }


def bootstrap_intervals(
    ranking: Ranking, member: Flags, rng: np.random.Generator, draws: int
) -> tuple[list[float], list[float]]:
    """The 2.5 and 97.5 % quantiles of the AUC and of the TPR at every rate."""
    found = []
    sides = [np.flatnonzero(member), np.flatnonzero(~member)]
    for _ in range(draws):
        weights = np.zeros(len(member))
        for side in sides:
            weights[side] = rng.multinomial(len(side), np.full(len(side), 1 / len(side)))
        curve = ranking.roc(weights)
        found.append([area_under_curve(curve), *(tpr_at_fpr(curve, rate) for rate in RATES)])
    low, high = np.quantile(np.array(found), [0.025, 0.975], axis=0)
    return low.tolist(), high.tolist()


def calibrated_accuracy(scores: Floats, member: Flags, rng: np.random.Generator) -> float:
    """The mean of both directions; each half has half of the members and half of the non-members."""
    first = np.zeros(len(member), dtype=bool)
    for side in (np.flatnonzero(member), np.flatnonzero(~member)):
        first[rng.permutation(side)[: len(side) // 2]] = True
    both = ((first, ~first), (~first, first))
    return float(
        np.mean([accuracy_at(scores[b], member[b], find_best_threshold(scores[a], member[a])) for a, b in both])
    )


def find_best_threshold(scores: Floats, member: Flags) -> float:
    """The threshold with the highest balanced accuracy."""
    ranking = Ranking.from_scores(scores, member)
    curve = ranking.roc()
    return float(ranking.thresholds()[(curve.tpr - curve.fpr).argmax()])


def accuracy_at(scores: Floats, member: Flags, threshold: float) -> float:
    """The balanced accuracy of calling a score of at least `threshold` a member."""
    called = scores >= threshold
    return float((called[member].mean() + (~called[~member]).mean()) / 2)
