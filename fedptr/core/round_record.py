"""The record of a round: one JSON object, a line of rounds.jsonl."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedptr.types import RECORDED_BY_SERVER, Reply, State

if TYPE_CHECKING:
    from fedptr.core.visit import Visit

LOG = "log/"


class Clock:
    """Measures seconds by phase."""

    def __init__(self) -> None:
        self.began = self.last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase], self.last = now - self.last, now

    @property
    def total(self) -> float:
        return self.last - self.began


def split_log(state: State) -> tuple[State, State]:
    """The entries that are sent or kept; and the diagnostics, whose names start with `log/`."""
    log = {name[len(LOG) :]: value for name, value in state.items() if name.startswith(LOG)}
    return {name: value for name, value in state.items() if not name.startswith(LOG)}, log


def describe_round(
    x: Tensor, new: Tensor, log: State, replies: Sequence[Reply], visits: Mapping[int, Visit], clock: Clock
) -> dict[str, Any]:
    """Costs, losses and the paper's diagnostics of a round that led from x to `new`."""
    clients, step = [], x - new
    length = float(step.norm())
    for reply in replies:
        own = {name: value for name, value in visits[reply.client].log.items() if name not in RECORDED_BY_SERVER}
        entry = {"id": reply.client, **to_plain_values(own)}
        if "w" in reply.state:
            entry["cos_local"] = cosine_similarity(x - reply.state["w"], step, length)
        entry |= compare_projection(visits[reply.client].log, x, new)
        clients.append(entry)
    server = to_plain_values(log) | compare_projection(log, x, new)
    parts = [server, *clients]
    sizes = [reply.size for reply in replies]
    record: dict[str, Any] = {
        "train_loss": mean_of_entry(clients, "train_loss", sizes),
        "bytes_up": sum(count_bytes(reply.state) for reply in replies),
        "cos_local": mean_of_entry(clients, "cos_local"),
    }
    record |= {name: mean_of_entry(parts, name) for name in ("cos_aux", "reach") if any(name in part for part in parts)}
    seconds = {
        "matching": sum_of_entry(parts, "seconds_matching"),
        "projection": sum_of_entry(parts, "seconds_projection"),
        "training": sum(visit.seconds for visit in visits.values()),
        "aggregation": clock.seconds["aggregation"],
        "evaluation": 0.0,
        "total": clock.total,
    }
    return record | ({"server": server} if server else {}) | {"clients": clients, "seconds": seconds}


def compare_projection(log: State, x: Tensor, new: Tensor) -> dict[str, float]:
    """How well the projected step predicts the real one: the cosine of the two, and the ratio of their lengths."""
    if "target" not in log:
        return {}
    projected, real = log["target"] - x, new - x
    return {
        "cos_aux": cosine_similarity(projected, real),
        "reach": divide_or_zero(float(projected.norm()), float(real.norm())),
    }


def cosine_similarity(a: Tensor, b: Tensor, length: float | None = None) -> float:
    """`length` is that of b, where it is known."""
    return divide_or_zero(float(torch.dot(a, b)), float(a.norm()) * (float(b.norm()) if length is None else length))


def divide_or_zero(a: float, b: float) -> float:
    return a / b if b else 0.0


def to_plain_values(log: State) -> dict[str, Any]:
    """Tensors as numbers and lists, without the projected model, which is too large to record."""
    return {name: value.tolist() for name, value in log.items() if name != "target"}


def mean_of_entry(parts: Sequence[Mapping[str, Any]], name: str, weights: Sequence[int] | None = None) -> float:
    """The mean over the parts that have this entry as a number; NaN if none has, as in a round without replies."""
    found = [
        (part[name], weight)
        for part, weight in zip(parts, weights or [1] * len(parts), strict=True)
        if isinstance(part.get(name), (int, float))
    ]
    total = sum(weight for _, weight in found)
    return float(sum(value * weight / total for value, weight in found)) if total else math.nan


def sum_of_entry(parts: Sequence[dict[str, Any]], name: str) -> float:
    """The sum over the parts, from which the entry is taken out."""
    values = [part.pop(name, 0.0) for part in parts]
    return sum(value for value in values if isinstance(value, (int, float)))


def count_bytes(state: State) -> int:
    return sum(value.numel() * value.element_size() for value in state.values())
