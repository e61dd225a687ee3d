"""Models that are one linear layer on the inputs: which they are, and their flat vector as a matrix."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fedptr.core.method import Sizes
from fedptr.core.randomness import Key
from fedptr.core.task import Task
from fedptr.types import Batch


def is_linear_model(task: Task) -> bool:
    """Whether the model's outputs are W·x, or W·x + b, for the inputs x as they are.

    >>> from fedptr.core.task import Classification
    >>> from torch import nn
    >>> [is_linear_model(Classification(nn.Sequential(nn.Linear(4, 3), *more), (4,), 3)) for more in ([], [nn.ReLU()])]
    [True, False]
    """
    weight = (task.classes, math.prod(task.shape))
    if [tuple(layer.shape) for layer in task.layers] not in ([weight], [weight, weight[:1]]):
        return False
    w, draw = task.init(), Key(0)("linear")  # what the layers do not show is measured: an activation, dropout, a scale
    w = torch.randn(w.shape, generator=draw).to(w)
    x = torch.randn(8, *task.shape, generator=draw).to(w)
    y = torch.arange(8, device=w.device) % task.classes
    expected = F.cross_entropy(add_constant(x, task) @ to_matrix(w, task).mT, y)
    with Key(0).fixed("linear"):
        return bool(torch.isclose(task.loss(w, Batch(x, y)), expected, rtol=1e-4))


def has_bias(task: Sizes) -> bool:
    return len(task.layers) == 2


def add_constant(x: Tensor, task: Sizes) -> Tensor:
    """Inputs as rows, followed by a constant 1 where the model has a bias."""
    x = x.flatten(1)
    return torch.cat([x, x.new_ones(len(x), 1)], 1) if has_bias(task) else x


def to_matrix(w: Tensor, task: Sizes) -> Tensor:
    """The flat vector as a matrix with a row per class; the bias is its last column."""
    if not has_bias(task):
        return w.view(task.classes, -1)
    weight, bias = w[: -task.classes].view(task.classes, -1), w[-task.classes :]
    return torch.cat([weight, bias[:, None]], 1)


def to_vector(W: Tensor, task: Sizes) -> Tensor:
    """The flat vector of such a matrix."""
    return torch.cat([W[:, :-1].reshape(-1), W[:, -1]]) if has_bias(task) else W.reshape(-1)
