"""Two ways to start the command line: as a user does, and by forking a process that has imported everything already.

A start takes seconds, most of them imports; a fork takes milliseconds, so that thousands of kills fit into an hour. The
forking process must have no other threads, as those are not forked; so nothing is computed in it. The twin that is left
alone is started as a user does, so a fork that computed something else would be noticed.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from wait_until import until

from fedptr.jobs.run_job import PR_SET_PDEATHSIG

NO_THREADS = (
    "a process with threads cannot be forked; set OMP_NUM_THREADS and OPENBLAS_NUM_THREADS to 1, as `make soak` does"
)


class Process(Protocol):
    pid: int
    returncode: Any

    def poll(self) -> int | None: ...


Start = Callable[[list[str], Path], Process]


def start_as_user(argv: list[str], log: Path) -> Process:
    with open(log, "ab") as words:
        command = [sys.executable, "-m", "fedptr", *argv]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=words, stderr=words, start_new_session=True)


class Forked:
    """A forked process, with what `subprocess.Popen` has."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None

    def poll(self) -> int | None:
        if self.returncode is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if done else None
        return self.returncode


def fork(act: Callable[[], int], at_our_end: signal.Signals = signal.SIGKILL) -> Forked:
    """A process that does this and ends with its result. When this one ends, it gets a signal."""
    assert len(os.listdir("/proc/self/task")) == 1, NO_THREADS
    pid = os.fork()
    if pid:
        return Forked(pid)
    code = 99
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs do not have
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, at_our_end)
        code = act()
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def start_by_fork(argv: list[str], log: Path) -> Process:
    return fork(lambda: run_command_line(argv, log))


def run_command_line(argv: list[str], log: Path) -> int:
    """In a forked process."""
    from fedptr.cli.main import main

    os.setsid()
    words = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(words, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
    sys.argv = ["fedptr", *argv]
    try:
        return main(argv)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1


def import_what_commands_need(*commands: list[str]) -> None:
    """Runs the commands in forks, and imports what they have imported, so that later forks have it."""
    with tempfile.TemporaryDirectory() as scratch:
        log, told = Path(scratch) / "log", Path(scratch) / "modules"

        def run(argv: list[str]) -> int:
            code = run_command_line(argv, log)
            told.write_text("\n".join(sys.modules))
            return code

        for argv in commands:
            code = wait_for(fork(lambda argv=argv: run(argv)), "the first run")  # type: ignore[misc]
            assert code == 0, log.read_text()
            for name in told.read_text().split("\n"):
                with contextlib.suppress(Exception):  # made up by another module
                    importlib.import_module(name)


def wait_for(process: Process, what: str) -> int:
    until(lambda: process.poll() is not None, f"the end of {what}", every=0.01)
    return int(process.returncode)


def kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    wait_for(process, "a killed process")
