"""The instant of a kill."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from wait_until import until

from soak.places import count_lines, files_below, temporary
from soak.processes import Process

WAYS = ("any time", "some rounds", "a write", "a write", "a new file")
QUICK = 0.0005  # seconds between two looks: a write takes milliseconds


def wait_for_instant(process: Process, folder: Path, rng: random.Random, longest: float) -> None:
    """Any time, some rounds later, in the middle of a write, or at the appearance of a file; or the process's end."""
    way, before = rng.choice(WAYS), files_below(folder)
    lines = count_lines(before) + rng.choice((-1, 0, 0, 1))

    def wait(true: Callable[[], bool], what: str) -> None:
        until(lambda: process.poll() is not None or true(), f"{what} in {folder}", every=QUICK)

    if way == "any time":
        end = time.monotonic() + rng.uniform(0, longest)
        wait(lambda: time.monotonic() > end, "an instant")
    elif way == "a new file":
        new = rng.randint(1, 12)
        wait(lambda: len(files_below(folder) - before) >= new, "new files")
    else:
        wait(lambda: count_lines(files_below(folder)) > lines, "the next rounds")
        if way == "a write":
            wait(lambda: bool(temporary(files_below(folder)) - before), "a write")
        time.sleep(rng.choice((0, 0, rng.uniform(0, 0.004), rng.uniform(0, 0.03))))
