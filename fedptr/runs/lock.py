"""One process at a time in a run folder, and what happens when it is asked to stop."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any

from fedptr.errors import UserError
from fedptr.runs.leftovers import remove_leftovers

NAME = "lock"
LONGEST = 10_000  # characters that are read of a lock
TRIES, PAUSE = 5, 0.02  # looks at a folder that is in use, and the seconds between two, on average


class NoLockError(UserError):
    """What bears the lock's name is not a file."""


class StoppedError(Exception):
    """The run was asked to stop and did, after a round, with everything saved."""

    def __init__(self, folder: Path, round_: int, signal_number: int, words: str = "") -> None:
        super().__init__(words or f"stopped after round {round_}; continue with `fedptr resume {folder}`")
        self.round, self.signal_number = round_, signal_number


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder; the system lets go of it when the process ends, however that happens.

    What killed processes left in it is removed.
    """
    import fcntl

    with open_lock(folder, os.O_RDWR | os.O_CREAT) as file:
        left = TRIES
        while not try_to_lock(file, fcntl.LOCK_EX):
            left -= not try_to_lock(file, fcntl.LOCK_SH)  # where this succeeds, it was only somebody who looked
            if not left:
                words = f"{folder} is in use by {describe_holder(folder)}"
                raise UserError(f"{words}; wait for it, or choose another folder") from None
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(random.uniform(0, 2 * PAUSE))  # another that waits like this must not do so in step
        file.truncate(0)
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        file.write(json.dumps(who))
        file.flush()
        remove_leftovers(folder)
        yield


def open_lock(folder: Path, flags: int) -> IO[str]:
    """The lock's file, which nothing may stand in for: a link would have its target overwritten, a pipe would block."""
    path = folder / NAME
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise NoLockError(f"{path} is not a plain file; remove it") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NoLockError(f"{path} is not a plain file; remove it")
    return open(descriptor, "r+" if flags & os.O_RDWR else "r", encoding="utf-8", errors="replace")


def try_to_lock(file: IO[str], how: int) -> bool:
    import fcntl

    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


def is_folder_in_use(folder: Path) -> bool:
    """Whether a process holds the folder. To look is to share it for an instant; `locked` waits for the end of that."""
    import fcntl

    try:
        with open_lock(folder, os.O_RDONLY) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except (OSError, NoLockError):  # there is no lock
        return False


def read_holder(folder: Path) -> dict[str, Any] | None:
    """Who holds the folder, or held it last: `pid`, `host` and `since`."""
    try:
        with open_lock(folder, os.O_RDONLY) as file:
            who = json.loads(file.read(LONGEST))
        return {name: who[name] for name in ("pid", "host", "since")}
    except (OSError, NoLockError, ValueError, KeyError, TypeError, RecursionError):
        return None


def describe_holder(folder: Path) -> str:
    who = read_holder(folder)
    return f"process {who['pid']} on {who['host']} since {who['since']}" if who else "another process"


class StopRequest:
    """Set by the first Ctrl-C or SIGTERM; the second stops at once, and `advice` says how to continue."""

    number = 0

    def __init__(self, advice: str) -> None:
        self.advice = advice

    def ask(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            raise KeyboardInterrupt(self.advice)
        self.number = number
        with contextlib.suppress(OSError):
            # Not print: the signal may have come in the middle of one, which may not be entered twice.
            os.write(2, b"fedptr: stopping after this round; again to stop at once\n")


def advise_resume(folder: Path) -> str:
    """What to do after a run in this folder was stopped at once."""
    return f"continue from the last checkpoint with `fedptr resume {folder}`"


@contextlib.contextmanager
def defer_signals(advice: str) -> Iterator[StopRequest]:
    """While inside, asking to stop only sets a flag; the loop looks at it when a round is done."""
    stop = StopRequest(advice)
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield stop
        return
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
