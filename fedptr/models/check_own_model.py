"""Tries a user's own model on two random images, to report now what would fail, or silently go wrong, in a round."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import functional_call

from fedptr.core.randomness import Key
from fedptr.core.task import NO_EMBED, ModelTask
from fedptr.errors import UserError
from fedptr.types import Batch

INSTEAD = "use plain operations that can be differentiated twice, or a method without second derivatives such as fedavg"


def check_model(
    name: str, task: ModelTask, second: str, seed: int, outputs_wanted: int = 0, text: tuple[int, ...] = ()
) -> None:
    """Raises a UserError that says what is wrong with a model.

    `second`: what `Method.second_derivatives` says. `outputs_wanted`: of every input, for a task without classes.
    `text`: length and vocabulary, where the inputs are token numbers.
    """
    key = Key(seed).at("trial")
    if text and second == "inputs" and task.tokens:
        raise UserError(NO_EMBED)
    soft = torch.randn(2, *task.shape, generator=key("images")).to(task.device)
    x = torch.randint(text[1], (2, text[0]), generator=key("images")).to(task.device) if text else soft
    kind = f"texts of {text[0]} tokens" if text else f"{'×'.join(map(str, task.shape))} images"
    with explain_failure(f"model {name} cannot take {kind}"):
        outputs = [compute_logits(task, x, key.at(again)) for again in range(2)]
    check_input(name, x)
    check_outputs(name, outputs, task.classes or outputs_wanted)
    batch = Batch(x, torch.arange(2, device=task.device) if task.classes else torch.zeros_like(outputs[0]))
    check_gradient(name, task, batch, key)
    if text and not task.tokens:
        check_vectors(name, task, x, key)
    if second == "inputs":
        check_second_order(name, task, batch._replace(x=soft), key)
    elif second:
        check_curvature(name, task, batch, key)


def check_vectors(name: str, task: ModelTask, tokens: Tensor, key: Key) -> None:
    """A text's word vectors must mean to the model what its tokens do."""
    with explain_failure(f"model {name} cannot take what its embed returns"):
        vectors = task.to_learnable(task.init(), tokens)
        one, other = (compute_logits(task, x, key) for x in (tokens, vectors))
    if not torch.allclose(one, other, rtol=1e-3, atol=1e-4):
        raise UserError(f"model {name} answers differently to tokens and to what its embed returns for them")


@contextlib.contextmanager
def explain_failure(what: str, advice: str = "") -> Iterator[None]:
    """Turns any error of the model into a UserError; torch's hints after its first sentence are left out."""
    try:
        yield
    except Exception as error:
        reason = str(error).partition(". ")[0].rstrip(".") or type(error).__name__
        raise UserError(f"{what}: {reason}{advice}") from error


@torch.no_grad()
def compute_logits(task: ModelTask, x: Tensor, key: Key) -> Tensor:
    task.model.eval()
    with key.fixed("model"):
        out: Tensor = functional_call(task.model, {**task.parameters(task.init()), **task.unpack_buffers(None)}, (x,))
    return out


def check_input(name: str, x: Tensor) -> None:
    """Matching reuses its images, so a model must not change them."""
    if x._version:  # counts in-place changes
        raise UserError(f"model {name} changes its input in place; begin its forward with x = x.clone()")


def check_outputs(name: str, outputs: list[Tensor], classes: int) -> None:
    first, second = outputs
    if not isinstance(first, Tensor) or tuple(first.shape) != (2, classes):
        got = f"a tensor of shape {tuple(first.shape)}" if isinstance(first, Tensor) else type(first).__name__
        raise UserError(f"model {name} must turn 2 images into a tensor of shape (2, {classes}), not {got}")
    if not first.is_floating_point() or not bool(first.isfinite().all()):
        raise UserError(f"model {name} gives {first.dtype} outputs that are not all finite numbers; check its layers")
    if not results_agree(first, second):
        raise UserError(
            f"model {name} gives different outputs each time in evaluation; switch its randomness off there, e.g. "
            "with dropout(x, training=self.training)"
        )


def check_gradient(name: str, task: ModelTask, batch: Batch, key: Key) -> None:
    """There must be a gradient, finite and reproducible."""
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
        raise UserError(f"model {name} starts with a loss or a gradient that is not finite; check its layers")
    if not bool(g.any()):
        raise UserError(f"model {name} starts with a zero gradient, so it cannot learn; change its initialisation")
    if not (results_agree(loss, loss2) and results_agree(g, g2)):
        raise UserError(
            f"model {name} is not deterministic: the same weights, images and seed gave two gradients; draw "
            "random numbers from torch's global generator only, and keep nothing between calls"
        )


def check_second_order(name: str, task: ModelTask, batch: Batch, key: Key) -> None:
    """The vector–Jacobian product that `fedptr.methods.ptr.by_trajectory.meta_gradient` needs."""
    w, x = task.init().requires_grad_(), batch.x.clone().requires_grad_()
    a = torch.randn(len(w), generator=key("adjoint")).to(w)
    with explain_failure(f"model {name} has no second derivative", f"; {INSTEAD}"), key.fixed("model"):
        (g,) = torch.autograd.grad(task.loss(w, Batch(x, batch.y)), w, create_graph=True)
        # Not autograd.grad, which silently skips a function that is marked as differentiable only once.
        torch.dot(g, a).backward()
        if x.grad is None or not bool(x.grad.isfinite().all()) or not bool(x.grad.any()):
            raise ArithmeticError("its second derivative by the images is zero or not finite")


def check_curvature(name: str, task: ModelTask, batch: Batch, key: Key) -> None:
    """The product of the loss's second derivative by the weights with a vector."""
    w = task.init().requires_grad_()
    with explain_failure(f"model {name} has no second derivative", f"; {INSTEAD}"), key.fixed("model"):
        (g,) = torch.autograd.grad(task.loss(w, batch), w, create_graph=True)
        torch.dot(g, g.detach()).backward()  # not autograd.grad, as above


def results_agree(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit on the CPU; approximately on a GPU, which may sum in any order."""
    return torch.equal(a, b) if a.device.type == "cpu" else torch.allclose(a, b, rtol=1e-3, atol=1e-5)
