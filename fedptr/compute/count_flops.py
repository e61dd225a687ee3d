"""How many floating-point operations the gradient of one sample takes.

PyTorch's own counter is exact for any model, and loads its compiler: seconds, before a run that may be over sooner. The
models of this package are made of convolutions and linear layers, which are counted here to the same number.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fedptr.models
from fedptr.core.task import Classification, Differentiable
from fedptr.types import Batch

Counted = nn.Conv1d | nn.Conv2d | nn.Linear


def count_flops(task: Classification) -> float:
    """Of all that is convolution or matrix product; the rest is small beside it."""
    x = task.example_inputs(1)
    ours = type(task.model).__module__.startswith(f"{fedptr.models.__name__}.")
    return count_layers(task.model, x) if ours and not task.held else count_operations(task, x)


def count_operations(task: Classification, x: Tensor) -> float:
    """By PyTorch's counter, which sees into no code but its own."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        Differentiable.grad(task, task.init(), Batch(x, torch.zeros(1, dtype=torch.int64, device=task.device)))
    return float(counter.get_total_flops())


def count_layers(model: nn.Module, x: Tensor) -> float:
    """The same number for a model whose products are all in its layers: each has one for its output, one for the
    gradient of its weights, and one for the gradient of its inputs unless these are the model's own.
    """
    total = 0

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        assert isinstance(layer, Counted)
        total += (3 if inputs[0].requires_grad else 2) * 2 * output.numel() * layer.weight[0].numel()

    hooks = [layer.register_forward_hook(count) for layer in model.modules() if isinstance(layer, Counted)]
    try:
        with torch.enable_grad():
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return float(total)
