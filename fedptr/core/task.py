"""A task: a loss on one flat parameter vector.

Parameters travel as one vector with named layer slices, so that formulas read as in the papers and a message is a
handful of arrays. Buffers (BatchNorm's statistics) are kept apart: floating-point ones are averaged with the clients'
weights; integer counters are never averaged and start at their initial value in every visit.
"""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable
from typing import NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedptr.core.model_parts import freeze_parts, match_names
from fedptr.core.samples import Samples
from fedptr.errors import UserError
from fedptr.types import Batch, Layer, Shape, State

NO_EMBED = (
    "this method learns auxiliary samples, and the model takes token numbers, which cannot be learned; give the model "
    "a method embed(tokens) and let forward take what it returns, or choose a method without matching such as fedavg"
)


class Adjoint(NamedTuple):
    """⟨∇ℓ(w, x), a⟩ for a fixed vector a, and its derivatives."""

    along: Tensor
    by_x: Tensor
    by_w: Tensor | None  # None if not requested
    by_y: Tensor | None = None  # None if not requested


class Company:
    """Who computes with a task at this moment; see `fedptr.compute.side_by_side`."""

    clients = 1

    def check(self) -> None:
        """Raises in a thread whose results nobody waits for any more."""


ExtraLoss = Callable[[Tensor, Tensor], Tensor]  # features and images of a batch -> an additional loss per image


class Task(Protocol):
    """The interface of a learning problem for the engine and the methods."""

    layers: tuple[Layer, ...]
    classes: int
    shape: tuple[int, ...]

    def init(self) -> Tensor: ...
    def loss(self, w: Tensor, batch: Batch) -> Tensor: ...
    def grad(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]: ...
    def adjoint(self, w: Tensor, batch: Batch, a: Tensor, by_w: bool, by_y: bool = False) -> Adjoint: ...
    def room(self, images: int) -> Tensor | None: ...
    def features(self, w: Tensor, x: Tensor) -> Tensor: ...
    def features_and_outputs(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]: ...
    def grad_with_extra(self, w: Tensor, batch: Batch, extra: ExtraLoss) -> tuple[Tensor, Tensor]: ...
    def evaluate(self, w: Tensor, data: Samples, buffers: Tensor | None) -> dict[str, float]: ...
    def auxiliary_labels(self, ipc: int) -> Tensor: ...
    def to_learnable(self, w: Tensor, x: Tensor) -> Tensor: ...
    def reachable_end(self, start: Tensor, end: Tensor) -> Tensor: ...
    def initial_buffers(self) -> Tensor | None: ...
    def unpack_buffers(self, flat: Tensor | None) -> State: ...
    def pack_buffers(self, buffers: State) -> Tensor: ...


class Differentiable:
    """Derives `grad` and `adjoint` from `loss`, for tasks without a faster way."""

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        raise NotImplementedError

    def grad(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The gradient of the mean loss over a batch, and that loss."""
        w = w.detach().requires_grad_()
        loss = self.loss(w, batch)
        (g,) = torch.autograd.grad(loss, w)
        return g, loss.detach()

    def adjoint(self, w: Tensor, batch: Batch, a: Tensor, by_w: bool = True, by_y: bool = False) -> Adjoint:
        """One vector–Jacobian product of the gradient, for `fedptr.methods.ptr`; `by_y` if labels are learned."""

        def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self.loss(w, batch._replace(x=x, y=y))

        return second_order_adjoint(loss, w, batch.x, batch.y, a, by_w, by_y)

    def room(self, images: int) -> Tensor | None:
        """An uninitialised row per image for `Batch.room`; None if the task keeps nothing."""
        return None

    def outputs(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Each image's features, the input of the last layer, and its loss."""
        raise UserError(f"{type(self).__name__} has no features, which this method needs; choose another method")

    def features_and_outputs(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The same features, and the model's outputs instead of losses."""
        raise UserError(f"{type(self).__name__} has no features, which this method needs; choose another method")

    @torch.no_grad()
    def features(self, w: Tensor, x: Tensor) -> Tensor:
        z, _ = self.outputs(w, Batch(x, torch.zeros(len(x), dtype=torch.int64, device=x.device)))
        return z

    def grad_with_extra(self, w: Tensor, batch: Batch, extra: ExtraLoss) -> tuple[Tensor, Tensor]:
        """The gradient of the mean of loss plus `extra`, and the mean loss alone."""
        w = w.detach().requires_grad_()
        z, losses = self.outputs(w, batch)
        loss = losses.mean()
        (g,) = torch.autograd.grad(loss + extra(z, batch.x).mean(), w)
        return g, loss.detach()

    def auxiliary_labels(self, ipc: int) -> Tensor:
        """The labels of FedPTR's auxiliary samples, `ipc` of each class."""
        classes = getattr(self, "classes", 0)
        if not classes:
            raise UserError(
                f"{type(self).__name__} has no classes, and does not say which labels FedPTR's auxiliary samples have; "
                "define auxiliary_labels, or choose a method without them"
            )
        return torch.arange(classes).repeat_interleave(ipc)

    def to_learnable(self, w: Tensor, x: Tensor) -> Tensor:
        """Inputs as FedPTR's auxiliary samples, which are learned: of texts, their words' vectors at w."""
        return x

    def reachable_end(self, start: Tensor, end: Tensor) -> Tensor:
        """The end of a trajectory, as far as training on auxiliary samples can lead there from its start."""
        return end

    def initial_buffers(self) -> Tensor | None:
        return None

    def unpack_buffers(self, flat: Tensor | None) -> State:
        return {}

    def pack_buffers(self, buffers: State) -> Tensor:
        raise NotImplementedError


class ModelTask(Differentiable):
    """A `torch.nn.Module` and a loss: override `losses`, and `scores` for more than the loss on a test set.

    `shape` is that of one input, without the batch: `(3, 32, 32)` for images, `(13,)` for a table. Methods see the
    model's parameters as one flat vector w; the module itself keeps its initial weights. Parameters that are frozen are
    no part of w: those with `requires_grad=False`, and those that `freeze` names by patterns such as "features.*". Nor
    are those that `local` names: every client trains its own (`fedptr.core.own_part`).

    >>> class Absolute(ModelTask):
    ...     def losses(self, outputs, y):
    ...         return (outputs - y).abs().mean(1)
    >>> task = Absolute(nn.Linear(4, 1), (4,))
    >>> task.loss(task.init(), Batch(torch.zeros(2, 4), torch.ones(2, 1))).shape
    torch.Size([])
    """

    how = "whole batches"  # how it is computed, for the record
    tokens = 0  # where the inputs are token numbers below this, and the model takes no vectors instead of them
    classes = 0  # labels are no class numbers
    company = Company()

    def __init__(
        self,
        model: nn.Module,
        shape: Shape | tuple[int, ...],
        device: str = "cpu",
        freeze: str = "",
        local: str = "",
    ) -> None:
        freeze_parts(model, freeze)
        self.model = model.to(device)
        self.shape, self.device = tuple(shape), device
        self.choose_layers(local)
        self._buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
        self._floating = [name for name, b in self._buffers.items() if b.is_floating_point()]
        if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
            warnings.warn(
                "the model has BatchNorm: its running statistics are averaged over clients like the weights, its "
                "counters are not; with very different clients GroupNorm is the safer choice",
                stacklevel=2,
            )

    def choose_layers(self, local: str) -> None:
        """Which parameters w consists of: those that are trained, without those that each client keeps to itself."""
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not trained:
            raise UserError("no parameter of the model is left to train: all are frozen, or it has none; freeze fewer")
        self.local, self.own_names = local, tuple(match_names(local, trained, "local"))
        layers, start = [], 0
        for name, p in trained.items():
            if name not in self.own_names:
                layers.append(Layer(name, start, start + p.numel(), tuple(p.shape)))
                start += p.numel()
        if not layers:
            raise UserError(f"local = {local} leaves no parameter to share; use the method `local` to share nothing")
        self.layers = tuple(layers)
        self._sizes = [layer.stop - layer.start for layer in layers]

    def init(self) -> Tensor:
        """The model's initial parameters as one vector."""
        parameters = dict(self.model.named_parameters())
        return torch.cat([parameters[layer.name].detach().reshape(-1) for layer in self.layers]).clone()

    @property
    def held(self) -> State:
        """The parameters that are no part of w, by name; with their initial values."""
        names = {layer.name for layer in self.layers}
        return {name: p.detach() for name, p in self.model.named_parameters() if name not in names}

    @functools.cached_property
    def joint(self) -> Self:
        """The same task over all that a client trains: what is shared, and what it keeps to itself."""
        return self.make_joint() if self.own_names else self

    def make_joint(self) -> Self:
        """For `joint`; override it where a copy with other layers is not enough."""
        joint = copy.copy(self)
        joint.choose_layers("")
        return joint

    def for_another_thread(self) -> Self:
        """The same task for a thread of its own: to compute is to write to the module."""
        other = copy.copy(self)
        other.__dict__.pop("joint", None)
        other.model = copy.deepcopy(self.model)
        return other

    def join(self, company: Company) -> None:
        """Says who computes with this task from now on."""
        self.company = company
        if self.own_names:
            self.joint.join(company)

    def named_tensors(self, w: Tensor, buffers: Tensor | None = None) -> State:
        """A whole model by name: its parameters, those that are held, and its running statistics."""
        return {**self.parameters(w), **self.held, **self.unpack_buffers(buffers)}

    def parameters(self, w: Tensor) -> State:
        """The flat vector as the model's named parameters (views); without those that are held."""
        parts = torch.split(w, self._sizes)
        return {layer.name: part.view(layer.shape) for layer, part in zip(self.layers, parts, strict=True)}

    def to_module(self, w: Tensor, buffers: Tensor | None = None) -> nn.Module:
        """A copy of the model with these parameters and running statistics, in evaluation mode."""
        module = copy.deepcopy(self.model)
        module.load_state_dict({**self.parameters(w), **self.unpack_buffers(buffers)}, strict=False)
        return module.eval()

    def to_learnable(self, w: Tensor, x: Tensor) -> Tensor:
        """Floats and pixels as they are; token numbers as the vectors that the model's `embed` gives them."""
        if x.dtype not in (torch.int64, torch.int32):
            return x
        if not hasattr(self.model, "embed"):
            raise UserError(NO_EMBED)
        with torch.no_grad():
            names = {f"model.{name}": value for name, value in self.parameters(w).items()}
            vectors: Tensor = functional_call(WordVectors(self._module()), names, (x,))
        return vectors

    def reachable_end(self, start: Tensor, end: Tensor) -> Tensor:
        """A table of word vectors gets no gradient from vectors, so it stays where it starts."""
        if not self._unreached:
            return end
        end = end.clone()
        for layer in self._unreached:
            end[layer.start : layer.stop] = start[layer.start : layer.stop]
        return end

    @functools.cached_property
    def _unreached(self) -> list[Layer]:
        """The layers that a model with `embed` does not use for vectors."""
        if not hasattr(self.model, "embed"):
            return []
        self.model.eval()
        first = next(self.model.parameters())
        outputs = self.model(torch.zeros(1, *self.shape, dtype=first.dtype, device=first.device))
        grads = torch.autograd.grad(outputs.sum(), list(self.model.parameters()), allow_unused=True)
        return [layer for layer, g in zip(self.layers, grads, strict=True) if g is None]

    def example_inputs(self, n: int) -> Tensor:
        """n inputs of the kind that the model takes, all zero."""
        kind = torch.int64 if self.tokens else torch.get_default_dtype()
        return torch.zeros(n, *self.shape, dtype=kind, device=self.device)

    def __init_subclass__(cls) -> None:
        """A class with losses of its own does not inherit faster ways to compute its parent's."""
        super().__init_subclass__()
        if "losses" in vars(cls):
            for name in ("mean_loss", "sum_losses"):
                if name not in vars(cls):
                    setattr(cls, name, getattr(ModelTask, name))

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of every sample, from the model's outputs and the labels."""
        raise NotImplementedError

    def checked_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The losses; one of another shape, such as a mean or [n, 1] − [n], would train, and mean something else."""
        losses = self.losses(outputs, y)
        if losses.shape != y.shape[:1]:
            raise UserError(
                f"{type(self).__name__}.losses gives shape {list(losses.shape)} for {len(y)} samples; it must give one "
                "loss for each of them"
            )
        return losses

    def mean_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean of `losses`; override it where that can be computed faster, or must be to the bit."""
        return self.checked_losses(outputs, y).mean()

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Sums over samples, for `score_sums`; besides the loss."""
        return {}

    def score_sums(self, sums: dict[str, float], n: int) -> dict[str, float]:
        """The scores of a set of n samples, from the sums of its chunks."""
        return {name: value / n for name, value in sums.items()}

    def check_labels(self, y: Tensor, whose: str) -> None:
        """Raises a UserError, in one sentence, where labels do not suit the task."""

    @property
    def groups(self) -> int:
        """How many kinds of labels FedPTR's auxiliary samples have; 0 if it is not known."""
        return self.classes

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        """The mean loss over a batch, at parameters w."""
        self.company.check()
        buffers = self.unpack_buffers(None) if batch.buffers is None else batch.buffers
        outputs = functional_call(self._module().train(), {**self.parameters(w), **buffers}, (batch.x,))
        return self.mean_loss(outputs, batch.y)

    def outputs(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The features are the input of the linear layer that runs last."""
        z, outputs = self.features_and_outputs(w, batch)
        return z, self.checked_losses(outputs, batch.y)

    @torch.no_grad()
    def features(self, w: Tensor, x: Tensor) -> Tensor:
        """The inputs' features; see `outputs`."""
        return self.features_and_outputs(w, Batch(x, x))[0]  # labels are not needed

    def features_and_outputs(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The features of a batch, and what the model makes of them; differentiable."""
        buffers = self.unpack_buffers(None) if batch.buffers is None else batch.buffers
        given: list[Tensor] = []
        model = self._module().train()
        hooks = [
            layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
            for layer in model.modules()
            if isinstance(layer, nn.Linear)
        ]
        try:
            outputs = functional_call(model, {**self.parameters(w), **buffers}, (batch.x,))
        finally:
            for hook in hooks:
                hook.remove()
        if not given:
            raise UserError("this method needs the features before a model's last nn.Linear layer, and it has none")
        return given[-1].flatten(1), outputs

    def _module(self) -> nn.Module:
        """The module to compute with."""
        return self.model

    @torch.no_grad()
    def evaluate(self, w: Tensor, data: Samples, buffers: Tensor | None = None) -> dict[str, float]:
        """The mean loss of a model on a set, and its other scores."""
        self.model.eval()
        state = {**self.parameters(w), **self.unpack_buffers(buffers)}
        sums: dict[str, float] = {}
        for x, y in data.chunks():
            self.company.check()
            outputs = functional_call(self.model, state, (x,))
            found = {**self.scores(outputs, y), "loss": self.sum_losses(outputs, y)}
            sums = {name: sums.get(name, 0) + value for name, value in found.items()}
        return self.score_sums(sums, len(data))

    def sum_losses(self, outputs: Tensor, y: Tensor) -> float:
        """The sum of `losses`."""
        return float(self.checked_losses(outputs, y).sum())

    def initial_buffers(self) -> Tensor | None:
        """The model's floating-point buffers as one vector; None if it has none."""
        return self.pack_buffers(self._buffers) if self._floating else None

    def unpack_buffers(self, flat: Tensor | None) -> State:
        """All buffers by name, the floating-point ones from the vector."""
        buffers = {name: b.clone() for name, b in self._buffers.items()}
        if flat is not None:
            parts = torch.split(flat, [buffers[name].numel() for name in self._floating])
            for name, part in zip(self._floating, parts, strict=True):
                buffers[name].copy_(part.view_as(buffers[name]))
        return buffers

    def pack_buffers(self, buffers: State) -> Tensor:
        """The floating-point buffers as one vector."""
        return torch.cat([buffers[name].reshape(-1) for name in self._floating]).clone()


class Classification(ModelTask):
    """What is learned: the cross-entropy of a `torch.nn.Module` that maps inputs to logits, a column per class.

    `shape` is that of one input; see `ModelTask`.

    >>> task = Classification(nn.Linear(4, 3), (4,), 3)
    >>> [(layer.name, layer.stop - layer.start) for layer in task.layers]
    [('weight', 12), ('bias', 3)]
    """

    def __init__(
        self,
        model: nn.Module,
        shape: Shape | tuple[int, ...],
        classes: int,
        device: str = "cpu",
        freeze: str = "",
        local: str = "",
    ) -> None:
        super().__init__(model, shape, device, freeze, local)
        self.classes = classes

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y, reduction="none")

    def mean_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y)

    def sum_losses(self, outputs: Tensor, y: Tensor) -> float:
        return float(F.cross_entropy(outputs, y, reduction="sum"))

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        return {"accuracy": int((outputs.argmax(1) == y).sum())}

    def check_labels(self, y: Tensor, whose: str) -> None:
        """Labels are class numbers. Cross-entropy takes others too, and learns nothing from them."""
        if y.dim() != 1 or y.dtype.is_floating_point or y.dtype.is_complex:
            raise UserError(
                f"{whose} has labels of type {str(y.dtype).removeprefix('torch.')} and shape {list(y.shape)}; "
                "Classification takes one class number per sample, from 0; to predict numbers use fedptr.Regression"
            )
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.classes:
            wrong = int(y.min()) if int(y.min()) < 0 else int(y.max())
            raise UserError(f"{whose} has the label {wrong}; labels are class numbers from 0 to {self.classes - 1}")

    @torch.no_grad()
    def predict(self, w: Tensor, data: Samples, buffers: Tensor | None = None) -> Tensor:
        """The class that a model sees in every sample of a set."""
        self.model.eval()
        state = {**self.parameters(w), **self.unpack_buffers(buffers)}
        return torch.cat([functional_call(self.model, state, (x,)).argmax(1) for x, _ in data.chunks()])


class WordVectors(nn.Module):
    """A model's `embed` as a module, so that it can be called with other parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.model.embed(tokens)  # type: ignore[operator]
        return vectors


def has_features(task: Task) -> bool:
    """Whether the model has a linear layer, whose inputs are the features; other tasks say it when they are asked."""
    return not isinstance(task, ModelTask) or any(isinstance(part, nn.Linear) for part in task.model.modules())


def takes_texts(task: Task) -> bool:
    """Whether the model's inputs are token numbers, which cannot be learned."""
    return bool(getattr(task, "tokens", 0)) or hasattr(getattr(task, "model", None), "embed")


def second_order_adjoint(
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    w: Tensor,
    x: Tensor,
    y: Tensor,
    a: Tensor,
    by_w: bool = True,
    by_y: bool = False,
) -> Adjoint:
    """The adjoint of a loss of parameters, images and labels, by differentiating its gradient again."""
    whole = not x.is_floating_point()  # token numbers have no derivative
    w, x = w.detach().requires_grad_(), x.detach() if whole else x.detach().requires_grad_()
    y = y.detach().requires_grad_() if by_y else y
    (g,) = torch.autograd.grad(loss(w, x, y), w, create_graph=True)
    along = torch.dot(g, a)
    if whole:
        (hw_alone,) = torch.autograd.grad(along, w, materialize_grads=True)
        return Adjoint(along.detach(), torch.zeros_like(x, dtype=w.dtype), hw_alone if by_w else None)
    wanted = [x, *[w] * by_w, *[y] * by_y]
    hx, *more = torch.autograd.grad(along, wanted, materialize_grads=True)
    return Adjoint(along.detach(), hx, more[0] if by_w else None, more[-1] if by_y else None)


def full_gradient(task: Task, w: Tensor, data: Samples) -> Tensor:
    """∇L_i(w) over a client's whole set."""
    return add_mean_gradient(data, torch.zeros_like(w), lambda batch: task.grad(w, batch))


def add_mean_gradient(data: Samples, total: Tensor, grad: Callable[[Batch], tuple[Tensor, Tensor]]) -> Tensor:
    """Adds the mean gradient over a whole set to `total`, chunk by chunk."""
    for x, y in data.chunks():
        g, _ = grad(Batch(x, y))
        total.add_(g, alpha=len(y) / len(data))
    return total


def vector_norm(v: Tensor) -> float:
    return math.sqrt(float(torch.dot(v, v)))
