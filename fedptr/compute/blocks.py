"""The same task, a block of images at a time: blocks fit into the processor's cache and are spread over threads.

A gradient over a batch is the sum of its blocks' gradients, taken in order. The blocks depend on the model and the
batch size only, and each is computed by one thread, so the number of threads does not change a single bit. Threads that
share one operation, as PyTorch's do, wait for each other several thousand times a second; on a busy machine that takes
longer than the work.

Only for models that treat images independently: with BatchNorm or dropout the blocks do not add up to the batch.
"""

from __future__ import annotations

import copy
import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp

from fedptr.compute.dense import find_dense_gradient
from fedptr.compute.torch_compile import CompiledFunction, Function, compile_function, trace_operations
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Adjoint, Classification, ExtraLoss, second_order_adjoint
from fedptr.models.networks import ConvNet
from fedptr.types import Batch, Shape

Block = tuple[Tensor, Tensor, Tensor]  # images, labels, and each image's weight in the mean
T = TypeVar("T")
S = TypeVar("S")

CACHE = 10e6  # bytes of the largest activation in a block; more would not fit into the cache
LEAST = 2e6  # bytes; with less, the overhead exceeds the gain of a second thread
OVERHEAD = 2  # of a block, in images
PROGRAMS: dict[tuple[Any, ...], tuple[CompiledFunction, CompiledFunction]] = {}


def choose_block_size(widest: float, batches: Sequence[int]) -> int:
    """Images per block for batches of these sizes; `widest` is an image's largest activation in bytes.

    As many as fit into the cache, in pairs for two threads, with few empty rows in the last pair.

    >>> choose_block_size(widest=128 * 32 * 32 * 4, batches=[500, 100])
    17
    >>> choose_block_size(widest=32 * 32 * 32 * 4, batches=[500, 100])
    50
    >>> choose_block_size(widest=4096, batches=[64])
    64
    """
    most = min(max(1, int(CACHE / widest)), max(batches))
    least = min(max(most // 4, math.ceil(LEAST / widest)), most)
    return choose_even_size(range(max(1, least), most + 1), batches)


def choose_even_size(sizes: Iterable[int], batches: Sequence[int]) -> int:
    """The block size with the least work for two threads: overhead per block, plus empty rows in the last pair.

    >>> choose_even_size(range(6, 26), [500, 100])
    25
    """

    def cost(block: int) -> float:
        rows = sum(math.ceil(n / (2 * block)) * 2 * block / n for n in batches)
        return rows * (1 + OVERHEAD / block)

    return min(sizes, key=lambda block: (cost(block), -block))


class BlockedTask(Classification):
    """A `Classification` that computes in blocks, compiled or not. PyTorch itself should use one thread."""

    def __init__(
        self,
        model: nn.Module,
        shape: Shape | tuple[int, ...],
        classes: int,
        device: str = "cpu",
        block: int = 64,
        chunk: int = 1000,  # images per block of an evaluation
        threads: int = 1,
        compiled: bool = False,
        local: str = "",
    ) -> None:
        super().__init__(model, shape, classes, device, local=local)
        assert not self._buffers, "buffers are updated by whole batches"
        self.block, self.chunk, self.threads, self.compiled = block, chunk, threads, compiled
        self.how = "torch.compile" if compiled else "blocks"
        self.at_once = block  # images whose activations a thread holds in memory
        self._own = threading.local()  # functional_call writes to its module, so every thread has one
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._grad: Function = make_gradient(self._loss)
        if not compiled and not self.held:
            self._grad = find_dense_gradient(self.model, self.shape, self.classes, self._grad)
        self._adjoint: Function = self._second_order
        if compiled:
            self._grad, self._adjoint = self._compiled(self._grad, self._adjoint)

    def compiled_parts(self) -> dict[str, bool]:
        """Which functions torch.compile was tried on so far, and whether it succeeded."""
        if self.own_names:  # clients train all of it
            return self.joint.compiled_parts()
        parts = {"gradient": self._grad, "adjoint": self._adjoint}
        return {name: f.fast is not None for name, f in parts.items() if isinstance(f, CompiledFunction) and f.tried}

    def make_joint(self) -> Self:
        """Not a copy: its functions know the layers."""
        how = (self.block, self.chunk, self.threads, self.compiled)
        return type(self)(self.model, self.shape, self.classes, self.device, *how)

    def grad(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        grad = make_gradient(self._loss) if batch.y.is_floating_point() else self._grad
        return self._total(lambda block: grad(w, *block), self._blocks(batch))

    def adjoint(self, w: Tensor, batch: Batch, a: Tensor, by_w: bool = True, by_y: bool = False) -> Adjoint:
        """Soft labels, a number for every class, are computed by eager PyTorch, even if hard ones are compiled."""
        soft = batch.y.is_floating_point()
        adjoint = functools.partial(self._second_order, by_y=by_y) if soft else self._adjoint
        return self._joined(lambda block: adjoint(w, *block, a), self._blocks(batch), len(batch.y), by_w)

    def grad_with_extra(self, w: Tensor, batch: Batch, extra: ExtraLoss) -> tuple[Tensor, Tensor]:
        """By eager PyTorch, even if `grad` is compiled."""

        def gradient(block: Block) -> tuple[Tensor, Tensor]:
            x, y, q = block
            v = w.detach().requires_grad_()
            z, losses = self.outputs(v, Batch(x, y))
            loss = (losses * q).sum()
            (g,) = torch.autograd.grad(loss + (extra(z, x) * q).sum(), v)
            return g, loss.detach()

        return self._total(gradient, self._blocks(batch))

    @torch.no_grad()
    def evaluate(self, w: Tensor, data: Samples, buffers: Tensor | None = None) -> dict[str, float]:
        return self._scored(self._predictor(w), data)

    def predict(self, w: Tensor, data: Samples, buffers: Tensor | None = None) -> Tensor:
        predictor = self._predictor(w)

        def choose(index: Tensor) -> Tensor:
            with torch.no_grad():
                return predictor(data.take(index)[0]).argmax(1)

        return torch.cat(list(self._each(choose, torch.arange(len(data)).split(self.chunk))))

    def _predictor(self, w: Tensor) -> Callable[[Tensor], Tensor]:
        """What makes logits of inputs."""
        return lambda x: self._logits(w, x, training=False)

    def _total(self, gradient: Callable[[T], tuple[Tensor, ...]], blocks: Iterable[T]) -> tuple[Tensor, Tensor]:
        parts = self._each(gradient, blocks)
        g, loss = next(parts)
        for more, extra in parts:
            g, loss = g.add_(more), loss + extra
        return g, loss

    def _joined(
        self, adjoint: Callable[[T], tuple[Tensor, ...]], blocks: Iterable[T], images: int, by_w: bool
    ) -> Adjoint:
        slopes, by_x, by_ws, *by_y = zip(*self._each(adjoint, blocks), strict=True)
        total = by_ws[0]
        for more in by_ws[1:]:
            total = total.add_(more)
        labels = torch.cat(by_y[0]) if by_y else None
        return Adjoint(torch.stack(slopes).sum(), torch.cat(by_x)[:images], total if by_w else None, labels)

    def _scored(self, predict: Callable[[Tensor], Tensor], data: Samples) -> dict[str, float]:
        def score(index: Tensor) -> tuple[int, float]:
            x, y = data.take(index)
            with torch.no_grad():  # it is not inherited by other threads
                logits = predict(x)
            return int((logits.argmax(1) == y).sum()), float(F.cross_entropy(logits, y, reduction="sum"))

        right, losses = zip(*self._each(score, torch.arange(len(data)).split(self.chunk)), strict=True)
        return {"accuracy": sum(right) / len(data), "loss": sum(losses) / len(data)}

    def _compiled(self, grad: Function, adjoint: Function) -> tuple[Function, Function]:
        """Models of this package with the same layers share compiled code, as parameters are arguments of it.

        Other models are compiled individually, as their description may not show how they differ.
        """
        known = type(self.model).__module__ == ConvNet.__module__ and not self.held  # which are part of the code
        alike = str(self.model) if known else object()
        kind = (alike, self.shape, self.classes, self.device, self.block, next(self.model.parameters()).dtype)
        if kind not in PROGRAMS:
            PROGRAMS[kind] = (
                CompiledFunction(
                    grad,
                    lambda *args: make_gradient(compile_function(self._operations(self.model, *args))),
                    "the gradient",
                ),
                CompiledFunction(
                    adjoint, lambda *args: make_adjoint(compile_function(self._slope(*args))), "the matching's adjoint"
                ),
            )
        return PROGRAMS[kind]

    def _blocks(self, batch: Batch) -> Iterator[Block]:
        """The blocks in order; for torch.compile all of the same size."""
        n, images = len(batch.y), batch.x.detach().contiguous()  # augmentation may change their layout
        if n <= self.block and not self.compiled and images.is_floating_point():
            yield images, batch.y, images.new_full((n,), 1 / n)
            return
        for x, y in zip(images.split(self.block), batch.y.split(self.block), strict=True):
            kind = x.dtype if x.is_floating_point() else next(self.model.parameters()).dtype  # of token numbers
            q = torch.full((len(y),), 1 / n, dtype=kind, device=x.device)
            missing = self.block - len(y) if self.compiled and not y.is_floating_point() else 0
            if missing:  # copies of a real image, which the model can surely take
                x = torch.cat([x, x[:1].expand(missing, *x.shape[1:])])
                y, q = torch.cat([y, y[:1].expand(missing)]), F.pad(q, (0, missing))
            yield x, y, q

    def _each(self, f: Callable[[T], S], items: Iterable[T]) -> Iterator[S]:
        """f of each item, in order, several at a time unless there is a client for every thread."""
        self.company.check()
        items = list(items)
        if self.threads <= self.company.clients or len(items) == 1:
            return map(f, items)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.threads, "fedptr-block")
        return self._pool.map(f, items)

    def for_another_thread(self) -> Self:
        """This one: every thread has a module."""
        return self

    def _module(self) -> nn.Module:
        if not hasattr(self._own, "model"):
            shared = {id(p): p for p in self.model.parameters() if not p.requires_grad}  # nobody writes to them
            self._own.model = copy.deepcopy(self.model, shared)
        model: nn.Module = self._own.model
        return model

    def _logits(self, w: Tensor, x: Tensor, training: bool) -> Tensor:
        logits: Tensor = functional_call(self._module().train(training), self.parameters(w), (x,))
        return logits

    def _loss(self, w: Tensor, x: Tensor, y: Tensor, q: Tensor) -> Tensor:
        return weighted_loss(self._logits(w, x, training=True), y, q)

    def _second_order(
        self, w: Tensor, x: Tensor, y: Tensor, q: Tensor, a: Tensor, by_y: bool = False
    ) -> tuple[Tensor, ...]:
        found = second_order_adjoint(lambda w, x, y: self._loss(w, x, y, q), w, x, y, a, by_y=by_y)
        return tuple(part for part in found if part is not None)

    def _operations(self, model: nn.Module, *args: Tensor) -> Callable[..., Tensor]:
        """The loss of a block, for the compiler."""
        model = copy.deepcopy(model).train()

        def loss(w: Tensor, x: Tensor, y: Tensor, q: Tensor) -> Tensor:
            return weighted_loss(functional_call(model, self.parameters(w), (x,)), y, q)

        return trace_operations(loss, *args, constants=bool(self.held))

    def _slope(self, w: Tensor, x: Tensor, y: Tensor, q: Tensor, a: Tensor) -> Callable[..., Tensor]:
        """⟨∇ℓ(w), a⟩ in forward mode, which the compiler can differentiate; it cannot differentiate a gradient."""
        model = copy.deepcopy(self.model)
        for module in model.modules():
            if type(module) is nn.GroupNorm:
                module.__class__ = PlainGroupNorm
        loss = self._operations(model, w, x, y, q)

        def slope(w: Tensor, x: Tensor, y: Tensor, q: Tensor, a: Tensor) -> Tensor:
            along: Tensor = jvp(lambda v: loss(v, x, y, q), (w,), (a,))[1]
            return along

        return slope


class PlainGroupNorm(nn.GroupNorm):
    """GroupNorm in plain operations, whose forward-mode derivative compiles to half the work."""

    def forward(self, x: Tensor) -> Tensor:
        groups = x.unflatten(1, (self.num_groups, -1))
        within = list(range(2, groups.dim()))
        d = groups - groups.mean(within, keepdim=True)
        unit: Tensor = (d * torch.rsqrt((d * d).mean(within, keepdim=True) + self.eps)).flatten(1, 2)
        if not self.affine:
            return unit
        each = (1, -1, *[1] * (x.dim() - 2))
        out: Tensor = unit * self.weight.view(each) + self.bias.view(each)
        return out


def weighted_loss(logits: Tensor, y: Tensor, q: Tensor) -> Tensor:
    return (F.cross_entropy(logits, y, reduction="none") * q).sum()


def make_gradient(loss: Callable[..., Tensor]) -> Function:
    def run(w: Tensor, x: Tensor, y: Tensor, q: Tensor) -> tuple[Tensor, ...]:
        w = w.detach().requires_grad_()
        value = loss(w, x, y, q)
        (g,) = torch.autograd.grad(value, w)
        return g, value.detach()

    return run


def make_adjoint(slope: Callable[..., Tensor]) -> Function:
    def run(w: Tensor, x: Tensor, y: Tensor, q: Tensor, a: Tensor) -> tuple[Tensor, ...]:
        w, x = w.detach().requires_grad_(), x.detach().requires_grad_()
        value = slope(w, x, y, q, a)
        hx, hw = torch.autograd.grad(value, (x, w))
        return value.detach(), hx, hw

    return run


def is_separable(model: nn.Module, shape: Shape | tuple[int, ...], classes: int) -> bool:
    """Whether a batch's gradient is the sum over its parts. Tested on four random images, in double precision.

    >>> is_separable(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (1, 2, 2), 2)
    True
    >>> is_separable(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Dropout()), (1, 2, 2), 2)
    False
    """
    if any(True for _ in model.buffers()):
        return False
    key = Key(0).at("separable")
    x = torch.randn(4, *shape, generator=key("images"), dtype=torch.float64)
    batch = Batch(x, torch.arange(4) % classes)
    try:
        exact = copy.deepcopy(model).double().cpu()
        whole = BlockedTask(exact, shape, classes, block=4)
        parts = BlockedTask(exact, shape, classes, block=3)
        with key.fixed("model"):
            (g, _), (g2, _) = (task.grad(task.init(), batch) for task in (whole, parts))
    except Exception:  # `check_model` reports what is wrong
        return False
    return bool(torch.allclose(g, g2, rtol=1e-9, atol=1e-9 * float(g.abs().max())))
