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

from fedptr.audit.roc import Flags, Floats, Ranking, auc, oracle, thinned, tpr_at
from fedptr.errors import UserError

DRAWS = 1000
RATES = (0.001, 0.01)  # false positives
ENOUGH = 10  # examples of either kind, below which nothing is said
Measures = dict[str, Any]


def measure(scores: Floats, member: Flags, rng: np.random.Generator, draws: int = DRAWS) -> Measures:
    """Everything that is reported of one attack."""
    if not np.isfinite(scores).all():
        raise UserError("the model's outputs are not all finite, so nothing can be said of it; train it anew")
    ranking = Ranking.of(scores, member)
    curve = ranking.roc()
    low, high = bootstrap(ranking, member, rng, draws)
    drawn = thinned(curve)
    return {
        "members": int(member.sum()),
        "non_members": int((~member).sum()),
        "auc": auc(curve),
        "auc_ci95": [low[0], high[0]],
        "accuracy": calibrated(scores, member, rng),
        "accuracy_oracle": oracle(curve),
        "tpr": {f"{rate:g}": tpr_at(curve, rate) for rate in RATES},
        "tpr_ci95": {f"{rate:g}": [low[k], high[k]] for k, rate in enumerate(RATES, 1)},
        "roc": {"fpr": [round(float(v), 7) for v in drawn.fpr], "tpr": [round(float(v), 6) for v in drawn.tpr]},
    }


def bootstrap(ranking: Ranking, member: Flags, rng: np.random.Generator, draws: int) -> tuple[list[float], list[float]]:
    """The 2.5 and 97.5 % quantiles of the AUC and of the TPR at every rate."""
    found = []
    sides = [np.flatnonzero(member), np.flatnonzero(~member)]
    for _ in range(draws):
        weights = np.zeros(len(member))
        for side in sides:
            weights[side] = rng.multinomial(len(side), np.full(len(side), 1 / len(side)))
        curve = ranking.roc(weights)
        found.append([auc(curve), *(tpr_at(curve, rate) for rate in RATES)])
    low, high = np.quantile(np.array(found), [0.025, 0.975], axis=0)
    return low.tolist(), high.tolist()


def calibrated(scores: Floats, member: Flags, rng: np.random.Generator) -> float:
    """The mean of both directions; each half has half of the members and half of the non-members."""
    first = np.zeros(len(member), dtype=bool)
    for side in (np.flatnonzero(member), np.flatnonzero(~member)):
        first[rng.permutation(side)[: len(side) // 2]] = True
    both = ((first, ~first), (~first, first))
    return float(np.mean([at(scores[b], member[b], best(scores[a], member[a])) for a, b in both]))


def best(scores: Floats, member: Flags) -> float:
    """The threshold with the highest balanced accuracy."""
    ranking = Ranking.of(scores, member)
    curve = ranking.roc()
    return float(ranking.thresholds()[(curve.tpr - curve.fpr).argmax()])


def at(scores: Floats, member: Flags, threshold: float) -> float:
    """The balanced accuracy of calling a score of at least `threshold` a member."""
    called = scores >= threshold
    return float((called[member].mean() + (~called[~member]).mean()) / 2)
