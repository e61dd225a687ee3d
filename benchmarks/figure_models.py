"""Local training of LeNet and ResNet-18 with GroupNorm, as a run computes it, beside the usual loop.

Several clients train side by side, each on one core, eager and compiled (as in runs of more than ten minutes on one
core). One client alone has all cores for its blocks, which needs batches of some size: a batch of LeNet's that fits
into one block is computed by one core. For context it has one core, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import torch
from bench_results import Goal, Row, make_row
from our_side import endless_rounds, train_client
from plain_references import train_plain_loop
from scale import Scale
from separate_process import SeparateProcess
from timing import Times, Work, quartiles, ratios_by_turn, time_in_turns
from torch import nn
from torch.utils.data import TensorDataset
from workload import CLASSES, SHAPE, make_images

from fedptr.compute import malloc
from fedptr.compute.blocks import BlockedTask, choose_block_size
from fedptr.compute.cores import count_cores
from fedptr.compute.memory_estimate import measure_footprint
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.methods.fedavg import FedAvg
from fedptr.models.networks import LeNet, ResNet18

KINDS: dict[str, tuple[int, int, int]] = {  # width (0 = it has none), images, batch
    "lenet, batch 50": (0, 1000, 50),
    "lenet, batch 500": (0, 1000, 500),
    "resnet18, width 16, batch 50": (16, 200, 50),
    "resnet18, width 64, batch 50": (64, 100, 50),
}


CLIENTS = 4  # that train side by side


def make_model(width: int) -> nn.Module:
    torch.manual_seed(0)
    return ResNet18(SHAPE, CLASSES, width) if width else LeNet(SHAPE, CLASSES)


def plain_work(width: int, n: int, batch: int, threads: int, clients: int) -> Callable[[], object]:
    if threads:
        torch.set_num_threads(threads)
    model, data = make_model(width), TensorDataset(*make_images(n))

    def work() -> None:
        for _ in range(clients):
            train_plain_loop(model, data, batch)

    return work


def make_blocked_task(width: int, batch: int, threads: int, compiled: bool = False) -> BlockedTask:
    """In the blocks that `fedptr.compute.choose` would take."""
    model = make_model(width)
    widest = measure_footprint(Classification(model, SHAPE, CLASSES)).widest
    block = choose_block_size(widest, [batch, 100])
    return BlockedTask(model, SHAPE, CLASSES, block=block, threads=threads, compiled=compiled)


def measure_rows(scale: Scale) -> Iterator[Row]:
    malloc.keep_freed_memory()
    torch.set_num_threads(1)
    for name, (width, images, batch) in KINDS.items():
        n = scale(images)
        data = Samples(*make_images(n))
        figure = f"local training, {name}"

        def round_work(compiled: bool, width: int = width, batch: int = batch, data: Samples = data) -> Work:
            task = make_blocked_task(width, batch, count_cores(), compiled)
            return partial(next, endless_rounds(FedAvg(), task, [data] * CLIENTS, batch))

        ways: dict[str, Work] = {"ours": round_work(False), "compiled": round_work(True)}
        with contextlib.closing(SeparateProcess(plain_work, width, n, batch, 0, CLIENTS)) as reference:
            times = time_in_turns({**ways, "plain": reference}, scale.repeats)
        for way, goal in (("ours", Goal("≥", 1.3)), ("compiled", None)):
            told = f"{figure}, {CLIENTS} clients" + (", compiled" if way == "compiled" else "")
            yield compare(told, times, way, n * CLIENTS, goal)
        for cores, threads in (("all cores", 0), ("one core", 1)):
            task = make_blocked_task(width, batch, threads or count_cores())
            with contextlib.closing(SeparateProcess(plain_work, width, n, batch, threads, 1)) as reference:
                works: dict[str, Work] = {"ours": partial(train_client, task, data, batch), "plain": reference}
                times = time_in_turns(works, scale.repeats)
            yield compare(f"{figure}, one client, {cores}", times, "ours", n, None if threads else Goal("≥", 1.0))


def compare(figure: str, times: Times, ours: str, images: int, goal: Goal | None) -> Row:
    mine, theirs = (images / quartiles(times[who]).median for who in (ours, "plain"))
    note = f"{mine:.0f} against {theirs:.0f} images/s"
    return make_row(figure, "plain eager loop", ratios_by_turn(times, "plain", ours), "×", goal, times, note)
