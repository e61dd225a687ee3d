"""Several ways to do the same work, run in turns, and how their times compare within each turn.

The speed of a shared machine varies. So everything that is compared runs in the same turn, seconds apart, next to a
matrix product that shows how fast the machine is. Reported is the median of the ratios within the turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from fedptr.compute.cores import count_cores

GEMM = "gemm"
SIDE, PRODUCTS = 2048, 3

Work = Callable[[], object]
Times = dict[str, list[float]]


class Spread(NamedTuple):
    """The median of some repeats and their quartiles."""

    median: float
    low: float
    high: float


def time_in_turns(candidates: Mapping[str, Work], repeats: int) -> Times:
    """Seconds of every candidate, and of the calibration, in each repeat; every other repeat reverses the order.

    Each runs once before, unmeasured: what is compiled or started only once is not part of a figure.
    """
    works = {GEMM: make_gemm(), **candidates}
    for work in works.values():
        work()
    taken: Times = {name: [] for name in works}
    for turn in range(repeats):
        for name in sorted(works, reverse=bool(turn % 2)):
            began = time.perf_counter()
            works[name]()
            taken[name].append(time.perf_counter() - began)
    return taken


def make_gemm() -> Work:
    """A few float32 products of square matrices on all cores: as fast as this machine can multiply."""
    a, b, c = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE), torch.empty(SIDE, SIDE)

    def work() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(count_cores())
        for _ in range(PRODUCTS):
            torch.mm(a, b, out=c)
        torch.set_num_threads(before)

    return work


def gemm_speed(times: Times) -> Spread:
    """GFLOP/s of the calibration; a product of n×n matrices is 2n³ operations."""
    return quartiles([PRODUCTS * 2 * SIDE**3 / seconds / 1e9 for seconds in times[GEMM]])


def ratios_by_turn(times: Times, slow: str, fast: str) -> list[float]:
    """How many times as long as `fast` the work `slow` took, repeat by repeat.

    >>> ratios_by_turn({"a": [4.0, 6.0], "b": [2.0, 2.0]}, "a", "b")
    [2.0, 3.0]
    """
    return [a / b for a, b in zip(times[slow], times[fast], strict=True)]


def quartiles(values: Sequence[float]) -> Spread:
    """
    >>> quartiles([3.0, 1.0, 2.0])
    Spread(median=2.0, low=1.5, high=2.5)
    """
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)
