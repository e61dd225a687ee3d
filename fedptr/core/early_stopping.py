"""Early stopping: `run.target` and `run.patience` end a run before its last round.

All that it needs to know of the rounds before is in `BestScore`, which a run carries and a checkpoint keeps. So a run
that is resumed stops at the round at which it would have stopped anyway.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fedptr.headline import find_headline

if TYPE_CHECKING:
    from fedptr.core.federation import Rounds
    from fedptr.core.run import Run

STOPPED = "stopped_early"  # in the summary of such a run: its last round, and why


class BestScore(NamedTuple):
    """The best score so far, and how many evaluations came after it."""

    score: float = -math.inf
    waited: int = 0

    def after(self, score: float) -> BestScore:
        """A score that is no number is no new best.

        >>> BestScore().after(0.5).after(0.4).after(math.nan)
        BestScore(score=0.5, waited=2)
        """
        return BestScore(score) if score > self.score else BestScore(self.score, self.waited + 1)


NO_SCORE = BestScore()  # before the first evaluation


def headline_score(record: Mapping[str, Any]) -> float | None:
    """The score that a run is judged by: on the test set, or else on the clients' own; None = it was not evaluated."""
    score = record.get(find_headline(record).test, record.get("client_accuracy"))
    return None if score is None else float(score)


def update_best(best: BestScore, record: Mapping[str, Any], t: int, rounds: Rounds) -> BestScore:
    """After round t, counted from 1. Only evaluations count that a longer run makes too."""
    score = headline_score(record)
    stops = rounds.target or rounds.patience
    return best if not stops or score is None or t % rounds.eval_every else best.after(score)


def why_stopped(run: Run, rounds: Rounds) -> str:
    """Why a run that has rounds left ends here, in words; empty if it does not."""
    score, waited = run.best
    if run.round >= rounds.rounds or not run.evaluated:
        return ""
    if rounds.target and score >= rounds.target:
        return f"the test score {score:.4f} reached run.target = {rounds.target:g}"
    if rounds.patience and waited >= rounds.patience:
        return f"no new best in {waited} evaluations (run.patience); the best score was {score:.4f}"
    return ""


def has_ended(run: Run, rounds: Rounds) -> bool:
    """Whether nothing is left to do."""
    return run.evaluated and (run.round >= rounds.rounds or bool(why_stopped(run, rounds)))


def has_enough_rounds(summary: Mapping[str, Any], rounds: int) -> bool:
    """Whether a finished run with this summary needs no more rounds to count as one of this length."""
    return bool(summary["rounds"] >= rounds or STOPPED in summary)
