"""Counted layer by layer it is what PyTorch counts operation by operation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedptr.compute.count_flops import count_flops, count_layers, count_operations
from fedptr.core.task import Classification
from fedptr.models.networks import ModelPlan, build_model

MODELS: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({"name": "convnet", "width": 8}, (3, 32, 32)),
    ({"name": "convnet", "width": 16, "depth": 2}, (1, 8, 8)),
    ({"name": "mlp", "width": 16}, (5, 1, 1)),
    ({"name": "linear"}, (1, 28, 28)),
    ({"name": "lenet"}, (1, 28, 28)),
    ({"name": "resnet18", "width": 8}, (3, 32, 32)),
]


@pytest.mark.parametrize(("model", "shape"), MODELS, ids=lambda value: str(value))
def test_both_counts_are_the_same(model: dict[str, Any], shape: tuple[int, ...]) -> None:
    task = Classification(build_model(ModelPlan(**model), shape, 10), shape, 10)
    x = torch.zeros(1, *shape)
    assert count_flops(task) == count_layers(task.model, x) == count_operations(task, x) > 0
    assert not any(layer._forward_hooks for layer in task.model.modules())


class Product(nn.Module):
    """A model whose product is in no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.table


def test_a_model_of_ones_own_is_counted_by_its_operations() -> None:
    task = Classification(Product(), (1, 2, 2), 3)
    assert count_flops(task) == count_operations(task, torch.zeros(1, 1, 2, 2)) == 2 * 2 * 4 * 3


def test_what_is_frozen_is_left_out() -> None:
    model = build_model(ModelPlan(name="mlp", width=16), (5, 1, 1), 10)
    frozen = Classification(model, (5, 1, 1), 10, freeze="1.*")
    assert count_flops(frozen) == count_operations(frozen, torch.zeros(1, 5, 1, 1))
    assert count_flops(frozen) < count_layers(model, torch.zeros(1, 5, 1, 1))
