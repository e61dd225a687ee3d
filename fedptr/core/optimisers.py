"""The optimisers of local training, on the flat vector of a model. Their state starts at zero in every round.

    sgd      v ← ρv + g;  w ← w − η v
    adam     m ← β₁m + (1−β₁)g;  s ← β₂s + (1−β₂)g²;  w ← w − η m̂/(√ŝ + ε), with m̂ = m/(1−β₁ᵏ), ŝ = s/(1−β₂ᵏ) in step k
    adamw    the same, after w ← w − η·(weight decay)·w: the decay is no part of g

g is the gradient with the pull of the method; for sgd and adam also with the weight decay. It is clipped as a whole.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedptr.core.local_training import Local


class Optimiser:
    """A model and the state of its training; `step` changes `w` in place."""

    def __init__(self, start: Tensor, local: Local) -> None:
        self.w, self.local = start.clone(), local

    def step(self, g: Tensor) -> None:
        """One step along −g."""
        raise NotImplementedError

    def add_decay_and_clip(self, g: Tensor) -> Tensor:
        """The gradient of the whole objective, at most `local.clip` long."""
        local = self.local
        if decay := objective_decay(local):
            g = g + decay * self.w
        if local.clip:
            g = g * (local.clip / (g.norm() + 1e-6)).clamp(max=1)
        return g


class SGD(Optimiser):
    def __init__(self, start: Tensor, local: Local) -> None:
        super().__init__(start, local)
        self.velocity = torch.zeros_like(start)

    def step(self, g: Tensor) -> None:
        self.velocity.mul_(self.local.momentum).add_(self.add_decay_and_clip(g))
        self.w.add_(self.velocity, alpha=-self.local.lr)


class Adam(Optimiser):
    """Adam and AdamW, operation by operation as in torch.optim."""

    def __init__(self, start: Tensor, local: Local) -> None:
        super().__init__(start, local)
        self.mean, self.square, self.steps = torch.zeros_like(start), torch.zeros_like(start), 0

    def step(self, g: Tensor) -> None:
        local, g = self.local, self.add_decay_and_clip(g)
        self.steps += 1
        if local.optimiser == "adamw" and local.weight_decay:
            self.w.mul_(1 - local.lr * local.weight_decay)
        self.mean.lerp_(g, 1 - local.beta1)
        self.square.mul_(local.beta2).addcmul_(g, g, value=1 - local.beta2)
        size = local.lr / (1 - local.beta1**self.steps)
        scale = (self.square.sqrt() / math.sqrt(1 - local.beta2**self.steps)).add_(local.epsilon)
        self.w.addcdiv_(self.mean, scale, value=-size)


def make_optimiser(start: Tensor, local: Local) -> Optimiser:
    """The optimiser that a client's settings name, at the start of its training."""
    return (SGD if local.optimiser == "sgd" else Adam)(start, local)


def objective_decay(local: Local) -> float:
    """The weight decay that is part of the objective: AdamW's is not, it acts on the weights alone."""
    return 0.0 if local.optimiser == "adamw" else local.weight_decay
