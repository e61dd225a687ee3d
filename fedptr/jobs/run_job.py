"""A run of a queue as a process of its own: `python -m fedptr.jobs.run_job PARENT FOLDER ROUNDS`.

It ends when the process of the queue does, however that happens: if it lived on, it would hold the folder that the
queue, started again, goes on with. Killed so, a run loses what came after its last checkpoint.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from fedptr.cli.main import main

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with(parent: int) -> None:
    """Linux only; elsewhere jobs of a killed queue live on until they are done."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before we could ask
        sys.exit(1)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    sys.exit(main(["resume", sys.argv[2], "--rounds", sys.argv[3]]))
