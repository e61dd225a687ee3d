"""Checks that a run fits into memory before it starts, so that the system does not kill it in round 3.

    saved    bytes per image of the activations that a forward pass keeps for the backward pass
    widest   bytes per image of the largest of these tensors
    model    bytes of the parameters

The first two are measured on a few images. A phase's peak is its number of images times these, times factors that
benchmarks/estimated_memory.py measures on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedptr.compute.available_memory import available_bytes
from fedptr.compute.blocks import BlockedTask
from fedptr.compute.workload import MachinePlan, Workload
from fedptr.core.method import Method, Owner
from fedptr.core.randomness import Key
from fedptr.core.task import Classification
from fedptr.errors import UserError
from fedptr.methods.ptr.matching import room_for, stretch_length
from fedptr.methods.ptr.projection import Projection
from fedptr.methods.ptr.trajectory import Trajectory, usual_ipc
from fedptr.models.networks import build_model
from fedptr.types import Batch, Shape

CHUNK = 1000  # images at a time in `Samples.chunks`
HEAP = 32e6  # glibc takes smaller blocks from a heap, which changing sizes leave full of holes
EVALUATION = 2.1  # times the widest activation: input and output of a layer
IMAGES = 4  # times a batch of images, while it is selected and normalised, or learned
VECTORS = 8  # times the model: itself, its gradient, velocity, pull …
HOLES = 1.4  # times what matching keeps, which lies between freed blocks
CLIENTS, ENOUGH = 0.25, 32e6  # clients' states: fraction of free memory, and at most; reading costs milliseconds a MB
ELSE = 32e6  # what torch allocates on first use


class Factors(NamedTuple):
    saved: float
    widest: float
    holes: float  # of the heap; multiplies both


TRAINING, MATCHING = Factors(0.95, 3.5, 1.45), Factors(3.2, 4.3, 2.0)


class Footprint(NamedTuple):
    """Bytes that a task needs for its model and per image."""

    model: int
    image: int
    saved: float = 0
    widest: float = 0
    block: float = math.inf  # images whose gradient is computed at a time: all threads' blocks
    chunk: float = CHUNK  # the same for an evaluation
    threads: int = 1  # each has a gradient of its own
    room: int = 0  # bytes that matching keeps of a student step, per image

    def peak(self, images: float, times: Factors) -> float:
        """Peak bytes of a gradient over a batch; tensors too large for the heap leave no holes in it."""
        images = min(images, self.block)
        small = images if images * self.widest <= HEAP else HEAP / self.widest
        return (self.saved * times.saved + self.widest * times.widest) * max(images, small * times.holes)


@dataclass(frozen=True)
class Estimate:
    """Bytes of each phase, which run one at a time, and of the states, which are kept throughout."""

    phases: dict[str, float]
    states: float

    @property
    def total(self) -> float:
        return max(self.phases.values()) + self.states + ELSE

    @property
    def most(self) -> tuple[str, float]:
        """The largest part and its bytes."""
        return max([*self.phases.items(), ("the states of clients", self.states)], key=lambda part: part[1])


def check_memory(plan: Workload, task: Classification, clients: Sequence[int], tests: int) -> None:
    """Raises a UserError if the run does not fit: what is too large, by how much, and what to change."""
    refuse_if_too_large(plan, measure_footprint(task), task.classes, clients, tests, task.device)


def check_model_memory(
    plan: Workload, shape: Shape, classes: int, clients: Sequence[int], tests: int, device: str
) -> None:
    """The same check before a built-in model is created, which may itself not fit. Activations are not counted."""
    # Tensors on `meta` take no memory. A forward pass would measure activations too, but takes two seconds there.
    with torch.device("meta"):
        parameters = sum(p.numel() for p in build_model(plan.model, shape, classes).parameters())
    refuse_if_too_large(plan, Footprint(4 * parameters, 4 * math.prod(shape)), classes, clients, tests, device)


def refuse_if_too_large(
    plan: Workload, foot: Footprint, classes: int, clients: Sequence[int], tests: int, device: str
) -> None:
    there = available_bytes(device)
    if there is None or not plan.machine.memory_check:
        return
    needed = estimate_memory(plan, foot, classes, clients, tests, client_state_budget(plan.machine, there))
    if needed.total > there:
        part, size = needed.most
        raise UserError(
            f"this run needs about {format_bytes(needed.total)} of memory, {format_bytes(size)} of it for {part}, and "
            f"{format_bytes(there)} are free; {suggest_remedy(part, plan, foot)}, or set machine.memory_check = false "
            "to try it anyway"
        )


def client_state_budget(machine: MachinePlan, there: float | None) -> float:
    """Bytes of clients' states to keep in memory when `there` bytes are free; the others are on disk."""
    if machine.client_memory == "auto":
        return ENOUGH if there is None else min(CLIENTS * there, ENOUGH)
    return machine.client_memory * 1e6


def format_bytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def suggest_remedy(part: str, plan: Workload, foot: Footprint) -> str:
    """What makes this part smaller; with several threads, using fewer of them does."""
    threads = "machine.threads or " if foot.threads > 1 else ""
    smaller = "lower model.width" if plan.model.name in ("convnet", "mlp", "resnet18") else "choose a smaller model"
    matching = ["method.m", "method.ipc"] if isinstance(plan.method, Trajectory) else []
    states = ["machine.client_memory", "run.participation", *matching]
    batch = "lower method.aux_batch, " if getattr(plan.method, "aux_batch", 0) else "set method.aux_batch, "
    batch = batch if math.isinf(foot.block) else ""  # blocks are small already
    asked, gamma = plan.local.gamma or plan.local.record_gamma, "turn local.gamma and local.record_gamma off"
    return {
        "training": f"lower {threads}local.batch, or {smaller}",
        "evaluation": f"lower {threads[:-4]}, or {smaller}" if threads else smaller,
        "full gradients": f"{gamma if asked else 'choose a method, or its option, without them'}, or {smaller}",
        "matching": f"{batch}lower {threads}method.ipc, or {smaller}",
        "projection": f"lower {threads}method.ipc, or {smaller}",
        "the states of clients": f"lower {', '.join(states[:-1])} or {states[-1]}, or {smaller}",
    }[part]


def estimate_memory(
    plan: Workload, foot: Footprint, classes: int, clients: Sequence[int], tests: int, budget: float = math.inf
) -> Estimate:
    """The peak memory of a run; `clients` are their numbers of samples, and states beyond the budget are on disk."""
    method = plan.method
    aux = count_auxiliary_images(method, classes)
    largest = max(clients) + (0 if isinstance(method, Projection) else aux)  # `naive` trains on both

    def gradient(images: int) -> float:
        batch = foot.image * images
        return max(foot.peak(images, TRAINING) + batch, IMAGES * batch) + (VECTORS + foot.threads) * foot.model

    phases = {
        "training": gradient(min(plan.local.batch, largest)),
        "evaluation": max(foot.widest * EVALUATION + foot.image, IMAGES * foot.image) * min(foot.chunk, tests),
    }
    if plan.local.gamma or plan.local.record_gamma or method.effort.full:
        phases["full gradients"] = gradient(min(CHUNK, largest))
    if aux and isinstance(method, Projection):
        phases["projection"] = gradient(aux)
    if aux and isinstance(method, Trajectory):
        images = min(method.aux_batch or aux, aux)
        models, rooms = count_path_models(method.R), room_for(images * foot.room, stretch_length(method.R))
        phases["matching"] = (
            foot.peak(images, MATCHING)
            + IMAGES * foot.image * aux
            + (VECTORS + foot.threads + models) * foot.model
            + rooms * images * foot.room
        )
    return Estimate(phases, estimate_states(plan, foot, sum(n > 0 for n in clients), aux, budget))


def count_path_models(R: int) -> int:
    """Models of the student's trajectory kept at a time: the first of every stretch, and all of one stretch."""
    stretch = stretch_length(R)
    return math.ceil(R / stretch) + stretch


def count_auxiliary_images(method: Method, classes: int) -> int:
    """The number of images in an auxiliary dataset of this method; 0 if it has none."""
    if not isinstance(method, Trajectory) or (isinstance(method, Projection) and not method.active):
        return 0
    return classes * (usual_ipc(classes) if method.ipc == "auto" else method.ipc)


def estimate_states(plan: Workload, foot: Footprint, clients: int, aux: int, budget: float) -> float:
    """Bytes that clients (up to the budget) and server keep, plus a cohort's new states and its replies."""
    cohort = max(1, math.floor(plan.run.participation * clients + 0.5))
    client, server = kept_bytes(plan.method, foot, aux, "client"), kept_bytes(plan.method, foot, aux, "server")
    generations = clients + (clients if plan.run.checkpoint_every > 1 else 0)
    resting = max(min(generations * client, budget), cohort * client)  # a cohort's stay until they are saved
    target = isinstance(plan.method, Projection) and client > 0  # it is recorded with the reply
    reply = foot.model * (len(plan.method.sent) + target)
    server += foot.model * plan.method.cost.each * clients
    return resting + cohort * client + cohort * reply + 3 * (server + foot.model)


def kept_bytes(method: Method, foot: Footprint, aux: int, who: Owner) -> float:
    """Bytes that a client, or the server, keeps between rounds."""
    cost = method.cost
    own = foot.model * (cost.client if who == "client" else cost.server)
    trail = foot.model * (getattr(method, "m", 0) + 1) if cost.trail == who else 0
    if cost.auxiliary != who:
        return own + trail
    return own + (HOLES * (trail + 2 * aux * foot.image) if aux else 0)


def measure_footprint(task: Classification) -> Footprint:
    """Measured on 2 and on 3 images; the difference leaves out what does not grow with the batch."""
    few, more = saved_tensor_bytes(task, 2), saved_tensor_bytes(task, 3)
    saved = max(0, sum(more) - sum(few))
    sizes = 4 * task.layers[-1].stop, 4 * math.prod(task.shape), saved, min(saved, max(more, default=0) / 3)
    if not isinstance(task, BlockedTask):
        return Footprint(*sizes)
    room = task.room(1)
    n = task.threads
    blocks = n * task.at_once, n * task.chunk, n
    return Footprint(*sizes, *blocks, 0 if room is None else room.nbytes)


def saved_tensor_bytes(task: Classification, n: int) -> list[int]:
    """Bytes of each tensor, other than parameters and images, that the loss of n images keeps for its gradient."""
    w = task.init().requires_grad_()
    x, y = torch.zeros(n, *task.shape, device=task.device), torch.zeros(n, dtype=torch.int64, device=task.device)
    seen = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage._cdata] = storage  # kept alive, so that its address is not reused
        return tensor

    with Key(0).fixed("footprint"), saved_tensors_hooks(pack, lambda tensor: tensor):
        task.loss(w, Batch(x, y))
    for known in (w, x):
        seen.pop(known.untyped_storage()._cdata, None)
    return [storage.nbytes() for storage in seen.values()]
