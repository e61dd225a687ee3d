"""Visits of tiny clients: 10,000 of them, 100 in a round, four steps each, against a plain PyTorch loop over clients.

One thread each. The seconds of a visit are those of a whole round, with sampling, aggregation and the record,
divided by its clients.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from bench_results import Goal, Row, make_row
from scale import Scale
from separate_process import SeparateProcess
from timing import quartiles, ratios_by_turn, time_in_turns
from torch import Tensor, nn

from fedptr.compute import malloc
from fedptr.compute.blocks import BlockedTask
from fedptr.compute.together import visit_together
from fedptr.core.federation import Rounds, federate
from fedptr.core.local_training import Local
from fedptr.core.samples import Samples
from fedptr.methods.fedavg import FedAvg
from fedptr.models.networks import MLP, LinearModel

SHAPE, CLASSES, COHORT, SAMPLES, BATCH, EPOCHS, RATE, MOMENTUM = (1, 28, 28), 10, 100, 20, 10, 2, 0.05, 0.5
MEAN, STD, ROUNDS = 128.0, 60.0, 5
MODELS: dict[str, Callable[[], nn.Module]] = {
    "logistic regression": lambda: LinearModel(SHAPE, CLASSES),
    "MLP with two layers of 32": lambda: MLP(SHAPE, CLASSES, width=32),
}


def make_data(clients: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (clients * SAMPLES, *SHAPE), generator=generator, dtype=torch.uint8)
    return x, torch.randint(CLASSES, (len(x),), generator=generator)


def make_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


def our_rounds(name: str, clients: int) -> Callable[[], None]:
    malloc.keep_freed_memory()
    torch.set_num_threads(1)
    x, y = make_data(clients)
    whole = Samples(x, y, mean=torch.tensor(MEAN).view(1, 1, 1), std=torch.tensor(STD).view(1, 1, 1))
    parts = [whole.part(rows) for rows in torch.arange(len(y)).split(SAMPLES)]
    task = BlockedTask(make_model(name), SHAPE, CLASSES, block=64)
    local = Local(lr=RATE, momentum=MOMENTUM, batch=BATCH, epochs=EPOCHS)
    rounds = Rounds(rounds=10**6, participation=COHORT / clients)
    runs = federate(FedAvg(), task, parts, None, rounds, local, visits=visit_together)

    def work() -> None:
        for _ in range(ROUNDS):
            next(runs)

    return work


def plain_rounds(name: str, clients: int) -> Callable[[], float]:
    """What one writes without a library; returns its seconds."""
    torch.set_num_threads(1)
    (x, y), model, draw = make_data(clients), make_model(name), torch.Generator().manual_seed(0)

    def train(i: int) -> dict[str, Tensor]:
        local = copy.deepcopy(model)
        optimiser = torch.optim.SGD(local.parameters(), lr=RATE, momentum=MOMENTUM)
        for _ in range(EPOCHS):
            for rows in (torch.randperm(SAMPLES, generator=draw) + i * SAMPLES).split(BATCH):
                optimiser.zero_grad()
                F.cross_entropy(local((x[rows].float() - MEAN) / STD), y[rows]).backward()
                optimiser.step()
        return local.state_dict()

    def work() -> float:
        began = time.perf_counter()
        for _ in range(ROUNDS):
            total: dict[str, Any] = {}
            for i in torch.randperm(clients, generator=draw)[:COHORT].tolist():
                for key, value in train(i).items():
                    total[key] = total.get(key, 0) + value / COHORT
            model.load_state_dict(total)
        return time.perf_counter() - began

    return work


def measure_rows(scale: Scale) -> Iterator[Row]:
    clients = 1000 if scale.quick else 10_000
    for name in MODELS:
        with contextlib.closing(SeparateProcess(plain_rounds, name, clients)) as plain:
            times = time_in_turns({"ours": our_rounds(name, clients), "plain": plain}, 2 * scale.repeats)
        ours, theirs = (COHORT * ROUNDS / quartiles(times[side]).median for side in ("ours", "plain"))
        note = f"{ours:.0f} against {theirs:.0f} visits a second; {1000 / ours:.2f} ms a visit"
        figure = f"{clients:,} clients, {COHORT} in a round, {EPOCHS * SAMPLES // BATCH} steps each: {name}"
        yield make_row(figure, "plain loop", ratios_by_turn(times, "plain", "ours"), "×", Goal("≥", 3), times, note)
        each = [1000 * seconds / (COHORT * ROUNDS) for seconds in times["ours"]]
        yield make_row(f"{figure}: a visit", "none", each, " ms", Goal("≤", 0.333))
