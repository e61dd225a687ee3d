"""The work for us and for every reference: images with labels that can be learned, and the paper's ConvNet.

Needs only torch, as it is also imported where a peer is installed instead of us.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedptr.models.networks import MLP, ConvNet, LinearModel

SHAPE, CLASSES = (3, 32, 32), 10


def make_images(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noise on a faint coarse pattern that depends on the class; the ten patterns are the same for every seed."""
    coarse = torch.randn(CLASSES, 3, 4, 4, generator=torch.Generator().manual_seed(1234))
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=generator)
    pattern = coarse.repeat_interleave(8, 2).repeat_interleave(8, 3)[y]
    return torch.randn(n, *SHAPE, generator=generator) + 0.4 * pattern, y


def make_network(width: int, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        return ConvNet(SHAPE, CLASSES, width)


def make_network_of(work: dict[str, Any]) -> nn.Module:
    """The network of a peer's work, whose parameters are in its `state`."""
    network, shape, width = work["network"], work["shape"], work["width"]
    if network == "convnet":
        return ConvNet(shape, CLASSES, width)
    return LinearModel(shape, CLASSES) if network == "linear" else MLP(shape, CLASSES, width=width)


def count_forward_flops(model: nn.Module) -> int:
    """Operations of one image's forward pass: two for every multiplication in a convolution or linear layer."""
    counted = 0

    def count(module: nn.Module, _: object, output: Tensor) -> None:
        nonlocal counted
        weight = module.weight
        assert isinstance(weight, Tensor)
        counted += 2 * output.numel() * weight[0].numel()  # every output is a sum of that many products

    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.no_grad():
        model(torch.zeros(1, *SHAPE))
    for hook in hooks:
        hook.remove()
    return counted
