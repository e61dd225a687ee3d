"""Local training: batches, and the only training loop in the package."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedptr.core.optimisers import make_optimiser, objective_decay
from fedptr.core.samples import Samples
from fedptr.core.task import add_mean_gradient, vector_norm
from fedptr.settings import setting
from fedptr.types import Batch, State

if TYPE_CHECKING:
    from fedptr.core.method import Site

SMALL = 1e6  # bytes of a client's data that are taken at once
ALIGNED = 64  # bytes; where a batch begins in memory can change the last bit of a product

Gradient = Callable[[Tensor, Batch], tuple[Tensor, Tensor]]  # the direction of a step, and the loss to record


@dataclass(frozen=True)
class Local:
    """How a client trains. Every round starts with a new optimiser: momentum, or Adam's means, start at zero.

    >>> Local(lr=0.1, batch=32).epochs
    1
    """

    lr: float = setting(0.01, "local learning rate η_l", gt=0)
    momentum: float = setting(0.5, "momentum ρ of local SGD", ge=0, lt=1)
    weight_decay: float = setting(
        0.0, "weight decay, part of the clipped gradient; apart from it for adamw", example=0.001, ge=0
    )
    clip: float = setting(
        0.0, "clip the whole gradient (loss, pull, weight decay) to this norm; 0 = off", example=10.0, ge=0
    )
    decay: float = setting(1.0, "factor on the learning rate per round", example=0.99, gt=0, le=1)
    batch: int = setting(500, "batch size B; the last, smaller batch is kept", example=32, ge=1)
    epochs: int = setting(1, "local epochs E", ge=1, le=100_000)
    gamma: float = setting(0.0, "stop when ‖∇h‖ is at most γ times its starting value; 0 = train E epochs", ge=0, lt=1)
    max_epochs: int = setting(50, "limit on the epochs when gamma is set", ge=1, le=100_000)
    record_gamma: bool = setting(False, "record the achieved γ of every client (two full-batch gradients each)")
    augment: Literal["none", "flip-crop"] = setting(
        "none", "augmentation of real images: flip with p=½, then with p=½ a random crop from 4 pixels of padding"
    )
    optimiser: Literal["sgd", "adam", "adamw"] = setting(
        "sgd", "how gradients become steps; its state starts at zero in every round"
    )
    beta1: float = setting(0.9, "β₁ of adam and adamw, memory of the mean gradient", example=0.8, ge=0, lt=1)
    beta2: float = setting(0.999, "β₂ of adam and adamw, memory of its square", example=0.99, ge=0, lt=1)
    epsilon: float = setting(1e-8, "ε of adam and adamw, guard of small squares", example=1e-6, gt=0)
    schedule: Literal["constant", "cosine", "step"] = setting(
        "constant", "the learning rate over the rounds: as it is, half a cosine, or in steps; times decay in each case"
    )
    warmup: int = setting(0, "first rounds in which the learning rate grows linearly; 0 = none", example=5, ge=0)
    final_lr: float = setting(0.0, "where cosine ends, as a part of the learning rate", ge=0, le=1)
    step_every: int = setting(10, "rounds between two steps of the schedule step", ge=1)
    step_factor: float = setting(0.1, "factor on the learning rate at each of them", example=0.5, gt=0, le=1)


class TrainedModel(NamedTuple):
    """A client's model after its local training."""

    w: Tensor
    steps: int
    loss: float | None  # mean over the steps, without the pull; None = there was none
    gamma: float | None = None
    seconds: float = 0.0  # that it took before the visit, where clients are trained together


def local_sgd(
    start: Tensor,
    gradient: Gradient,
    data: Samples,
    site: Site,
    buffers: State,
    objective: Gradient | None = None,
) -> TrainedModel:
    """Minimises h, whose gradient on a batch is given, from `start`: by SGD, or the optimiser that the settings name.

    Every call at one site draws the same batches, so that a method may train several models on them. γ is measured with
    `objective` instead of `gradient` where a method's steps draw more than their batch, or train a second model.
    """
    local, optimiser, objective = site.local, make_optimiser(start, site.local), objective or gradient
    w = optimiser.w
    losses: list[Tensor] = []
    measured = bool(local.gamma or local.record_gamma)
    first = last = objective_norm(w, objective, data, local) if measured else 0.0
    order, noise = site.key("batch-order"), site.key("augment") if local.augment == "flip-crop" else None
    epochs = local.max_epochs if local.gamma else local.epochs
    most = max(1, math.ceil(site.part * epochs * math.ceil(len(data) / local.batch)))
    while len(losses) < most:
        for x, y in take_batches(data, local.batch, order):
            if noise is not None:
                x = flip_and_crop(x, noise)
            g, loss = gradient(w, Batch(x, y, buffers))
            optimiser.step(g)
            losses.append(loss)
            if len(losses) == most:  # a straggler may stop in the middle of an epoch
                break
        if local.gamma:
            last = objective_norm(w, objective, data, local)
            if last <= local.gamma * first:
                break
    if measured and not local.gamma:
        last = objective_norm(w, objective, data, local)
    achieved = (last / first if first else 0.0) if measured else None
    return TrainedModel(w, len(losses), float(torch.stack(losses).mean()), achieved)


def objective_norm(w: Tensor, gradient: Gradient, data: Samples, local: Local) -> float:
    """‖∇h(w)‖ on the client's whole set, without augmentation."""
    return vector_norm(add_mean_gradient(data, objective_decay(local) * w, lambda batch: gradient(w, batch)))


def draw_batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """One epoch: a random order, cut into batches; the last may be smaller."""
    yield from torch.randperm(n, generator=generator).split(size)


def take_batches(data: Samples, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """The samples of `draw_batches`; of a small set all at once, if each batch is aligned as one by itself is."""
    sample, n = data.x[:1].numel() * max(4, data.x.element_size()), len(data)
    if data.extra is None and n * sample <= SMALL and (n <= size or size * sample % ALIGNED == 0):
        x, y = data.take(torch.randperm(n, generator=generator))
        for start in range(0, n, size):
            yield x[start : start + size], y[start : start + size]
        return
    for index in draw_batches(n, size, generator):
        yield data.take(index)


def flip_and_crop(x: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Per image: flip with p=½, then with p=½ a crop at a random place of the zero-padded image."""
    n, _, height, width = x.shape
    flip, crop = (torch.rand(2, n, generator=generator) < 0.5).to(x.device)
    x = torch.where(flip.view(-1, 1, 1, 1), x.flip(3), x)
    top, left = torch.randint(0, 2 * pad + 1, (2, n), generator=generator).to(x.device)
    top, left = torch.where(crop, top, pad), torch.where(crop, left, pad)  # the middle of the padded image is x
    rows = (top[:, None] + torch.arange(height, device=x.device))[:, :, None]
    columns = (left[:, None] + torch.arange(width, device=x.device))[:, None, :]
    image = torch.arange(n, device=x.device)[:, None, None]
    return F.pad(x, [pad] * 4).permute(0, 2, 3, 1)[image, rows, columns].permute(0, 3, 1, 2).contiguous()
