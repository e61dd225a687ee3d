"""What killed processes leave in a run folder: half-written files (`.plan.toml.123.tmp`) and clients' states.

The process that holds the folder's lock removes them. It leaves those of a living process alone: an export or an audit
writes into a run folder without its lock. Its number says whose a file is; on another machine that shares the folder a
process cannot be looked up, so what may be written without the lock stays for a day.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from pathlib import Path

CHECKPOINTS, AUXILIARY, UNFINISHED = "checkpoint", "auxiliary", "unfinished"  # folders in a run folder
STATES = "states-*"  # see fedptr.core.client_states
SCRATCH = re.compile(r"\.(.+)\.([0-9]{1,18})\.tmp")  # see fedptr.atomic_files
WITHOUT_LOCK = re.compile(r"model\..*|phi.*|report\.html")
DAY = 24 * 3600  # seconds


def remove_leftovers(folder: Path) -> None:
    """What no living process needs; of a folder whose lock is held."""
    with contextlib.suppress(OSError):  # a folder that cannot be read or written is for others to report
        for place in (folder, folder / CHECKPOINTS, folder / AUXILIARY, folder / UNFINISHED):
            for path in place.glob(".*.tmp"):
                if not place.is_symlink() and not path.is_dir() and is_leftover(path):
                    path.unlink(missing_ok=True)
        for path in (folder / CHECKPOINTS).glob(STATES):
            if not path.is_symlink() and not path.parent.is_symlink():
                shutil.rmtree(path, ignore_errors=True)


def is_leftover(path: Path) -> bool:
    match = SCRATCH.fullmatch(path.name)
    if match is None:
        return False
    number = int(match[2])
    if number != os.getpid() and is_process_alive(number):  # our own number: the process before us had it, too
        return False
    return not WITHOUT_LOCK.fullmatch(match[1]) or path.lstat().st_mtime < time.time() - DAY


def is_process_alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        pass
    return True
