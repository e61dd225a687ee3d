"""Whether a run fits into memory, said before it starts instead of by the system's killer in round 3.

    saved      bytes per image that a forward pass keeps for the backward pass, counted on a few images
    widest     the largest of these tensors, per image
    model      bytes of the parameters

A phase's peak is its images times these times a factor. benchmarks/memory.py measured the factors, on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedptr.keys import Key
from fedptr.methods.fedavg import FedAvg
from fedptr.models import build
from fedptr.plan import Plan
from fedptr.projected import Projected
from fedptr.task import Batch, Classification
from fedptr.trajectory import Trajectory, usual_ipc

CHUNK = 1000  # images at a time in `Samples.chunks`
TRAINING, EVALUATION, MATCHING = 1.0, 1.0, 1.0  # times what one forward pass saves, or its widest tensor
IMAGES = 4  # a batch while it is picked and normalised
VECTORS = 8  # the model, its gradient, velocity, pull … at the same time
ELSE = 0  # what libraries set up on first use


class Footprint(NamedTuple):
    """Bytes a task takes, apart from how many images are used at a time."""

    model: int
    image: int
    saved: float
    widest: float


def footprint(task: Classification) -> Footprint:
    """Counted on 2 and on 4 images, whose difference is free of what does not grow with the batch."""
    few, more = saved_tensors(task, 2), saved_tensors(task, 4)
    saved = max(0, sum(more) - sum(few)) / 2
    return Footprint(4 * size(task), 4 * math.prod(task.shape), saved, min(saved, max(more, default=0) / 4))


def size(task: Classification) -> int:
    return task.layers[-1].stop


def saved_tensors(task: Classification, n: int) -> list[int]:
    """Bytes of every tensor, other than the parameters, that the loss of n images keeps for its gradient."""
    # Not task.init(): torch.cat of `meta` tensors imports 800 modules.
    w = torch.zeros(size(task), device=task.device).requires_grad_()
    batch = Batch(
        torch.zeros(n, *task.shape, device=task.device), torch.zeros(n, dtype=torch.int64, device=task.device)
    )
    kept = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage  # held, so that no later one gets its address
        return tensor

    with Key(0).fixed("footprint"), saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = task.loss(w, batch)
    del loss
    kept.pop(w.untyped_storage()._cdata, None)
    return [storage.nbytes() for storage in kept.values()]


def blueprint(plan: Plan, shape: tuple[int, int, int], classes: int) -> Classification:
    """A built-in model without any numbers in it, however large."""
    with torch.device("meta"):
        return Classification(build(plan.model, shape, classes), shape, classes, "meta")


def estimate(plan: Plan, task: Classification, clients: Sequence[int], tests: int) -> tuple[dict[str, float], float]:
    foot, method, local = footprint(task), plan.method, plan.local
    largest, aux = max(clients), auxiliary(method, task.classes)
    one_batch = foot.saved * TRAINING + foot.image * IMAGES
    joined = aux if not isinstance(method, Projected) else 0
    parts = {
        "training": one_batch * min(local.batch, largest + joined) + VECTORS * foot.model,
        "evaluation": (foot.widest * EVALUATION + foot.image * IMAGES) * min(CHUNK, tests),
    }
    if local.gamma or local.record_gamma or getattr(method, "option", "") == "I":
        parts["full gradients"] = one_batch * min(CHUNK, largest + joined) + VECTORS * foot.model
    if aux and isinstance(method, Trajectory):
        step = min(method.aux_batch or aux, aux)
        parts["matching"] = foot.saved * MATCHING * step + foot.image * IMAGES * aux + (method.R + VECTORS) * foot.model
    if aux and isinstance(method, Projected):
        parts["projection"] = one_batch * aux + VECTORS * foot.model
    return parts, kept(plan, foot, sum(1 for n in clients if n), aux)


def auxiliary(method: FedAvg, classes: int) -> int:
    """Auxiliary images of one owner."""
    if not isinstance(method, Trajectory) or not getattr(method, "active", True):
        return 0
    return classes * (usual_ipc(classes) if method.ipc == "auto" else method.ipc)


def kept(plan: Plan, foot: Footprint, clients: int, aux: int) -> float:
    method = plan.method
    cohort = max(1, math.floor(plan.run.participation * clients + 0.5))
    m = getattr(method, "m", 0)

    def held(cost: str) -> float:
        models = m + 2 if cost.startswith("m+1") else float(cost)
        return models * foot.model * (1 if aux or not m else 0) + ("D̃" in cost) * 2 * aux * foot.image

    client, server = held(method.cost["client keeps"]), held(method.cost["server keeps"])
    up = float(method.cost["up"]) + (1 if aux else 0)
    return (clients + cohort) * client + 2 * (server + foot.model) + cohort * up * foot.model
