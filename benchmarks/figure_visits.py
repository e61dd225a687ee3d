"""Visits of tiny clients: 10,000 of them, 100 in a round, four steps each, against a plain loop and three libraries.

We and the loop have one thread; the libraries are measured in every setting that may be their fastest. The seconds of a
visit are those of a whole round, with sampling, aggregation and the record, divided by its clients.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from bench_results import Goal, Row, make_row, missing_row
from figure_round import PEERS
from peer_process import Peer, PeerError
from scale import Scale
from separate_process import SeparateProcess
from timing import Times, quartiles, ratios_by_turn, time_in_turns
from torch import Tensor, nn
from workload import make_network_of

from fedptr.compute import malloc
from fedptr.compute.blocks import BlockedTask
from fedptr.compute.together import visit_together
from fedptr.core.federation import Rounds, federate
from fedptr.core.local_training import Local
from fedptr.core.samples import Samples
from fedptr.methods.fedavg import FedAvg

SHAPE, CLASSES, COHORT, SAMPLES, BATCH, EPOCHS, RATE, MOMENTUM = (1, 28, 28), 10, 100, 20, 10, 2, 0.05, 0.5
MEAN, STD, ROUNDS = 128.0, 60.0, 5
MODELS: dict[str, dict[str, Any]] = {
    "logistic regression": {"network": "linear", "width": 0},
    "MLP with two layers of 32": {"network": "mlp", "width": 32},
}
LOCAL: dict[str, Any] = {"batch": BATCH, "epochs": EPOCHS, "lr": RATE, "momentum": MOMENTUM}


def make_data(clients: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (clients * SAMPLES, *SHAPE), generator=generator, dtype=torch.uint8)
    return x, torch.randint(CLASSES, (len(x),), generator=generator)


def make_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return make_network_of({**MODELS[name], "shape": SHAPE})


def our_rounds(name: str, clients: int) -> Callable[[], None]:
    malloc.keep_freed_memory()
    torch.set_num_threads(1)
    x, y = make_data(clients)
    whole = Samples(x, y, mean=torch.tensor(MEAN).view(1, 1, 1), std=torch.tensor(STD).view(1, 1, 1))
    parts = [whole.part(rows) for rows in torch.arange(len(y)).split(SAMPLES)]
    task = BlockedTask(make_model(name), SHAPE, CLASSES, block=64)
    rounds = Rounds(rounds=10**6, participation=COHORT / clients)
    runs = federate(FedAvg(), task, parts, None, rounds, Local(**LOCAL), visits=visit_together)

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


def work_of_peer(name: str, clients: int, turns: int) -> dict[str, Any]:
    (x, y), state = make_data(clients), make_model(name).state_dict()
    return {
        **MODELS[name], "x": x, "y": y, "mean": MEAN, "std": STD, "state": state, "shape": SHAPE, "clients": clients,
        "cohort": COHORT, "rounds": ROUNDS * (turns + 1), "local": LOCAL,
    }  # fmt: skip


def measure_peers(name: str, clients: int, repeats: int) -> Iterator[Row]:
    """A row for each library and setting, then the fastest of them."""
    figure, found = visits_title(name, clients), list[Row]()
    for peer_name, start in PEERS.items():
        try:
            with Peer(*start, work_of_peer(name, clients, repeats)) as peer:
                times = time_in_turns({"ours": our_rounds(name, clients), "peer": partial(run_rounds, peer)}, repeats)
                check_training(name, peer.load_state())
        except PeerError as error:
            yield missing_row(figure, peer_name, error)
            continue
        ratios, note = ratios_by_turn(times, "peer", "ours"), say_visits(times, "peer")
        found.append(make_row(figure, peer_name, ratios, "×", Goal("≥", 5), times, note))
        yield found[-1]
    if found:
        best = min(found, key=lambda row: row.value or 0.0)
        yield replace(best, reference=f"the best of them: {best.reference}", note="")


def run_rounds(peer: Peer) -> None:
    for _ in range(ROUNDS):
        peer.run_round()


def check_training(name: str, state: dict[str, Tensor]) -> None:
    """Raises PeerError if the peer did not train: with cohorts of its own, its model is not ours."""
    first = make_model(name).state_dict()
    if not all(bool(t.isfinite().all()) and not torch.equal(t, first[key]) for key, t in state.items()):
        raise PeerError("not the same work: its model is as it was, or not finite")


def visits_title(name: str, clients: int) -> str:
    return f"{clients:,} clients, {COHORT} in a round, {EPOCHS * SAMPLES // BATCH} steps each: {name}"


def say_visits(times: Times, theirs: str) -> str:
    ours, others = (COHORT * ROUNDS / quartiles(times[side]).median for side in ("ours", theirs))
    return f"{ours:.0f} against {others:.0f} visits a second; {1000 / ours:.2f} ms a visit"


def measure_rows(scale: Scale) -> Iterator[Row]:
    clients = 1000 if scale.quick else 10_000
    for name in MODELS:
        with contextlib.closing(SeparateProcess(plain_rounds, name, clients)) as plain:
            times = time_in_turns({"ours": our_rounds(name, clients), "plain": plain}, 2 * scale.repeats)
        figure, ratios = visits_title(name, clients), ratios_by_turn(times, "plain", "ours")
        yield make_row(figure, "plain loop", ratios, "×", Goal("≥", 3), times, say_visits(times, "plain"))
        each = [1000 * seconds / (COHORT * ROUNDS) for seconds in times["ours"]]
        yield make_row(f"{figure}: a visit", "none", each, " ms", Goal("≤", 0.3))
        yield from measure_peers(name, clients, scale.repeats)
