"""What the outer steps of matching lower: a loss of the auxiliary set, in one of several ways."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedptr.core.randomness import Key
from fedptr.core.task import Adjoint, Task
from fedptr.methods.ptr.auxiliary import Auxiliary, MatchingSettings, StudentStep


class Draws:
    """The streams of random numbers of one matching."""

    def __init__(self, key: Key) -> None:
        self.order, self.noise, self.starts = key("mtt-batch"), key("mtt-aug"), key("mtt-start")


class Draw(NamedTuple):
    """The random part of one outer step: the student's steps, and where on the way from w^{t−m} to w^t it starts."""

    steps: list[StudentStep]
    at: float = 0.0  # 0 = at w^{t−m}

    def start(self, w_start: Tensor, w_end: Tensor) -> Tensor:
        return torch.lerp(w_start, w_end, self.at) if self.at else w_start


def draw_start(how: MatchingSettings, draws: Draws) -> int:
    """After how many of R equal parts of the straight line an outer step starts."""
    return int(torch.randint(how.R, (), generator=draws.starts)) if how.starts == "segment" else 0


class Gradient(NamedTuple):
    """L, and its derivatives by the images, by β and, where they are soft, by the labels."""

    L: float
    X: Tensor
    beta: Tensor
    Y: Tensor | None = None

    @property
    def sound(self) -> bool:
        parts = (self.X, self.beta) if self.Y is None else (self.X, self.beta, self.Y)
        return math.isfinite(self.L) and all(bool(part.isfinite().all()) for part in parts)


class Objective(Protocol):
    """A loss L of the set: 0 where it mimics the trajectory, 1 where it has nothing to do with it."""

    def draw(self, aux: Auxiliary, draws: Draws) -> Draw:
        """The random part of one outer step."""
        ...

    def begin(self, aux: Auxiliary, draw: Draw) -> Auxiliary:
        """The set as the first outer step finds it."""
        ...

    def gradient(self, aux: Auxiliary, draw: Draw) -> Gradient: ...

    def end(self, aux: Auxiliary, draw: Draw) -> tuple[Auxiliary, float]:
        """The set as the last outer step leaves it, and its loss."""
        ...


def adjoint_of_set(task: Task, w: Tensor, step: StudentStep, aux: Auxiliary, a: Tensor, by_w: bool) -> Adjoint:
    """⟨∇ℓ(w; D̃), a⟩ and its derivatives, by the set's own images and soft labels."""
    X = aux.X.detach().requires_grad_()
    batch = step.batch(X, aux.labels)
    if aux.Y is None:
        along, hx, hw, _ = task.adjoint(w, batch, a, by_w=by_w)
        return Adjoint(along, torch.autograd.grad(batch.x, X, hx)[0], hw)
    along, hx, hw, hy = task.adjoint(w, batch, a, by_w=by_w, by_y=True)
    hY = hy if step.rows is None or hy is None else torch.zeros_like(aux.Y).index_copy_(0, step.rows, hy)
    return Adjoint(along, torch.autograd.grad(batch.x, X, hx)[0], hw, hY)
