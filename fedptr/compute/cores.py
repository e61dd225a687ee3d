"""The processor cores that this process may use."""

from __future__ import annotations

import os

from fedptr.compute.workload import MachinePlan


def count_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_threads(machine: MachinePlan) -> int:
    """The threads that a plan asks for."""
    return machine.threads or count_cores()
