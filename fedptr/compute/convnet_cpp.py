"""The paper's ConvNet in our own C++ (convnet.cpp): the same numbers up to rounding, in a fraction of the time.

Before it is used, its gradients, adjoint and logits of a few images are compared with PyTorch's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor, nn

from fedptr.compute.blocks import BlockedTask
from fedptr.compute.compiler import UnavailableError
from fedptr.compute.cpp_extension import load_library
from fedptr.compute.torch_compile import TOLERANCE
from fedptr.core.randomness import Key
from fedptr.core.task import Adjoint, Classification, ExtraLoss
from fedptr.models.networks import ConvNet
from fedptr.types import Batch

BlockWithRoom = tuple[Tensor, Tensor, Tensor, Tensor | None]  # a block with its part of `Batch.room`

REAL = {torch.float32: "float", torch.float64: "double"}
GROUP = 3  # images that convnet.cpp processes at a time
OTHER = "the model has other layers"
BLOCKS = range(2 * GROUP, 26)  # images per block: small enough for many cores; larger ones are no faster


def is_supported(task: Classification) -> bool:
    """Whether convnet.cpp can compute the model."""
    return type(task.model) is ConvNet and not find_obstacle(task)


def find_obstacle(task: Classification) -> str:
    """Why convnet.cpp cannot compute a ConvNet, if it cannot."""
    model = task.model
    first = model[0]  # type: ignore[index]
    if task.device != "cpu":
        return f"it is for the CPU, not for {task.device}"
    if task.held:
        return "a part of the model is frozen"
    if not isinstance(first, nn.Conv2d) or next(model.parameters()).dtype not in REAL:
        return OTHER
    if first.out_channels % 8:
        return f"the model's width {first.out_channels} is not a multiple of 8"
    channels, height, width = task.shape
    with torch.device("meta"):  # for comparison: the model's layers may have been changed
        usual = ConvNet((channels, height, width), task.classes, first.out_channels, count_convolutions(model))
    return "" if str(usual) == str(model) else OTHER


def count_convolutions(model: nn.Module) -> int:
    return sum(isinstance(layer, nn.Conv2d) for layer in model.modules())


class ConvNetCppTask(BlockedTask):
    """A `BlockedTask` computed by convnet.cpp. Raises `UnavailableError` if that cannot be compiled or is wrong."""

    def __init__(self, model: nn.Module, *args: Any, **options: Any) -> None:
        super().__init__(model, *args, **options)
        self.how, self.at_once = "winograd", GROUP
        assert is_supported(self)
        first, self._linear = model[0], model[-1]  # type: ignore[index]
        self._shape = (ctypes.c_int64 * 7)(
            count_convolutions(model), first.out_channels, *self.shape, first.padding[0], self.classes
        )  # as `struct Shape`
        self._dtype = first.weight.dtype
        self.library = load_library("convnet", REAL[self._dtype])
        self.library.packed_size.restype = self.library.kept_size.restype = ctypes.c_int64
        self._packed_size, self._kept_size = self.library.packed_size(self._shape), self.library.kept_size(self._shape)
        self._compare()

    def grad(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        w = self._checked(w)
        packed = self._pack(w)

        def gradient(block: BlockWithRoom) -> tuple[Tensor, Tensor]:
            return self._gradient(w, packed, *block)

        return self._total(gradient, self._blocks_with_room(batch))

    def grad_with_extra(self, w: Tensor, batch: Batch, extra: ExtraLoss) -> tuple[Tensor, Tensor]:
        w = self._checked(w)
        packed = self._pack(w)

        def gradient(block: BlockWithRoom) -> tuple[Tensor, Tensor]:
            x, _, q, _ = block
            z = self._features(w, packed, x).requires_grad_()
            (dz,) = torch.autograd.grad((extra(z, x) * q).sum(), z)
            return self._gradient(w, packed, *block, dz)

        return self._total(gradient, self._blocks_with_room(batch))

    def features(self, w: Tensor, x: Tensor) -> Tensor:
        w = self._checked(w)
        return self._features(w, self._pack(w), self._checked(x))

    def adjoint(self, w: Tensor, batch: Batch, a: Tensor, by_w: bool = True, by_y: bool = False) -> Adjoint:
        w, a = self._checked(w), self._checked(a)
        packed, packed_a = self._pack(w), self._pack(a)

        def adjoint(block: BlockWithRoom) -> tuple[Tensor, ...]:
            x, y, q, room = block
            hx, hw, slope = torch.empty_like(x), torch.zeros_like(w), w.new_empty(())
            hy = torch.empty_like(y) if by_y else None
            labels = self._labels(y)
            self._call("adjoint", w, packed, a, packed_a, x, *labels, q, len(y), room, hw, slope, hx, hy, int(by_w))
            return (slope, hx, hw) if hy is None else (slope, hx, hw, hy)

        return self._joined(adjoint, self._blocks_with_room(batch), len(batch.y), by_w)

    def _predictor(self, w: Tensor) -> Callable[[Tensor], Tensor]:
        w = self._checked(w)
        packed = self._pack(w)
        return lambda x: self._predict(w, packed, x)

    def room(self, images: int) -> Tensor | None:
        return torch.empty(images, self._kept_size, dtype=self._dtype) if self._kept_size else None

    def _blocks_with_room(self, batch: Batch) -> Iterator[BlockWithRoom]:
        rooms = repeat(None) if batch.room is None else self._checked(batch.room).split(self.block)
        for block, room in zip(self._blocks(batch._replace(x=self._checked(batch.x))), rooms, strict=False):
            yield *block, room

    def _gradient(
        self, w: Tensor, packed: Tensor, x: Tensor, y: Tensor, q: Tensor, room: Tensor | None, dz: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The gradient of a block; `dz`, the derivative of an additional loss by the features, is added."""
        g, loss = torch.zeros_like(w), w.new_empty(())
        dz = None if dz is None else self._checked(dz)
        self._call("gradient", w, packed, x, *self._labels(y), q, len(y), room, dz, g, loss)
        return g, loss

    def _labels(self, y: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Class numbers, or a number for every class."""
        return (None, self._checked(y)) if y.is_floating_point() else (y, None)

    def _features(self, w: Tensor, packed: Tensor, x: Tensor) -> Tensor:
        out = w.new_empty(len(x), self._linear.in_features)
        self._call("predict", w, packed, x, len(x), out, None)
        return out

    def _predict(self, w: Tensor, packed: Tensor, x: Tensor) -> Tensor:
        out = w.new_empty(len(x), self.classes)
        self._call("predict", w, packed, self._checked(x), len(x), None, out)
        return out

    def _pack(self, w: Tensor) -> Tensor:
        """The filters, transformed for multiplication; used by all blocks."""
        packed = w.new_empty(self._packed_size)
        self._call("pack", w, packed)
        return packed

    def _checked(self, t: Tensor) -> Tensor:
        if t.dtype != self._dtype:
            raise TypeError(f"the model computes in {self._dtype}, and was given {t.dtype}")
        return t.detach().contiguous()

    def _call(self, name: str, *args: Tensor | int | None) -> None:
        if getattr(self.library, name)(self._shape, *map(to_c_argument, args)) and name in ("gradient", "adjoint"):
            raise IndexError(f"a label is out of bounds: there are {self.classes} classes")

    def _compare(self) -> None:
        """Compares with PyTorch near the model's initial parameters."""
        key = Key(0).at("winograd")
        x = torch.randn(GROUP + 1, *self.shape, generator=key("images"), dtype=self._dtype)
        batch = Batch(x, torch.arange(len(x)) % self.classes)
        a = torch.randn(self.layers[-1].stop, generator=key("direction"), dtype=self._dtype)
        w = self.init() + 0.01 * a
        theirs = (
            super().grad(w, batch), super().adjoint(w, batch, a), (self._logits(w, x, training=False),),
            super().grad_with_extra(w, batch, sum_of_squares),
        )  # fmt: skip
        ours = (
            self.grad(w, batch), self.adjoint(w, batch, a), (self._predict(w, self._pack(w), x),),
            self.grad_with_extra(w, batch, sum_of_squares),
        )  # fmt: skip
        off = max(
            float((mine - other).detach().norm() / (other.detach().norm() + 1e-30))
            for mine, other in zip(chain(*ours), chain(*theirs), strict=True)
            if mine is not None and other is not None
        )
        if not off <= TOLERANCE:
            raise UnavailableError(f"its results differ by {off:.0e}")


def sum_of_squares(z: Tensor, x: Tensor) -> Tensor:
    return z.square().sum(1)


def to_c_argument(arg: Tensor | int | None) -> ctypes.c_int64 | ctypes.c_void_p:
    """An argument as C takes it."""
    if isinstance(arg, int):
        return ctypes.c_int64(arg)
    return ctypes.c_void_p(None if arg is None else arg.data_ptr())
