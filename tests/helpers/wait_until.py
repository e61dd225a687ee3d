"""Waiting for other processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(true: Callable[[], T], what: str, seconds: float, every: float = 0.05) -> T:
    """What it is, as soon as it is true."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"{what} did not happen within {seconds:g} s"
        time.sleep(every)
    return found
