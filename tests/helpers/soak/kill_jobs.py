"""Queues whose runs are processes of their own: a job is killed, or the queue, with which its jobs must end."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from wait_until import until

from soak.places import tell_place
from soak.processes import Process, kill

MARK = b"fedptr.jobs.run_job"


def jobs_in(folder: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes()
            found += [int(path.parent.name)] if MARK in words and os.fsencode(folder) in words else []
    return found


def kill_job_or_queue(process: Process, folder: Path, before: set[str], rng: random.Random) -> Counter[str]:
    """A job or two while the queue goes on, and then the queue; returns what was hit."""
    hits: Counter[str] = Counter()
    for _ in range(rng.randint(0, 2)):
        until(lambda: jobs_in(folder) or process.poll() is not None, f"a job in {folder}", every=0.01)
        time.sleep(rng.uniform(0, 5))
        for job in jobs_in(folder)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(job, signal.SIGKILL)
                hits[f"a job, {tell_place(folder, before)}"] += 1
    until(lambda: jobs_in(folder) or process.poll() is not None, f"a job in {folder}", every=0.01)
    time.sleep(rng.uniform(0, 5))
    if process.poll() is None:
        kill(process)
        hits[f"a queue with jobs, {tell_place(folder, before)}"] += 1
        until(lambda: not jobs_in(folder), f"the end of the jobs in {folder}")
    return hits
