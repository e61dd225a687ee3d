"""The server ends when its SuperLink does, so that a resume finds the run folder free.

Flower sees to that in a signal handler, which waits for other threads. Those may wait for a lock that the interrupted
code holds, and then the process stays for ever, with the folder.
"""

from __future__ import annotations

import os
import signal
import threading
import time

GRACE = 30.0  # seconds for Flower to end the process
LOOK = 1.0  # seconds between two looks


def end_with_superlink() -> None:
    """From now on this process outlives the one that started it, which ends with the SuperLink, by `GRACE` at most."""
    threading.Thread(target=end_after, args=(os.getppid(),), daemon=True).start()


def end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)  # the last checkpoint is enough to resume
