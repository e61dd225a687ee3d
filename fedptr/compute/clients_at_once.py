"""How many clients train at the same time in this process; `fedptr.compute.side_by_side` makes them.

For tasks in blocks this changes no bit, whatever the number. Others are computed by PyTorch's own threads, which share
every sum: they train at once only if the plan says so, and each then has its part of the threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedptr.compute.blocks import BlockedTask
from fedptr.compute.cores import count_threads
from fedptr.compute.count_flops import count_flops
from fedptr.compute.memory_estimate import does_fit, measure_footprint
from fedptr.compute.workload import Workload
from fedptr.core.randomness import watch_global_generator
from fedptr.core.task import Classification, ModelTask
from fedptr.messages import print_notice

WORTH = 2e7  # floating-point operations of a step; in shorter ones threads mostly wait for Python


def choose_clients_at_once(plan: Workload, task: ModelTask, clients: Sequence[int], tests: int) -> int:
    """As many as the plan says; by itself one for each thread, if steps are long enough and memory suffices."""
    cohort = plan.run.cohort_size(sum(n > 0 for n in clients))
    asked = asked_at_once(plan, task)
    if asked is not None:
        return min(asked, cohort)
    most = min(count_threads(plan.machine), cohort)
    if most == 1 or not isinstance(task, BlockedTask) or step_flops(plan, task, clients) < WORTH:
        return 1
    foot = measure_footprint(task.joint)
    fitting = (n for n in range(most, 1, -1) if does_fit(plan, foot, task.groups, clients, tests, task.device, n))
    return next(fitting, 1)


def asked_at_once(plan: Workload, task: ModelTask) -> int | None:
    """What the plan says, where clients can train at once at all; None = it says nothing."""
    asked = plan.machine.clients_at_once
    if plan.machine.engine != "local" or task.device != "cpu":
        return 1
    if asked == "auto":
        return None
    if asked > 1 and draws_globally(task):
        print_notice(
            "machine.clients_at_once is not used: the model draws random numbers (dropout), which are one for all"
        )
        return 1
    return asked


def draws_globally(task: ModelTask) -> bool:
    """Whether the model draws from PyTorch's global generator when it is trained."""
    with watch_global_generator() as watch, torch.no_grad():
        task.to_module(task.init()).train()(task.example_inputs(2))
    return watch.used


def step_flops(plan: Workload, task: Classification, clients: Sequence[int]) -> float:
    """Approximate floating-point operations of a local step."""
    batch = min(plan.local.batch, max(clients))
    return batch * count_flops(task)
