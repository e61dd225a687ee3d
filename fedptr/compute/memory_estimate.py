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
from fedptr.core.method import EACH_SAMPLE, Method, Owner
from fedptr.core.model_parts import freeze_parts
from fedptr.core.randomness import Key
from fedptr.core.task import ModelTask
from fedptr.errors import UserError
from fedptr.methods.ptr.by_trajectory import room_for, stretch_length
from fedptr.methods.ptr.projection import Projection
from fedptr.methods.ptr.trajectory import Trajectory, usual_ipc
from fedptr.methods.sent_sets import SetSender
from fedptr.models.networks import build_model
from fedptr.models.text import learnable_shape
from fedptr.types import Batch

CHUNK = 1000  # images at a time in `Samples.chunks`
HEAP = 32e6  # glibc takes smaller blocks from a heap, which changing sizes leave full of holes
EVALUATION = 2.1  # times the widest activation: input and output of a layer
IMAGES = 4  # times a batch of images, while it is selected and normalised, or learned
VECTORS = 8  # times the model: itself, its gradient, velocity, pull …
MOMENTS = 3  # the same for Adam's second mean, and what a step makes of both
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


def check_memory(plan: Workload, task: ModelTask, clients: Sequence[int], tests: int, at_once: int = 1) -> None:
    """Raises a UserError if the run does not fit: what is too large, by how much, and what to change."""
    refuse_if_too_large(plan, measure_footprint(task.joint), task.groups, clients, tests, task.device, at_once)


def check_model_memory(
    plan: Workload, shape: tuple[int, ...], classes: int, clients: Sequence[int], tests: int, device: str
) -> None:
    """The same check before a built-in model is created, which may itself not fit. Activations are not counted."""
    # Tensors on `meta` take no memory. A forward pass would measure activations too, but takes two seconds there.
    with torch.device("meta"):
        model = build_model(plan.model, shape, classes)
        numbers = math.prod(learnable_shape(model, shape))
    freeze_parts(model, plan.model.freeze, "model.freeze")
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    refuse_if_too_large(plan, Footprint(4 * parameters, 4 * numbers), classes, clients, tests, device)


def refuse_if_too_large(
    plan: Workload,
    foot: Footprint,
    classes: int,
    clients: Sequence[int],
    tests: int,
    device: str,
    at_once: int = 1,
) -> None:
    there = available_bytes(device)
    if there is None or not plan.machine.memory_check:
        return
    budget = client_state_budget(plan.machine, there)
    needed = estimate_memory(plan, foot, classes, clients, tests, budget, at_once)
    if needed.total > there:
        part, size = needed.most
        raise UserError(
            f"this run needs about {format_bytes(needed.total)} of memory, {format_bytes(size)} of it for {part}, and "
            f"{format_bytes(there)} are free; {suggest_remedy(part, plan, foot, at_once)}, or set "
            "machine.memory_check = false to try it anyway"
        )


def does_fit(
    plan: Workload, foot: Footprint, classes: int, clients: Sequence[int], tests: int, device: str, at_once: int
) -> bool:
    """Whether a run with this many clients at once fits into the memory that is free."""
    there = available_bytes(device)
    budget = client_state_budget(plan.machine, there)
    return there is None or estimate_memory(plan, foot, classes, clients, tests, budget, at_once).total <= there


def client_state_budget(machine: MachinePlan, there: float | None) -> float:
    """Bytes of clients' states to keep in memory when `there` bytes are free; the others are on disk."""
    if machine.client_memory == "auto":
        return ENOUGH if there is None else min(CLIENTS * there, ENOUGH)
    return machine.client_memory * 1e6


def format_bytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


SET_SIZES = (
    "ipc",
    "k",
    "real",
    "targets",
    "real_batch",
)  # settings that decide how large sets and their computation are


def suggest_remedy(part: str, plan: Workload, foot: Footprint, at_once: int = 1) -> str:
    """What makes this part smaller; with several threads or clients at once, using fewer of them does."""
    threads = "machine.threads or " if foot.threads > 1 else ""
    if at_once > 1 and part != "evaluation":
        threads = "machine.clients_at_once or "
    smaller = "lower model.width" if plan.model.name in ("convnet", "mlp", "resnet18") else "choose a smaller model"
    matching = ["method.m", "method.ipc"] if isinstance(plan.method, Trajectory) else []
    own = [f"method.{name}" for name in SET_SIZES if hasattr(plan.method, name)] if plan.method.sends_sets else []
    states = ["machine.client_memory", "run.participation", *matching, *own]
    batch = "lower method.aux_batch, " if getattr(plan.method, "aux_batch", 0) else "set method.aux_batch, "
    batch = batch if math.isinf(foot.block) else ""  # blocks are small already
    asked, gamma = plan.local.gamma or plan.local.record_gamma, "turn local.gamma and local.record_gamma off"
    return {
        "training": f"lower {threads}local.batch, or {smaller}",
        "evaluation": f"lower {threads[:-4]}, or {smaller}" if threads else smaller,
        "full gradients": f"{gamma if asked else 'choose a method, or its option, without them'}, or {smaller}",
        "matching": f"{batch}lower {threads}method.ipc, or {smaller}",
        "projection": f"lower {threads}method.ipc, or {smaller}",
        "learning of sets": f"lower {', '.join(own)}, or {smaller}",
        "the states of clients": f"lower {', '.join(states[:-1])} or {states[-1]}, or {smaller}",
    }[part]


def estimate_memory(
    plan: Workload,
    foot: Footprint,
    classes: int,
    clients: Sequence[int],
    tests: int,
    budget: float = math.inf,
    at_once: int = 1,
) -> Estimate:
    """The peak memory of a run; `clients` are their numbers of samples, and states beyond the budget are on disk.

    Clients that train at once have models, batches and D̃ of their own, and share the threads that compute blocks.
    """
    method = plan.method
    aux = count_auxiliary_images(method, classes)
    largest = max(clients) + (0 if isinstance(method, Projection) else aux)  # `naive` trains on both

    vectors = VECTORS + (0 if plan.local.optimiser == "sgd" else MOMENTS)

    def gradient(images: int, owners: int = at_once) -> float:
        batch = foot.image * images * owners
        peak = max(foot.peak(images * owners, TRAINING) + batch, IMAGES * batch)
        return peak + (vectors * owners + max(foot.threads, owners)) * foot.model

    phases = {
        "training": gradient(min(plan.local.batch, largest)),
        "evaluation": max(foot.widest * EVALUATION + foot.image, IMAGES * foot.image) * min(foot.chunk, tests),
    }
    if plan.local.gamma or plan.local.record_gamma or method.effort.full:
        phases["full gradients"] = gradient(min(CHUNK, largest))
    if aux and isinstance(method, Projection):
        phases["projection"] = gradient(aux)
    if aux and isinstance(method, Trajectory):
        images, owners = min(method.aux_batch or aux, aux), at_once if method.cost.auxiliary == "client" else 1
        steps = method.gradients_per_step
        models, rooms = count_path_models(steps), room_for(images * foot.room, stretch_length(steps))
        phases["matching"] = (
            foot.peak(images * owners, MATCHING)
            + IMAGES * foot.image * aux * owners
            + ((VECTORS + models) * owners + max(foot.threads, owners)) * foot.model
            + rooms * images * foot.room * owners
        )
    if isinstance(method, SetSender):
        work = method.work(classes, largest, foot.image // 4)
        whole = foot._replace(block=math.inf)  # such gradients are not computed in blocks
        phases["training"] = gradient(work.blocks, 1)
        phases["learning of sets"] = at_once * (
            whole.peak(work.learned, TRAINING)
            + foot.widest * EVALUATION * work.beside
            + IMAGES * foot.image * (work.learned + work.beside)
            + (VECTORS + work.models) * foot.model
            + 8 * work.numbers
        )
    sent = count_set_bytes(method, foot, classes, largest)
    return Estimate(phases, estimate_states(plan, foot, sum(n > 0 for n in clients), aux, budget, sent))


def count_set_bytes(method: Method, foot: Footprint, classes: int, samples: int) -> float:
    """Bytes of the set that a client with this many samples sends, if it sends one."""
    if not isinstance(method, SetSender):
        return 0
    rows = method.most_rows(classes)
    return (samples if rows == EACH_SAMPLE else rows) * (foot.image + 4 * classes)


def count_path_models(R: int) -> int:
    """Models of the student's trajectory kept at a time: the first of every stretch, and all of one stretch."""
    stretch = stretch_length(R)
    return math.ceil(R / stretch) + stretch


def count_auxiliary_images(method: Method, classes: int) -> int:
    """The number of images in an auxiliary dataset of this method; 0 if it has none."""
    if not isinstance(method, Trajectory) or (isinstance(method, Projection) and not method.active):
        return 0
    return classes * (usual_ipc(classes) if method.ipc == "auto" else method.ipc)


def estimate_states(plan: Workload, foot: Footprint, clients: int, aux: int, budget: float, sent: float = 0) -> float:
    """Bytes that clients (up to the budget) and server keep, plus a cohort's new states and its replies.

    `sent`: of the set of samples that a client sends; the server keeps a cohort's.
    """
    cohort = plan.run.cohort_size(clients)
    client, server = kept_bytes(plan.method, foot, aux, "client"), kept_bytes(plan.method, foot, aux, "server")
    generations = clients + (clients if plan.run.checkpoint_every > 1 else 0)
    resting = max(min(generations * client, budget), cohort * client)  # a cohort's stay until they are saved
    target = isinstance(plan.method, Projection) and client > 0  # it is recorded with the reply
    reply = foot.model * (len(plan.method.sent) + target) + sent
    server += foot.model * plan.method.cost.each * clients + cohort * sent
    return resting + cohort * client + cohort * reply + 3 * (server + foot.model)


def kept_bytes(method: Method, foot: Footprint, aux: int, who: Owner) -> float:
    """Bytes that a client, or the server, keeps between rounds."""
    cost = method.cost
    own = foot.model * (cost.client if who == "client" else cost.server)
    trail = foot.model * (getattr(method, "m", 0) + 1) if cost.trail == who else 0
    if cost.auxiliary != who:
        return own + trail
    styles = getattr(method, "styles", 0)
    sets = 2 + (getattr(method, "ema", 0) > 0) + (2 / styles if styles else 0)  # images, velocity, mean; bases' two
    return own + (HOLES * (trail + sets * aux * foot.image) if aux else 0)


def measure_footprint(task: ModelTask) -> Footprint:
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


def saved_tensor_bytes(task: ModelTask, n: int) -> list[int]:
    """Bytes of each tensor, other than parameters and images, that the loss of n images keeps for its gradient."""
    w = task.init().requires_grad_()
    x, y = task.example_inputs(n), torch.zeros(n, dtype=torch.int64, device=task.device)
    if not task.classes:
        with Key(0).fixed("footprint"), torch.no_grad():
            y = torch.zeros_like(task.to_module(w)(x))  # as many numbers as outputs
    seen = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage._cdata] = storage  # kept alive, so that its address is not reused
        return tensor

    with Key(0).fixed("footprint"), saved_tensors_hooks(pack, lambda tensor: tensor):
        task.loss(w, Batch(x, y))
    for known in (w, x, *task.held.values()):
        seen.pop(known.untyped_storage()._cdata, None)
    return [storage.nbytes() for storage in seen.values()]
