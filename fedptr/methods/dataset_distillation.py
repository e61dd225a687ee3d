"""Dataset distillation: a few steps on a small learned set, after which a model is as good as after real training.

    X_s, Y_s    samples and labels of step s, both learned; a label is a vector of weights, a column per class
    η_es        the rate of step s in pass e over the steps, learned too: softplus(r_es)
    w_k         the student after k steps                          a    the adjoint ∂L/∂w_k
    L           the loss of the last student on a batch of real samples

The gradient of L is exact: the student's steps are taken first, keeping the w_k, then a starts as ∇L at the last one
and is carried back to the first. A step whose samples were masked by noise passes a on, and learns nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedptr.core.task import Task
from fedptr.methods.ptr.by_trajectory import room_for
from fedptr.types import Batch


class DistilledSet(NamedTuple):
    """The learned set, with S steps in E passes; or the gradients of all three."""

    X: Tensor  # [S, n, *shape]
    Y: Tensor  # [S, n, C]
    raw: Tensor  # [E, S], the rates before softplus

    @property
    def rates(self) -> Tensor:
        return F.softplus(self.raw)


def inverse_softplus(rate: Tensor) -> Tensor:
    """
    >>> bool(torch.isclose(F.softplus(inverse_softplus(torch.tensor(0.02))), torch.tensor(0.02)))
    True
    """
    return rate.expm1().log()


def take_distilled_step(task: Task, w: Tensor, step: Batch, rate: Tensor) -> Tensor:
    """Cross-entropy is linear in the labels, which need not be probabilities."""
    g, _ = task.grad(w, step)
    return w - rate * g


def distillation_gradient(
    task: Task, start: Tensor, learned: DistilledSet, real: Batch, masks: Sequence[Tensor | None] = ()
) -> tuple[float, DistilledSet]:
    """L and its gradient. `masks` has, for every step that is masked, the noise that stands for its samples."""
    X, Y, raw = (part.detach() for part in learned)
    noise = masks or [None] * len(X)
    shown = [own if mask is None else mask for own, mask in zip(X, noise, strict=True)]
    rates = F.softplus(raw)
    order = [(e, s) for e in range(len(raw)) for s in range(len(X))]
    steps = [
        Batch(shown[s], Y[s], room=room) for (_, s), room in zip(order, make_rooms(task, X, len(order)), strict=True)
    ]
    path = [start]
    for (e, s), step in zip(order, steps, strict=True):
        path.append(take_distilled_step(task, path[-1], step, rates[e, s]))
    a, loss = task.grad(path[-1], real)
    found = DistilledSet(*map(torch.zeros_like, (X, Y, raw)))
    for r in reversed(range(len(order))):
        e, s = order[r]
        along, hX, hw, hY = task.adjoint(path[r], steps[r], a, by_w=r > 0, by_y=True)
        assert hY is not None
        if noise[s] is None:
            found.X[s] -= rates[e, s] * hX
            found.Y[s] -= rates[e, s] * hY
            found.raw[e, s] = -along * raw[e, s].sigmoid()
        a = a if hw is None else a - rates[e, s] * hw
    return float(loss), found


def make_rooms(task: Task, X: Tensor, steps: int) -> list[Tensor | None]:
    """For every step a place for what its adjoint can use of its gradient, as long as there is memory for that."""
    n = X.shape[1] if len(X) else 0
    one = task.room(n) if n else None
    count = 0 if one is None else room_for(one.nbytes, steps)
    return [task.room(n) if r < count else None for r in range(steps)]
