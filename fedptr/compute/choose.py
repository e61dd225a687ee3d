"""Chooses how a plan's model is computed: in which blocks, on how many threads, compiled or not.

Compiled code rounds differently, so the plan alone decides whether a run is compiled, never a time measurement.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch

from fedptr.compute import malloc, torch_compile
from fedptr.compute.blocks import BlockedTask, choose_block_size, choose_even_size, is_separable
from fedptr.compute.convnet_cpp import BLOCKS, ConvNetCppTask, is_supported
from fedptr.compute.cpp_extension import UnavailableError
from fedptr.compute.memory_estimate import count_auxiliary_images, measure_footprint
from fedptr.compute.workload import Workload
from fedptr.core.task import Classification
from fedptr.messages import print_notice
from fedptr.methods.ptr.trajectory import Trajectory, usual_ipc
from fedptr.types import Batch

LONG = 3e13  # floating-point operations, ten minutes on one core: longer runs are worth a minute of torch.compile
SHORT = 1e12  # longer runs are worth compiling convnet.cpp, once, for some seconds
GRADIENTS = 11 / 3  # cost of one student step of matching: a gradient, and an adjoint of 8/3


def choose_backend(plan: Workload, task: Classification, images: int) -> Classification:
    """The fastest version of the task for a run over `images` training images. Also sets PyTorch's own threads."""
    malloc.keep_freed_memory()
    threads = plan.machine.threads or count_cores()
    if not is_separable(task.model, task.shape, task.classes):
        torch.set_num_threads(threads)
        return task
    torch.set_num_threads(1)
    widest = max(1.0, measure_footprint(task).widest) if task.device == "cpu" else 1.0
    usual = usual_ipc(task.classes) * task.classes  # for every method, so that a comparison computes all alike
    batches = [plan.local.batch, usual]
    options: dict[str, Any] = {
        "device": task.device,
        "block": choose_block_size(widest, batches),
        "chunk": choose_block_size(widest, [1000]),
        "threads": threads if task.device == "cpu" else 1,
    }
    when = plan.machine.compile
    wanted = estimate_flops(plan, task, images) if when == "auto" else math.inf if when == "on" else 0.0
    if is_supported(task) and wanted > SHORT:
        try:
            return ConvNetCppTask(
                task.model, task.shape, task.classes, **{**options, "block": choose_even_size(BLOCKS, batches)}
            )
        except UnavailableError as error:
            print_notice(f"convnet.cpp is not used ({error}); continuing without it, which is slower")
    torch_compile.compile_cache_folder()
    return BlockedTask(task.model, task.shape, task.classes, **options, compiled=wanted > LONG)


def count_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def estimate_flops(plan: Workload, task: Classification, images: int) -> float:
    """Approximate floating-point operations of a whole run: local training, and matching if there is any."""
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.zeros(1, *task.shape, device=task.device)
    with FlopCounterMode(display=False) as counter:
        task.grad(task.init(), Batch(x, torch.zeros(1, dtype=torch.int64, device=task.device)))
    return float(counter.get_total_flops() * count_gradients(plan, task.classes, images))


def count_gradients(plan: Workload, classes: int, images: int) -> float:
    """The work of a whole run in gradients of one image, which needs no model."""
    run, method = plan.run, plan.method
    each = run.participation * images * (plan.local.epochs * method.effort.step + method.effort.full)
    if isinstance(method, Trajectory):
        owners = 1 if method.cost.auxiliary == "server" else run.participation * plan.split.clients
        every = run.rounds if method.mtt_every == "once" else method.mtt_every
        aux = count_auxiliary_images(method, classes)  # none when nothing is projected
        each += GRADIENTS * owners * method.H * method.R * aux / every
    return each * run.rounds
