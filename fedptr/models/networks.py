"""The paper's ConvNet and other models. Your own model is `module:factory`, called with (input shape, classes)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedptr.errors import UserError
from fedptr.models.text import TextConv, TextMean, check_kind
from fedptr.own_code import current_folder_first, import_own
from fedptr.settings import setting, unknown_name_error
from fedptr.types import Shape


@dataclass(frozen=True)
class ModelPlan:
    name: str = setting(
        "convnet",
        "convnet, mlp, lenet, resnet18, linear, text-mean, text-conv, or your own model as module:factory",
        example="mlp",
    )
    width: int = setting(
        0, "channels or hidden units; 0 = the default (convnet and mlp 128, resnet18 and text 64)", example=32, ge=0
    )
    depth: int = setting(3, "blocks of the convnet", example=2, ge=1, le=8)
    init: str = setting(
        "",
        "start from these weights: a safetensors file, or the folder of a finished run; empty = random",
        example="runs/fedavg-digits-seed0",
    )
    init_except: str = setting(
        "", "parameters that start random all the same: patterns separated by commas", example="13.*"
    )
    freeze: str = setting(
        "", "parameters that are not trained and not sent: patterns separated by commas", example="0.*, 4.*"
    )
    local: str = setting(
        "",
        "parameters that every client trains for itself and never sends: patterns separated by commas",
        example="5.*",
    )


class ConvNet(nn.Sequential):
    """depth × [conv 3×3, instance norm, ReLU, average pool 2×2], then one linear layer.

    A one-channel input gets padding 3 in the first convolution (28×28 becomes 32×32), as in the code of MTT.
    """

    def __init__(self, shape: Shape, classes: int, width: int = 128, depth: int = 3) -> None:
        channels, height, side = shape
        layers: list[nn.Module] = []
        for block in range(depth):
            padding = 3 if block == 0 and channels == 1 else 1
            height, side = ((n + 2 * padding - 2) // 2 for n in (height, side))
            layers += [
                nn.Conv2d(shape[0] if block == 0 else width, width, 3, padding=padding),
                nn.GroupNorm(width, width),  # one group per channel: instance norm, no running statistics
                nn.ReLU(),
                nn.AvgPool2d(2),
            ]
        if shape[1:] == (1, 1):
            raise UserError("the convnet is for images, and a row of a table is not one; use --model mlp or linear")
        if height < 1 or side < 1:
            raise UserError(f"model.depth {depth} pools {shape[1]}×{shape[2]} images down to nothing; use fewer blocks")
        super().__init__(*layers, nn.Flatten(), nn.Linear(width * height * side, classes))


class LinearModel(nn.Sequential):
    """One linear layer on the pixels."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), classes))


class MLP(nn.Sequential):
    def __init__(self, shape: Shape, classes: int, width: int = 128) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(math.prod(shape), width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, classes),
        )  # fmt: skip


class LeNet(nn.Sequential):
    """LeNet-5 with ReLU and max pooling; images smaller than 32×32 are padded by 2."""

    def __init__(self, shape: Shape, classes: int) -> None:
        pad = 2 if min(shape[1:]) < 32 else 0
        height, side = (((n + 2 * pad - 4) // 2 - 4) // 2 for n in shape[1:])
        if height < 1 or side < 1:
            raise UserError(f"lenet needs images of at least 12×12, not {shape[1]}×{shape[2]}; use convnet or mlp")
        super().__init__(
            nn.Conv2d(shape[0], 6, 5, padding=pad), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * height * side, 120), nn.ReLU(),
            nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, classes),
        )  # fmt: skip


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), group_norm(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), group_norm(outputs),
        )  # fmt: skip
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), group_norm(outputs)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


class ResNet18(nn.Sequential):
    """ResNet-18 for small images (3×3 stem, no first pooling) with GroupNorm, which has no statistics to average."""

    def __init__(self, shape: Shape, classes: int, width: int = 64) -> None:
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        blocks = [
            ResidualBlock(widths[stage] if first else widths[stage + 1], widths[stage + 1], 2 if first and stage else 1)
            for stage in range(4)
            for first in (True, False)
        ]
        super().__init__(
            nn.Conv2d(shape[0], width, 3, 1, 1, bias=False), group_norm(width), nn.ReLU(),
            *blocks,
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes),
        )  # fmt: skip


def group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(32, channels), channels)


def build_model(plan: ModelPlan, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The model a plan names, for a dataset of this `Dataset.shape`.

    >>> sum(p.numel() for p in build_model(ModelPlan(), (3, 32, 32), 10).parameters())
    320010
    """
    width = {"width": plan.width} if plan.width else {}
    image: Any = shape
    known: dict[str, Callable[[], nn.Module]] = {
        "convnet": lambda: ConvNet(image, classes, depth=plan.depth, **width),
        "mlp": lambda: MLP(image, classes, **width),
        "lenet": lambda: LeNet(image, classes),
        "resnet18": lambda: ResNet18(image, classes, **width),
        "linear": lambda: LinearModel(image, classes),
    }
    texts: dict[str, Callable[[], nn.Module]] = {
        "text-mean": lambda: TextMean(shape, classes, **width),
        "text-conv": lambda: TextConv(shape, classes, **width),
    }
    if plan.name in {**known, **texts}:
        check_kind(plan.name, plan.name in texts, shape)
    known |= texts
    if ":" in plan.name:
        known[plan.name] = lambda: load_own_model(plan.name, shape, classes)
    if plan.name not in known:
        raise UserError(
            f"model.name: {unknown_name_error(plan.name, plan.name, [*known, 'module:factory'], 'a model')}"
        )
    try:
        return known[plan.name]()
    except UserError:
        raise
    except Exception as error:  # an error in a factory, or a width that does not fit into memory
        size = "×".join(map(str, shape))
        raise UserError(f"model {plan.name} cannot be built for {size} images, {classes} classes: {error}") from error


def load_own_model(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Calls `module:factory` with (shape, classes); the shape of texts is (length, vocabulary).

    The current folder is searched first, as with `python -m`.
    """
    factory = import_own(name, "model.name", "module:factory")
    with current_folder_first():
        model = factory(shape, classes)
    if not isinstance(model, nn.Module) or not any(True for _ in model.parameters()):
        raise UserError(f"model {name} must return a torch.nn.Module with parameters, not {type(model).__name__}")
    return model
