"""Waiting for other processes: for what they do, not for a time."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
LINES = 20  # of a log
PATIENCE = 600.0  # seconds; the machine may be slow or busy, so only what hangs takes longer


def until(true: Callable[[], T], what: str, every: float = 0.05, logs: Sequence[Path] = ()) -> T:
    """What it is, as soon as it is true. Where that does not come, the ends of the logs are shown."""
    end = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE:g} s{''.join(map(end_of, logs))}"
        time.sleep(every)
    return found


def end_of(log: Path) -> str:
    """The last lines of a log, for a message."""
    try:
        lines = log.read_text(errors="replace").splitlines() or ["(empty)"]
    except OSError as error:
        lines = [str(error)]
    return "\n".join([f"\n--- the end of {log}:", *lines[-LINES:]])


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of this signal. On Linux."""
    (caught,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
