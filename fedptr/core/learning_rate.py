"""The learning rate of a round. Every engine asks this one function.

    constant   1                                                 step   step_factorˢ after s times step_every rounds
    cosine     from 1 to final_lr over the run, along half a cosine

times decayᵗ in round t, and in the first `warmup` rounds times (t+1)/(warmup+1). Cosine starts after warm-up; steps and
decay count rounds from the first one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedptr.core.local_training import Local


def rate_of_round(local: Local, t: int, rounds: int) -> float:
    """The learning rate of round t, counted from 0, of a run that is planned for this many rounds.

    >>> from fedptr.core.local_training import Local
    >>> [round(rate_of_round(Local(lr=0.8, schedule="cosine", final_lr=0.1), t, 4), 3) for t in range(4)]
    [0.8, 0.695, 0.44, 0.185]
    >>> [rate_of_round(Local(lr=0.8, warmup=3), t, 5) for t in range(5)]
    [0.2, 0.4, 0.6000000000000001, 0.8, 0.8]
    """
    rate = local.lr * local.decay**t
    if t < local.warmup:
        rate *= (t + 1) / (local.warmup + 1)
    elif local.schedule == "cosine":
        done = (t - local.warmup) / (rounds - local.warmup)
        rate *= local.final_lr + (1 - local.final_lr) * (1 + math.cos(math.pi * done)) / 2
    if local.schedule == "step":
        rate *= local.step_factor ** (t // local.step_every)
    return rate


def depends_on_rounds(local: Local) -> bool:
    """Whether the rate of a round depends on how many rounds there will be, so that a run cannot be made longer."""
    return local.schedule == "cosine"
