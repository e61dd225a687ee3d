"""Chooses how a plan's model is computed: in which blocks, on how many threads, compiled or not.

Compiled code rounds differently, so the plan alone decides whether a run is compiled, never a time measurement.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch

from fedptr.compute import malloc, torch_compile
from fedptr.compute.blocks import BlockedTask, choose_block_size, choose_even_size, is_separable
from fedptr.compute.clients_at_once import asked_at_once
from fedptr.compute.compiler import UnavailableError
from fedptr.compute.convnet_cpp import BLOCKS, ConvNetCppTask, find_obstacle
from fedptr.compute.cores import count_threads
from fedptr.compute.count_flops import count_flops
from fedptr.compute.memory_estimate import count_auxiliary_images, measure_footprint
from fedptr.compute.workload import Workload
from fedptr.core.method import EACH_SAMPLE
from fedptr.core.task import Classification, ModelTask
from fedptr.messages import print_notice
from fedptr.methods.ptr.trajectory import Trajectory, usual_ipc
from fedptr.methods.sent_sets import SetSender
from fedptr.models.networks import ConvNet

LONG = 3e13  # floating-point operations, ten minutes on one core: longer runs are worth a minute of torch.compile
WORTH_COMPILING: tuple[type, ...] = (ConvNet,)  # on CPUs; compiled LeNets and ResNets are no faster than eager ones
SHORT = 1e10  # about a second: longer runs are worth compiling convnet.cpp, once, for some seconds
GRADIENTS = 11 / 3  # cost of one student step of matching: a gradient, and an adjoint of 8/3


say_once = cache(print_notice)  # a comparison chooses once for every method


def choose_backend(plan: Workload, task: ModelTask, images: int) -> ModelTask:
    """The fastest version of the task for a run over `images` training images. Also sets PyTorch's own threads."""
    malloc.keep_freed_memory()
    threads = count_threads(plan.machine)
    if not isinstance(task, Classification) or not is_separable(task.model, task.shape, task.classes):
        torch.set_num_threads(max(1, threads // (asked_at_once(plan, task) or 1)))
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
        "local": task.local,
    }
    when = plan.machine.compile
    wanted = estimate_flops(plan, task, images) if when == "auto" else math.inf if when == "on" else 0.0
    if type(task.model) is ConvNet and wanted > SHORT:
        try:
            if obstacle := find_obstacle(task):
                raise UnavailableError(obstacle)
            return ConvNetCppTask(
                task.model, task.shape, task.classes, **{**options, "block": choose_even_size(BLOCKS, batches)}
            )
        except UnavailableError as error:
            say_once(f"convnet.cpp is not used ({error}); continuing without it, which is slower")
    torch_compile.compile_cache_folder()
    pays = when == "on" or task.device != "cpu" or type(task.model) in WORTH_COMPILING
    # Compiled code is for one kind of input, and a text comes as tokens or as vectors.
    compiled = wanted > LONG and pays and not hasattr(task.model, "embed")
    return BlockedTask(task.model, task.shape, task.classes, **options, compiled=compiled)


def estimate_flops(plan: Workload, task: Classification, images: int) -> float:
    """Approximate floating-point operations of a whole run: local training, and matching if there is any."""
    return count_flops(task) * count_gradients(plan, task.classes, images)


def count_gradients(plan: Workload, classes: int, images: int) -> float:
    """The work of a whole run in gradients of one image, which needs no model."""
    run, method = plan.run, plan.method
    each = run.participation * images * (plan.local.epochs * method.effort.step + method.effort.full)
    if isinstance(method, Trajectory):
        owners = 1 if method.cost.auxiliary == "server" else run.participation * plan.split.clients
        every = run.rounds if method.mtt_every == "once" else method.mtt_every
        aux = count_auxiliary_images(method, classes)  # none when nothing is projected
        each += GRADIENTS * owners * method.H * method.gradients_per_step * aux / every
    if isinstance(method, SetSender):
        rows = method.most_rows(classes)
        union = images if rows == EACH_SAMPLE else plan.split.clients * rows
        each += method.server_gradients(run.participation * union)
        each += run.participation * plan.split.clients * method.client_gradients(classes)
    return each * run.rounds
