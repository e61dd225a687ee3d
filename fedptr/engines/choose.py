"""Where a cohort's visits are computed: in this process, or in the worker processes of Ray. Results are the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedptr.core.federation import Visits, visit_all
from fedptr.runs.experiment import Experiment
from fedptr.runs.plan import MachinePlan, Plan

if TYPE_CHECKING:
    from fedptr.engines.ray_pool import Pool


def check(machine: MachinePlan) -> None:
    """Raises what the engine lacks, before anything is begun."""
    if machine.engine == "ray":
        from fedptr.engines import ray_pool as pool

        pool.check(machine.ray_address)


@contextlib.contextmanager
def started(machine: MachinePlan) -> Iterator[Pool | None]:
    """What several runs can share: worker processes, where there are any."""
    if machine.engine == "ray":
        from fedptr.engines.ray_pool import Pool

        with Pool(machine) as pool:
            yield pool
    else:
        yield None


@contextlib.contextmanager
def visits(plan: Plan, experiment: Experiment, pool: Pool | None = None) -> Iterator[Visits]:
    """How the cohorts of a run visit."""
    if plan.machine.engine == "ray":
        from fedptr.engines.ray import Workers

        with Workers(plan, experiment, pool) as workers:
            yield workers
    else:
        yield visit_all
