"""What we compare with, as a competent user would write it: plain PyTorch, without tricks or handicaps."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, Dataset, TensorDataset

Data = Dataset[tuple[Tensor, ...]]
State = dict[str, Tensor]


def train_plain_loop(
    model: nn.Module, data: Data, batch: int, lr: float = 0.01, momentum: float = 0.5, shuffle: bool = True
) -> nn.Module:
    """One epoch on a copy of the model."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    model.train()
    for x, y in DataLoader(data, batch_size=batch, shuffle=shuffle):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def train_on_tensors(
    model: nn.Module, x: Tensor, y: Tensor, batch: int, epochs: int, lr: float, momentum: float
) -> nn.Module:
    """The model itself, trained in the order of the data, without what a DataLoader takes for a small client."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    model.train()
    for _ in range(epochs):
        for part, labels in zip(x.split(batch), y.split(batch), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(model(part), labels).backward()
            optimizer.step()
    return model


def run_plain_round(model: nn.Module, clients: Sequence[TensorDataset], batch: int, shuffle: bool = True) -> None:
    """One FedAvg round: the clients train one after another, then the weighted mean becomes the model's state."""
    states = [train_plain_loop(model, data, batch, shuffle=shuffle).state_dict() for data in clients]
    sizes = [len(data) for data in clients]
    model.load_state_dict(weighted_mean(states, sizes))


def weighted_mean(states: Sequence[State], sizes: Sequence[int]) -> State:
    shares = [size / sum(sizes) for size in sizes]
    return {
        name: torch.stack([state[name] * share for state, share in zip(states, shares, strict=True)]).sum(0)
        for name in states[0]
    }


def unrolled_gradient(
    model: nn.Module, start: Tensor, end: Tensor, beta: Tensor, batches: Sequence[tuple[Tensor, Tensor]], X: Tensor
) -> tuple[float, Tensor, Tensor]:
    """One outer step of trajectory matching through a graph over all student steps, as the public MTT code does it.

    `batches` are the student's augmented images and their labels, made from X, and `beta` its step size.
    """
    named = dict(model.named_parameters())
    sizes = [p.numel() for p in named.values()]

    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parts = zip(named.items(), torch.split(w, sizes), strict=True)
        return F.cross_entropy(functional_call(model, {name: part.view_as(p) for (name, p), part in parts}, (x,)), y)

    w = start.detach().clone().requires_grad_()
    for x, y in batches:
        (g,) = torch.autograd.grad(loss(w, x, y), w, create_graph=True)
        w = w - beta * g
    L = (w - end).square().sum() / (start - end).square().sum()
    gX, gbeta = torch.autograd.grad(L, (X, beta))
    return float(L.detach()), gX, gbeta
