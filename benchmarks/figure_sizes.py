"""The ConvNet in C++ for images other than 32×32, beside the plain task: eager PyTorch in whole batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from bench_results import Goal, Row, make_row
from scale import Scale
from separate_process import SeparateProcess
from timing import ratios_by_turn, time_in_turns

from fedptr.compute import malloc
from fedptr.compute.blocks import choose_even_size
from fedptr.compute.convnet_cpp import BLOCKS, ConvNetCppTask
from fedptr.compute.cores import count_cores
from fedptr.core.task import Classification
from fedptr.models.networks import ConvNet
from fedptr.types import Batch

IMAGES, TIMES = 100, 20
KINDS = {  # shape, width, depth
    "8×8, one channel, width 16": ((1, 8, 8), 16, 2),
    "8×8, one channel, width 128": ((1, 8, 8), 128, 3),
    "20×20, three channels, width 32": ((3, 20, 20), 32, 3),
    "46×46, three channels, width 32": ((3, 46, 46), 32, 3),
    "64×64, three channels, width 64": ((3, 64, 64), 64, 4),
}


def make_plain(shape: tuple[int, int, int], width: int, depth: int) -> Classification:
    torch.manual_seed(0)
    return Classification(ConvNet(shape, 10, width, depth), shape, 10)


def work_of(task: Classification, what: str, images: int, repeats: int) -> Callable[[], None]:
    """Some gradients, or adjoints, of one batch."""
    g = torch.Generator().manual_seed(1)
    w, a = task.init(), torch.randn(len(task.init()), generator=g)
    batch = Batch(torch.randn(images, *task.shape, generator=g), torch.randint(10, (images,), generator=g))

    def work() -> None:
        for _ in range(repeats):
            task.grad(w, batch) if what == "gradient" else task.adjoint(w, batch, a)

    return work


def plain_work(
    shape: tuple[int, int, int], width: int, depth: int, what: str, images: int, repeats: int
) -> Callable[[], None]:
    return work_of(make_plain(shape, width, depth), what, images, repeats)


def measure_rows(scale: Scale) -> Iterator[Row]:
    malloc.keep_freed_memory()
    torch.set_num_threads(1)
    images, repeats = scale(IMAGES), scale(TIMES)
    for name, kind in KINDS.items():
        plain = make_plain(*kind)
        block = choose_even_size(BLOCKS, [images])
        ours = ConvNetCppTask(plain.model, plain.shape, 10, block=block, threads=count_cores())
        for what in ("gradient", "adjoint"):
            with contextlib.closing(SeparateProcess(plain_work, *kind, what, images, repeats)) as reference:
                works: dict[str, Callable[[], object]] = {
                    "ours": work_of(ours, what, images, repeats),
                    "plain": reference,
                }
                times = time_in_turns(works, scale.repeats)
            ratios = ratios_by_turn(times, "plain", "ours")
            yield make_row(f"{what} of {images} images, {name}", "eager PyTorch", ratios, "×", Goal("≥", 1), times)
