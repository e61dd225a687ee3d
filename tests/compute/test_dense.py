"""The gradient of linear models and MLPs without autograd: the same bits, or it is not used."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedptr.compute.blocks import BlockedTask, make_gradient
from fedptr.compute.dense import DenseGradient, find_linear_layers
from fedptr.models.networks import MLP, LinearModel
from fedptr.types import Batch, Shape

CASES: dict[str, tuple[nn.Module, Shape, int]] = {
    "linear": (LinearModel((1, 8, 8), 10), (1, 8, 8), 10),
    "two classes": (LinearModel((1, 1, 5), 2), (1, 1, 5), 2),
    "mlp": (MLP((1, 8, 8), 10, width=32), (1, 8, 8), 10),
    "narrow": (MLP((1, 1, 13), 3, width=7), (1, 1, 13), 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_no_bit_differs_from_autograd(name: str, dtype: torch.dtype) -> None:
    model, shape, classes = CASES[name]
    task = BlockedTask(model.to(dtype), shape, classes, block=16)
    assert isinstance(task._grad, DenseGradient)
    usual, g = make_gradient(task._loss), torch.Generator().manual_seed(0)
    for n in range(1, 50):
        w = task.init() + 0.3 * torch.randn(task.layers[-1].stop, generator=g, dtype=dtype)
        x, y = torch.randn(n, *shape, generator=g, dtype=dtype), torch.randint(classes, (n,), generator=g)
        found = task.grad(w, Batch(x, y))
        task._grad, fast = usual, task._grad
        expected = task.grad(w, Batch(x, y))
        task._grad = fast
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def shared() -> nn.Sequential:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def watched() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4, bias=False)),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Flatten(), nn.Linear(4, 4)),
        nn.Sequential(),
        nn.Linear(4, 4),
        watched(),
    ],
)
def test_other_models_are_left_to_autograd(model: nn.Module) -> None:
    assert find_linear_layers(model) is None


@pytest.mark.parametrize("model", [shared(), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))])
def test_what_is_shared_or_frozen(model: nn.Sequential) -> None:
    if model[0] is not model[2]:
        model[0].weight.requires_grad_(False)  # type: ignore[union-attr]
    assert not isinstance(BlockedTask(model, (4,), 4)._grad, DenseGradient)


def test_labels_that_are_learned() -> None:
    task = BlockedTask(LinearModel((1, 2, 2), 3), (1, 2, 2), 3)
    w, x, y = task.init(), torch.randn(2, 1, 2, 2), torch.tensor([0, 2])
    hard, soft = (task.grad(w, Batch(x, labels))[0] for labels in (y, torch.eye(3)[y]))
    torch.testing.assert_close(hard, soft)


def test_a_wrong_label_is_refused() -> None:
    task = BlockedTask(LinearModel((1, 2, 2), 3), (1, 2, 2), 3)
    with pytest.raises(IndexError):
        task.grad(task.init(), Batch(torch.zeros(2, 1, 2, 2), torch.tensor([0, 3])))
