"""Trajectory matching of a set whose labels are learned, too.

    X, Y    auxiliary images, and the logits of their labels: an image's label is softmax(Y)
    β       the learnable step size of the student
    L       ‖ŵ_R − w_end‖² / ‖w_start − w_end‖²               a      the adjoint ∂L/∂ŵ_r

The gradient is exact and comes from an adjoint sweep, as in `fedptr.methods.ptr.by_trajectory`. It is computed by plain
PyTorch: the fast kernels take soft labels too, but round differently, and would change the bits of earlier runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedptr.core.task import Task
from fedptr.methods.ptr.dsa import Augmentation
from fedptr.types import Batch


class SoftSet(NamedTuple):
    """The auxiliary set and the student's step size; or the gradients of all three."""

    X: Tensor
    Y: Tensor
    beta: Tensor


def soft_loss(task: Task, w: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    """The cross-entropy with labels softmax(Y), as a mean over images."""
    return task.loss(w, Batch(X, Y.softmax(1)))


def soft_gradient(task: Task, w: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    """The gradient of `soft_loss` by w."""
    w = w.detach().requires_grad_()
    (g,) = torch.autograd.grad(soft_loss(task, w, X.detach(), Y.detach()), w)
    return g


def soft_meta_gradient(
    task: Task, start: Tensor, end: Tensor, learned: SoftSet, augments: Sequence[Augmentation]
) -> tuple[float, SoftSet]:
    """L and its gradient; the student takes one step per augmentation, on the whole set."""
    X, Y, beta = (part.detach() for part in learned)
    path = [start]
    for augment in augments:
        path.append(path[-1] - beta * soft_gradient(task, path[-1], augment(X), Y))
    span2 = (start - end).square().sum()
    L = float((path[-1] - end).square().sum() / span2)
    a = 2 * (path[-1] - end) / span2
    gX, gY, gbeta = torch.zeros_like(X), torch.zeros_like(Y), torch.zeros_like(beta)
    for w, augment in zip(path[-2::-1], reversed(augments), strict=True):
        v, images, logits = (part.detach().requires_grad_() for part in (w, X, Y))
        (g,) = torch.autograd.grad(soft_loss(task, v, augment(images), logits), v, create_graph=True)
        along = torch.dot(g, a)
        hX, hY, hw = torch.autograd.grad(along, (images, logits, v), materialize_grads=True)
        gX, gY, gbeta, a = gX - beta * hX, gY - beta * hY, gbeta - along.detach(), a - beta * hw
    return L, SoftSet(gX, gY, gbeta)
