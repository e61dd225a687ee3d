"""Numbers read from files that anybody may have written, and the confidence interval of a mean."""

from __future__ import annotations

import math
from typing import Any

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
