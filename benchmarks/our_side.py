"""Our side of every figure, through the same functions that a run uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from workload import CLASSES, SHAPE, make_images, make_network

from fedptr.compute import malloc
from fedptr.compute.blocks import choose_even_size
from fedptr.compute.convnet_cpp import BLOCKS, ConvNetCppTask
from fedptr.compute.cores import count_cores
from fedptr.compute.side_by_side import SideBySide
from fedptr.core.federation import Rounds, Run, federate
from fedptr.core.local_training import Local, TrainedModel
from fedptr.core.method import Site
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.core.visit import VisitCohort
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.ptr.auxiliary import Auxiliary, MatchingSettings, StudentStep, draw_steps
from fedptr.methods.ptr.by_trajectory import meta_gradient
from fedptr.types import Batch


def make_fast_task(width: int, dtype: torch.dtype = torch.float32, threads: int = 0) -> Classification:
    """The task as a user's long run computes it; 0 threads = one for every core. Change this when that changes."""
    malloc.keep_freed_memory()
    torch.set_num_threads(1)
    return ConvNetCppTask(
        make_network(width).to(dtype),
        SHAPE,
        CLASSES,
        block=choose_even_size(BLOCKS, [500, 100]),
        threads=threads or count_cores(),
    )


def make_plain_task(width: int, dtype: torch.dtype = torch.float32) -> Classification:
    """The task for a reference: memory and threads stay at their defaults."""
    return Classification(make_network(width).to(dtype), SHAPE, CLASSES)


def make_site(task: Classification, data: Samples | None, local: Local) -> Site:
    return Site(task, local, Key(0).at("bench"), 0, 10, data)


def train_client(task: Classification, data: Samples, batch: int) -> TrainedModel:
    """One epoch of a FedAvg client."""
    return FedAvg().train({"x": task.init()}, {}, make_site(task, data, Local(batch=batch)), {})[0]


def endless_rounds(
    method: FedAvg,
    task: Classification,
    clients: list[Samples],
    batch: int,
    start: Run | None = None,
    visits: VisitCohort | None = None,
) -> Iterator[Run]:
    """Rounds without end, one at a time; clients side by side, as in a user's run, or as `visits` has them."""
    visits = visits or SideBySide(min(count_cores(), len(clients)))
    rounds, local = Rounds(rounds=1_000_000), Local(batch=batch)
    return federate(method, task, clients, None, rounds, local, start=start, visits=visits)


@dataclass(frozen=True)
class MatchingProblem:
    """One outer step: a stretch of real training to match, auxiliary images, and the student's random draws."""

    task: Classification
    start: Tensor
    end: Tensor
    aux: Auxiliary
    steps: list[StudentStep]

    def solve(self) -> tuple[float, Tensor, Tensor]:
        return meta_gradient(self.task, self.start, self.end, self.aux, self.steps)[:3]


def make_matching_problem(
    width: int,
    images: int,
    R: int,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    make: Callable[[int, torch.dtype], Classification] = make_fast_task,
) -> MatchingProblem:
    """The same problem in either precision: built in float32, then cast."""
    task = make(width, dtype)
    start = Classification(make_network(width), SHAPE, CLASSES).init()
    end = train_from(width, start, seed)
    X, y = make_images(images, seed)
    aux = Auxiliary(X, y, torch.tensor(0.01), torch.zeros_like(X), torch.tensor(0.0))
    cast = Auxiliary(X.to(dtype), y, *(part.to(dtype) for part in (aux.beta, aux.X_velocity, aux.beta_velocity)))
    how = MatchingSettings(H=1, R=R, lr_img=1.0, lr_beta=1e-5, momentum=0.5, batch=0, dsa=True)
    steps = draw_steps(how, images, SHAPE, Key(seed)("mtt-batch"), Key(seed)("mtt-aug"))
    return MatchingProblem(task, start.to(dtype), end.to(dtype), cast, steps)


def train_from(width: int, start: Tensor, seed: int, steps: int = 10) -> Tensor:
    """The weights after a few eager steps of SGD on other images."""
    task, w = Classification(make_network(width), SHAPE, CLASSES), start
    for step in range(steps):
        g, _ = task.grad(w, Batch(*make_images(20, seed=1000 + 100 * seed + step)))
        w = w - 0.01 * g
    return w
