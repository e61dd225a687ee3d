"""Local training: batches, and the only training loop in the package."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedptr.core.samples import Samples
from fedptr.core.task import add_mean_gradient, vector_norm
from fedptr.settings import setting
from fedptr.types import Batch, State

if TYPE_CHECKING:
    from fedptr.core.method import Site

Gradient = Callable[[Tensor, Batch], tuple[Tensor, Tensor]]  # the direction of a step, and the loss to record


@dataclass(frozen=True)
class Local:
    """How a client trains: by SGD. Every round starts with a new optimiser, so momentum starts at zero.

    >>> Local(lr=0.1, batch=32).epochs
    1
    """

    lr: float = setting(0.01, "local learning rate η_l", gt=0)
    momentum: float = setting(0.5, "momentum ρ of local SGD", ge=0, lt=1)
    weight_decay: float = setting(0.0, "weight decay, part of the clipped gradient", example=0.001, ge=0)
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


class TrainedModel(NamedTuple):
    """A client's model after its local training."""

    w: Tensor
    steps: int
    loss: float | None  # mean over the steps, without the pull; None = there was none
    gamma: float | None = None


class SGD:
    """A model under SGD with a client's settings. Its momentum starts at zero."""

    def __init__(self, start: Tensor, local: Local) -> None:
        self.w, self.local, self.velocity = start.clone(), local, torch.zeros_like(start)

    def step(self, g: Tensor) -> None:
        """One step along −g, changing `w` in place."""
        local = self.local
        if local.weight_decay:
            g = g + local.weight_decay * self.w
        if local.clip:
            g = g * (local.clip / (g.norm() + 1e-6)).clamp(max=1)
        self.velocity.mul_(local.momentum).add_(g)
        self.w.add_(self.velocity, alpha=-local.lr)


def local_sgd(
    start: Tensor,
    gradient: Gradient,
    data: Samples,
    site: Site,
    buffers: State,
    objective: Gradient | None = None,
) -> TrainedModel:
    """Minimises h, whose gradient on a batch is given, by SGD from `start`.

    Every call at one site draws the same batches, so that a method may train several models on them. γ is measured with
    `objective` instead of `gradient` where a method's steps draw more than their batch, or train a second model.
    """
    local, sgd, objective = site.local, SGD(start, site.local), objective or gradient
    w = sgd.w
    losses: list[Tensor] = []
    measured = bool(local.gamma or local.record_gamma)
    first = last = objective_norm(w, objective, data, local) if measured else 0.0
    order, noise = site.key("batch-order"), site.key("augment")
    epochs = local.max_epochs if local.gamma else local.epochs
    most = max(1, math.ceil(site.part * epochs * math.ceil(len(data) / local.batch)))
    while len(losses) < most:
        for index in draw_batches(len(data), local.batch, order):
            x, y = data.take(index)
            if local.augment == "flip-crop":
                x = flip_and_crop(x, noise)
            g, loss = gradient(w, Batch(x, y, buffers))
            sgd.step(g)
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
    return vector_norm(add_mean_gradient(data, local.weight_decay * w, lambda batch: gradient(w, batch)))


def draw_batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """One epoch: a random order, cut into batches; the last may be smaller."""
    yield from torch.randperm(n, generator=generator).split(size)


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
