"""An own model is tried on two random images: what would fail in a round, or go wrong in silence, is said now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import functional_call

from fedptr.core.randomness import Key
from fedptr.core.task import Classification
from fedptr.errors import UserError
from fedptr.types import Batch

INSTEAD = "use plain operations that can be differentiated twice, or a method without matching such as fedavg"


def check_model(name: str, task: Classification, matching: bool, seed: int) -> None:
    """Raises what is wrong with a model in one sentence; `matching` needs second derivatives too."""
    key = Key(seed).at("trial")
    x = torch.randn(2, *task.shape, generator=key("images")).to(task.device)
    batch = Batch(x, torch.arange(2, device=task.device))
    with explain_failure(f"model {name} cannot take {'×'.join(map(str, task.shape))} images"):
        outputs = [compute_logits(task, x, key.at(again)) for again in range(2)]
    check_input(name, x)
    check_outputs(name, outputs, task.classes)
    check_gradient(name, task, batch, key)
    if matching:
        check_second_order(name, task, batch, key)


@contextlib.contextmanager
def explain_failure(what: str, advice: str = "") -> Iterator[None]:
    """Whatever an own model raises, as the end of a sentence; torch's hints after the first sentence are left out."""
    try:
        yield
    except Exception as error:
        reason = str(error).partition(". ")[0].rstrip(".") or type(error).__name__
        raise UserError(f"{what}: {reason}{advice}") from error


@torch.no_grad()
def compute_logits(task: Classification, x: Tensor, key: Key) -> Tensor:
    task.model.eval()
    with key.fixed("model"):
        out: Tensor = functional_call(task.model, {**task.parameters(task.init()), **task.unpack_buffers(None)}, (x,))
    return out


def check_input(name: str, x: Tensor) -> None:
    """Matching uses its images again and again."""
    if x._version:  # counts what was done to it in place
        raise UserError(f"model {name} changes its input in place; let it begin with x = x.clone()")


def check_outputs(name: str, outputs: list[Tensor], classes: int) -> None:
    first, second = outputs
    if not isinstance(first, Tensor) or tuple(first.shape) != (2, classes):
        got = f"a tensor of shape {tuple(first.shape)}" if isinstance(first, Tensor) else type(first).__name__
        raise UserError(f"model {name} must turn 2 images into a tensor of shape (2, {classes}), not {got}")
    if not first.is_floating_point() or not bool(first.isfinite().all()):
        raise UserError(f"model {name} gives {first.dtype} outputs that are not all finite numbers; check its layers")
    if not results_agree(first, second):
        raise UserError(
            f"model {name} gives other outputs each time in evaluation; switch its randomness off there, as with "
            "dropout(x, training=self.training)"
        )


def check_gradient(name: str, task: Classification, batch: Batch, key: Key) -> None:
    """That there is one, that it is finite, and that it comes out the same again."""
    found = []
    with explain_failure(
        f"model {name} cannot be trained", "; check that no operation is in place or cuts the gradient"
    ):
        for _ in range(2):
            with key.fixed("model"):
                found.append(task.grad(task.init(), batch))
    check_input(name, batch.x)
    (g, loss), (g2, loss2) = found
    if not (bool(loss.isfinite()) and bool(g.isfinite().all())):
        raise UserError(f"model {name} has a loss or a gradient that is not finite to begin with; check its layers")
    if not bool(g.any()):
        raise UserError(f"model {name} has a zero gradient to begin with, so it cannot learn; initialise it anew")
    if not (results_agree(loss, loss2) and results_agree(g, g2)):
        raise UserError(
            f"model {name} is not deterministic: the same weights, images and seed gave two gradients; let it draw "
            "from torch's global generator only, and keep nothing between calls"
        )


def check_second_order(name: str, task: Classification, batch: Batch, key: Key) -> None:
    """The product that `fedptr.methods.ptr.matching.meta_gradient` takes."""
    w, x = task.init().requires_grad_(), batch.x.clone().requires_grad_()
    a = torch.randn(len(w), generator=key("adjoint")).to(w)
    with explain_failure(f"model {name} does not allow matching", f"; {INSTEAD}"), key.fixed("model"):
        (g,) = torch.autograd.grad(task.loss(w, Batch(x, batch.y)), w, create_graph=True)
        # Not autograd.grad, which goes around, in silence, a function that is marked as differentiable once only.
        torch.dot(g, a).backward()
        if x.grad is None or not bool(x.grad.isfinite().all()) or not bool(x.grad.any()):
            raise ArithmeticError("its second derivative by the images is zero or not finite")


def results_agree(a: Tensor, b: Tensor) -> bool:
    """Bit for bit on the CPU; elsewhere sums may be taken in any order."""
    return torch.equal(a, b) if a.device.type == "cpu" else torch.allclose(a, b, rtol=1e-3, atol=1e-5)
