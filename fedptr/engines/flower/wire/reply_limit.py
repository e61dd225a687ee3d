"""How large a reply may be. The server writes it down before it asks, and the gate of its SuperLink reads it.

Only the run's own process knows the model that was agreed on; the SuperLink, through which replies arrive, is another
process and was started before. So every run keeps a number in a file of a folder that both know. The SuperLink empties
the folder when it starts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from fedptr.atomic_files import write_text

FOLDER = "FEDPTR_LIMITS"  # the environment variable in which a SuperLink tells its children the folder
SLACK = 8 << 20  # bytes besides the arrays: words, diagnostics, and what Flower puts around them
ENDLESS = 1 << 40


def make_limits_folder(folder: Path) -> None:
    """Makes the folder, without the numbers of earlier runs, and tells this process and its children of it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink(missing_ok=True)
    os.environ[FOLDER] = str(folder.absolute())


def read_limit() -> int:
    """The largest reply, in bytes, that any of the present runs expects; endless where nobody keeps limits."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return ENDLESS
    return max([SLACK, *read_numbers(Path(folder).glob("*.bytes"))])


def read_numbers(files: Iterable[Path]) -> list[int]:
    found = []
    for file in files:
        with contextlib.suppress(OSError, ValueError):  # removed, or written at this moment
            found.append(int(file.read_text(encoding="utf-8")))
    return found


class ReplyLimit:
    """What one run allows: the slack until it expects arrays, then the largest reply it asked for so far."""

    def __init__(self, experiment: str) -> None:
        folder = os.environ.get(FOLDER)
        self.path = Path(folder) / f"{experiment}.bytes" if folder else None
        self.bytes = 0
        self.allow(0)

    def allow(self, arrays: int) -> None:
        """Replies may have arrays of this many bytes from now on."""
        if SLACK + arrays <= self.bytes:
            return
        self.bytes = SLACK + arrays
        if self.path is not None:
            write_text(self.path, f"{self.bytes}\n")
