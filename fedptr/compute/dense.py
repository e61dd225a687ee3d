"""The gradient of linear models and MLPs without autograd, whose bookkeeping takes longer than the work of a small one.

    z = h Wᵀ + b,  h' = max(z, 0)         dW = dzᵀ h,  db = Σ dz,  dh = dz W
    loss = Σ q · (−log softmax(z))_y      dz = d − softmax(z) · Σ d,  d = −q at y and 0 elsewhere

These are PyTorch's own operations in autograd's order, so the bits are the same. A few batches show it before it is
used.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedptr.compute.torch_compile import Function
from fedptr.core.randomness import Key

ROWS = (1, 2, 7, 32)  # of the batches that are compared
ALIGNED = 16  # numbers; see `fedptr.core.local_training`


def find_linear_layers(model: nn.Module) -> list[nn.Linear] | None:
    """The linear layers of a model that consists of them, with a ReLU between any two; None of others."""
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward or has_hooks(model):
        return None
    layers = list(model)
    if layers and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1):
        layers = layers[1:]
    linear = layers[::2]
    right = all(type(layer) is nn.Linear and layer.bias is not None for layer in linear)
    if len(layers) % 2 == 0 or not right or any(type(layer) is not nn.ReLU for layer in layers[1::2]):
        return None
    return [layer for layer in linear if isinstance(layer, nn.Linear)]


def has_hooks(model: nn.Module) -> bool:
    return any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())


class DenseGradient:
    """The gradient of a block's weighted loss, as `make_gradient` computes it."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        self.shapes = [tuple(layer.weight.shape) for layer in layers]
        self.sizes = [p.numel() for layer in layers for p in (layer.weight, layer.bias)]
        ends = list(itertools.accumulate(self.sizes))
        self.places = list(zip([0, *ends[:-1]], ends, strict=True))
        self.same: dict[tuple[int, int, torch.dtype], bool] = {}  # see `is_same_for_many`

    def __call__(self, w: Tensor, x: Tensor, y: Tensor, q: Tensor) -> tuple[Tensor, ...]:
        w = w.detach()
        parts = torch.split_with_sizes(w, self.sizes)
        weights = [part.view(shape) for part, shape in zip(parts[::2], self.shapes, strict=True)]
        inputs, z = [], x.flatten(1)
        for k, weight in enumerate(weights):
            h = z if k == 0 else torch.relu(z)
            inputs.append(h)
            z = torch.addmm(parts[2 * k + 1], h, weight.t())
        logs = torch.log_softmax(z, 1)
        loss = (F.nll_loss(logs, y, reduction="none") * q).sum()
        d = torch.zeros_like(logs).scatter_(1, y[:, None], -q[:, None])
        dz = torch.ops.aten._log_softmax_backward_data(d, logs, 1, logs.dtype)
        found: list[Tensor] = []
        for k in reversed(range(len(weights))):
            found += [dz.sum(0), torch.mm(dz.t(), inputs[k]).view(-1)]
            if k:
                dz = torch.ops.aten.threshold_backward(torch.mm(dz, weights[k]), inputs[k], 0)
        return torch.cat(found[::-1]), loss

    def of_many(self, W: Tensor, x: Tensor, y: Tensor, q: Tensor, G: Tensor) -> Tensor:
        """The same for several clients (first dimension) with batches of one size: gradients go to G, losses come back.

        W and G are `padded_rows`.
        """
        places, clients = self.places, len(W)
        weights = [W[:, a:b].view(clients, *shape) for (a, b), shape in zip(places[::2], self.shapes, strict=True)]
        inputs, z = [], x.flatten(2)
        for k, weight in enumerate(weights):
            h = z if k == 0 else torch.relu(z)
            inputs.append(h)
            a, b = places[2 * k + 1]
            z = torch.baddbmm(W[:, None, a:b], h, weight.transpose(1, 2))
        logs, labels = torch.log_softmax(z.flatten(0, 1), 1), y.flatten()
        losses = (F.nll_loss(logs, labels, reduction="none").view(y.shape) * q).sum(1)
        d = torch.zeros_like(logs).scatter_(1, labels[:, None], -q.repeat(clients)[:, None])
        dz = torch.ops.aten._log_softmax_backward_data(d, logs, 1, logs.dtype).view_as(z)
        for k in reversed(range(len(weights))):
            (a, b), (begin, end) = places[2 * k], places[2 * k + 1]
            torch.sum(dz, 1, out=G[:, begin:end])
            for g, one, h in zip(G[:, a:b].view(clients, *self.shapes[k]), dz, inputs[k], strict=True):
                torch.mm(one.t(), h, out=g)  # one product for all of them takes three times as long
            if k:
                dz = torch.ops.aten.threshold_backward(torch.bmm(dz, weights[k]), inputs[k], 0)
        return losses

    def is_same_for_many(self, clients: int, n: int, features: tuple[int, ...], like: Tensor) -> bool:
        """Whether `of_many` gives the bits of one by one, for this many clients and batches of n samples."""
        known = (clients, n, like.dtype)
        if known not in self.same:
            size, classes, key = self.places[-1][1], self.shapes[-1][0], Key(0).at("many", clients, n)
            W, G = padded_rows(clients, size, like), padded_rows(clients, size, like)
            W[:, :size] = torch.randn(clients, size, generator=key("w"), dtype=like.dtype)
            x = torch.randn(clients, n, *features, generator=key("x"), dtype=like.dtype)
            y = torch.randint(classes, (clients, n), generator=key("y"))
            q = like.new_full((n,), 1 / n)
            losses = self.of_many(W, x, y, q, G)
            each = [self(W[i, :size], x[i], y[i], q) for i in range(clients)]
            self.same[known] = all(
                torch.equal(G[i, :size], g) and torch.equal(losses[i], loss) for i, (g, loss) in enumerate(each)
            )
        return self.same[known]


def padded_rows(clients: int, size: int, like: Tensor) -> Tensor:
    """A vector for each client, each beginning where a vector by itself would; the ends of the rows are zero."""
    return like.new_zeros(clients, -(-size // ALIGNED) * ALIGNED)


def find_dense_gradient(model: nn.Module, shape: tuple[int, ...], classes: int, usual: Function) -> Function:
    """The gradient without autograd where its bits are the usual one's; otherwise that."""
    layers = find_linear_layers(model)
    parameters = list(model.parameters())
    if layers is None or not all(p.requires_grad and p.is_cpu for p in parameters):
        return usual
    fast, key = DenseGradient(layers), Key(0).at("dense")
    w = torch.cat([p.detach().reshape(-1) for p in parameters])
    for n in ROWS:
        x = torch.randn(n, *shape, generator=key(f"images of {n}"), dtype=w.dtype)
        block = w, x, torch.arange(n) % classes, torch.full((n,), 1 / n, dtype=w.dtype)
        try:
            same = all(torch.equal(a, b) for a, b in zip(fast(*block), usual(*block), strict=True))
        except RuntimeError:  # such as inputs of another size
            same = False
        if not same:
            return usual
    return fast
