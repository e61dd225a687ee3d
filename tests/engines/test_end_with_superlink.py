"""A server whose SuperLink was killed ends, even where it can do nothing else any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from wait_until import until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc")

SERVER = """
import os, threading
from fedptr.engines.flower.server import end_with_superlink as ending
ending.GRACE = 0.0
ending.end_with_superlink()
print(os.getpid(), flush=True)
lock = threading.Lock()
lock.acquire()
lock.acquire()  # as Flower's signal handler does
"""
SUPERLINK = "import subprocess, sys; subprocess.call([sys.executable, '-c', sys.argv[1]])"


def is_running(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # empty of one that nobody has waited for
    except OSError:
        return False


def test_a_server_that_hangs_does_not_outlive_its_superlink() -> None:
    with subprocess.Popen([sys.executable, "-c", SUPERLINK, SERVER], stdout=subprocess.PIPE) as superlink:
        assert superlink.stdout is not None
        server = int(superlink.stdout.readline())
        assert is_running(server)
        superlink.kill()
        until(lambda: not is_running(server), "the end of the server")
