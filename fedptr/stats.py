"""Numbers read from files that anybody may have written, and confidence intervals of means over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

LARGEST = 1e100  # no measurement is larger
Floats = npt.NDArray[np.float64]


def is_usable_number(value: Any) -> bool:
    """Whether a value is a number, finite and of a plausible size."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def number_or_nan(value: Any) -> float:
    """The value as a float; NaN if it is not a usable number."""
    return float(value) if is_usable_number(value) else math.nan


def mean_with_interval(values: npt.ArrayLike) -> tuple[Floats, Floats | None]:
    """The mean over the rows, and the half width of its 95 % confidence interval if there are at least two rows.

    >>> mean, half = mean_with_interval([[1.0], [2.0], [3.0]])
    >>> float(mean[0]), round(float(half[0]), 3)
    (2.0, 2.484)
    """
    from scipy import stats

    rows = np.asarray(values, dtype=np.float64)
    n = len(rows)
    if n < 2:
        return rows.mean(axis=0), None
    return rows.mean(axis=0), float(stats.t.ppf(0.975, n - 1)) * rows.std(axis=0, ddof=1) / math.sqrt(n)


class Interval(NamedTuple):
    """A mean over seeds with the half width of its 95 % confidence interval (Student's t); one value has none."""

    mean: float
    half: float
    n: int

    @property
    def excludes_zero(self) -> bool:
        return self.n > 1 and abs(self.mean) > self.half

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" ± {self.half:.2f}" if self.n > 1 else "")


def compute_interval(values: Sequence[float]) -> Interval:
    """
    >>> str(compute_interval([1.0, 2.0, 3.0]))
    '2.00 ± 2.48'
    """
    if not values:
        return Interval(math.nan, math.nan, 0)
    mean, half = mean_with_interval(values)
    return Interval(float(mean), math.nan if half is None else float(half), len(values))


def compute_gap(ours: Mapping[int, float], reference: Mapping[int, float]) -> Interval:
    """The mean difference over the seeds that both have."""
    return compute_interval([ours[seed] - reference[seed] for seed in sorted(ours.keys() & reference.keys())])
