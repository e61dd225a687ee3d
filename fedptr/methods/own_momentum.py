"""Local momentum that a method decides: control variates and server momentum are derived for plain local steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from fedptr.core.local_training import Local
from fedptr.settings import setting


def momentum_setting() -> Any:
    """The field `momentum` of such a method, where it wants it among its settings."""
    return setting(0.0, 'local momentum; "local" = as in local.momentum', ge=0, lt=1)


class OwnMomentum:
    """Of a method that has the field `momentum`: clients train with it, whatever the plan says."""

    momentum: float | Literal["local"]

    def settings(self, local: Local) -> Local:
        return local if self.momentum == "local" else replace(local, momentum=self.momentum)


def counted_steps(K: int, rho: float) -> float:
    """Σ over K momentum steps of the weight a constant gradient gets: K without momentum, towards K/(1−ρ) with it.

    >>> round(counted_steps(10, 0.5), 1)
    18.0
    """
    return (K - rho * (1 - rho**K) / (1 - rho)) / (1 - rho)
