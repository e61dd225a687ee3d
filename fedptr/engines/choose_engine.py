"""Where the clients of a round train: in this process, or in worker processes of Ray. Results are the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from fedptr.compute.workload import MachinePlan
from fedptr.core.visit import VisitCohort
from fedptr.runs.experiment import Experiment
from fedptr.runs.plan import Plan
from fedptr.runs.runner import Engine, in_process

if TYPE_CHECKING:
    from fedptr.engines.ray.pool import Pool


def check_engine(machine: MachinePlan) -> None:
    """Raises where the engine lacks something, before anything starts."""
    if machine.engine == "ray":
        from fedptr.engines.ray.pool import check_ray

        check_ray(machine.ray_address)


@contextlib.contextmanager
def open_shared_engine(machine: MachinePlan) -> Iterator[Engine]:
    """The engine of several runs, which share its worker processes if it has any."""
    if machine.engine == "ray":
        from fedptr.engines.ray.pool import Pool

        with Pool(machine) as pool:
            yield partial(open_engine, pool=pool)
    else:
        yield open_engine


@contextlib.contextmanager
def open_engine(plan: Plan, experiment: Experiment, pool: Pool | None = None) -> Iterator[VisitCohort]:
    """How the clients of a run train."""
    if plan.machine.engine == "ray":
        from fedptr.engines.ray.visits import Workers

        with Workers(plan, experiment, pool) as workers:
            yield workers
    else:
        with in_process(plan, experiment) as visits:
            yield visits
