"""A whole FedAvg round of ten clients against the plain loop and three libraries, checked to be the same work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from bench_results import Goal, Row, make_row, missing_row
from our_side import endless_rounds, make_fast_task
from peer_process import Peer, PeerError
from plain_references import run_plain_round
from scale import Scale
from separate_process import SeparateProcess
from timing import Times, quartiles, ratios_by_turn, time_in_turns
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from workload import SHAPE, make_images, make_network

from fedptr.core.samples import Samples
from fedptr.methods.fedavg import FedAvg

CLIENTS, TOLERANCE = 10, 0.02
TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "{script}"]
Start = tuple[str, list[str]]
# Every setting that may be a library's fastest: its script, and the arguments to run it with.
PEERS: dict[str, Start] = {
    "Flower simulation, 1 CPU a client": ("peer_flower.py", ["{script}", "1"]),
    "Flower simulation, 2 CPUs a client": ("peer_flower.py", ["{script}", "2"]),
    "pfl, one process": ("peer_pfl.py", ["{script}"]),
    "pfl, two processes": ("peer_pfl.py", TWO),
    "BlazeFL, two threads": ("peer_blazefl.py", ["{script}", "threads"]),
    "BlazeFL, two processes": ("peer_blazefl.py", ["{script}", "processes"]),
}


def plain_round_work(width: int, images: int, batch: int) -> Callable[[], dict[str, Any]]:
    model, (x, y) = make_network(width), make_images(images)
    sets = [TensorDataset(*part) for part in zip(x.chunk(CLIENTS), y.chunk(CLIENTS), strict=True)]

    def work() -> dict[str, Any]:
        run_plain_round(model, sets, batch, shuffle=False)
        return {name: value.numpy() for name, value in model.state_dict().items()}

    return work


class RoundComparison:
    """The work of a round, done by us and by a reference."""

    def __init__(self, scale: Scale, width: int) -> None:
        self.width, self.batch, self.repeats = scale(width), scale(100), scale.repeats
        self.x, self.y = make_images(CLIENTS * scale(1000))
        self.work = {
            "x": self.x, "y": self.y, "state": make_network(self.width).state_dict(),
            "network": "convnet", "shape": SHAPE, "width": self.width, "clients": CLIENTS, "cohort": CLIENTS,
            "rounds": self.repeats + 1, "local": {"batch": self.batch, "epochs": 1, "lr": 0.01, "momentum": 0.5},
        }  # fmt: skip
        self.task = make_fast_task(self.width)

    def time_against(self, name: str, peer: Peer | None) -> tuple[Times, str]:
        """Times of our rounds and the reference's, and both losses; raises PeerError if the work was not the same."""
        parts = list(zip(self.x.chunk(CLIENTS), self.y.chunk(CLIENTS), strict=True))
        runs = endless_rounds(FedAvg(), self.task, [Samples(x, y) for x, y in parts], self.batch)
        w = self.task.init()

        def step() -> None:
            nonlocal w
            w = next(runs).w

        state: dict[str, Tensor] = {}
        with contextlib.closing(SeparateProcess(plain_round_work, self.width, len(self.y), self.batch)) as loop:

            def reference() -> None:
                nonlocal state
                if peer:
                    peer.run_round()
                else:
                    state = {key: torch.from_numpy(value) for key, value in loop().items()}

            times = time_in_turns({"ours": step, name: reference}, self.repeats)
        state = peer.load_state() if peer else state
        first, mine, theirs = (self.loss(s) for s in (self.work["state"], self.task.parameters(w), state))
        words = f"loss {first:.3f} → {mine:.3f}, the reference's {theirs:.3f}"
        if abs(mine - theirs) > TOLERANCE * theirs or first - theirs < 2 * TOLERANCE * theirs:
            raise PeerError(f"not the same work: {words}")
        return times, words

    @torch.no_grad()
    def loss(self, state: dict[str, Tensor] | object) -> float:
        model: nn.Module = make_network(self.width)
        assert isinstance(state, dict)
        model.load_state_dict(state)
        logits = torch.cat([model(x) for x in self.x.split(100)])
        return float(F.cross_entropy(logits, self.y))


def measure_rows(scale: Scale) -> Iterator[Row]:
    """All references at width 32; at width 128, where a round takes long, the fastest of them."""
    everyone: dict[str, Start | None] = {"plain loop": None, **PEERS}
    best = yield from compare(RoundComparison(scale, 32), everyone, 3.5)
    if best:
        yield replace(best, reference=f"the best of them: {best.reference}", note="")
        yield from compare(RoundComparison(scale, 128), {best.reference: everyone[best.reference]}, 3)


def compare(
    work: RoundComparison, references: Mapping[str, Start | None], goal: float
) -> Generator[Row, None, Row | None]:
    """A row for each reference; returns that of the fastest."""
    images = len(work.y) // CLIENTS
    title = f"FedAvg round, {CLIENTS} clients × {images} images, width {work.width}"
    best: Row | None = None
    for name, start in references.items():
        try:
            with Peer(*start, work.work) if start else contextlib.nullcontext() as peer:
                times, words = work.time_against(name, peer)
        except PeerError as error:
            yield missing_row(title, name, error)
            continue
        took = f"{quartiles(times['ours']).median:.2f} against {quartiles(times[name]).median:.2f} s; {words}"
        found = make_row(title, name, ratios_by_turn(times, name, "ours"), "×", Goal("≥", goal), times, took)
        yield found
        best = min((found, best or found), key=lambda r: r.value or 0.0)
    return best
