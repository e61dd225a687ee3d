"""A run of a queue as a process of its own: `python -m fedptr.jobs.run_job PARENT resume FOLDER --rounds N`.

It is the command line, in a process that ends when the queue's does, however that happens: if it lived on, it would
hold the folder that the queue, started again, resumes. A run killed like this loses what came after its checkpoint.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with_parent(parent: int) -> None:
    """Linux only; elsewhere jobs of a killed queue live on until they are done."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before we could ask
        sys.exit(1)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    sys.argv = ["fedptr", *sys.argv[2:]]
    runpy.run_module("fedptr", run_name="__main__")
