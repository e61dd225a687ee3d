"""The part of a model that every client keeps to itself: `model.local`, as FedPer and LG-FedAvg have it.

    w     what is shared: all that the method, its messages and the server see    `task.layers`
    v_i   what client i keeps, at first the initial model's                       the entry OWN of its state
    u     both, in the model's order                                              `task.joint`

A client trains u by the one training loop on its own loss; the method's pull acts on w, and v_i takes plain steps. Of
the result, w goes to the method's `reply`, and v_i stays. The client's own model is w with its v_i. The global model
has the initial v, as nobody has another.

This is exact for methods whose training is the base's: ∇L_i plus a pull. Those that train in another way, evaluate
gradients beside their steps or give clients models of their own are refused.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedptr.core.local_training import TrainedModel, local_sgd
from fedptr.core.method import Method, Site
from fedptr.core.task import ModelTask, Task
from fedptr.errors import ReplyError, UserError
from fedptr.types import Batch, State

OWN = "own part"
HOOKS = ("train", "gradient", "prepare", "data", "ask")  # which must be the base's


def has_own_part(task: Task) -> bool:
    return isinstance(task, ModelTask) and bool(task.own_names)


def gives_own_models(method: Method, task: Task) -> bool:
    """Whether a client's own model is another than the global one."""
    return method.personalised or has_own_part(task)


def check_own_part(method: Method, task: Task) -> None:
    """Refuses methods whose training is not the base's, and models with running statistics."""
    if not has_own_part(task):
        return
    other = [hook for hook in HOOKS if getattr(type(method), hook) is not getattr(Method, hook)]
    if method.personalised or method.effort.full or other:
        raise UserError(
            f"{method.name} cannot keep a part of the model with each client: it trains in another way than by a pull "
            "added to the gradient; use fedavg, fedprox, scaffold, feddyn, feddc or fedadam, or leave model.local out"
        )
    if task.initial_buffers() is not None:
        raise UserError(
            "model.local keeps parameters with each client, but not running statistics (BatchNorm); use a model with "
            "GroupNorm or InstanceNorm"
        )


def first_part(task: Task) -> State:
    """What a client that was never visited keeps."""
    if not has_own_part(task):
        return {}
    assert isinstance(task, ModelTask)
    return {OWN: task.joint.init()[own_places(task)]}


def train_both_parts(
    method: Method, msg: State, client: State, v: Tensor, site: Site, buffers: State
) -> tuple[TrainedModel, Tensor]:
    """A client's training of w and v_i together; the trained model holds w alone."""
    task = site.task
    assert isinstance(task, ModelTask)
    joint, own = task.joint, own_places(task)
    shared = ~own

    def gradient(u: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        g, loss = joint.grad(u, batch)
        pull = method.pull(u[shared], msg, client, site)
        if pull is not None:
            g[shared] += pull
        return g, loss

    start = join_parts(task, method.start(msg, client), v)
    trained = local_sgd(start, gradient, method.data(msg, client, site), replace(site, task=joint), buffers)
    kept = trained.w[own]
    if not bool(torch.isfinite(kept).all()):
        raise ReplyError("its own part is not finite; a smaller local.lr or a local.clip may help")
    return trained._replace(w=trained.w[shared]), kept


def find_own_model(method: Method, msg: State, client: State, site: Site) -> tuple[Task, Tensor]:
    """The model that a client would use, and the task that it is a vector of."""
    w = method.personal(msg, client, site)
    if not has_own_part(site.task):
        return site.task, w
    assert isinstance(site.task, ModelTask)
    return site.task.joint, join_parts(site.task, w, client[OWN])


def join_parts(task: ModelTask, w: Tensor, v: Tensor) -> Tensor:
    """u, from what is shared and what is kept."""
    own = own_places(task).to(w.device)
    u = w.new_empty(len(own))
    u[~own], u[own] = w, v
    return u


def own_places(task: ModelTask) -> Tensor:
    """Which places of u belong to v."""
    layers = task.joint.layers
    own = torch.zeros(layers[-1].stop, dtype=torch.bool, device=task.device)
    for layer in layers:
        own[layer.start : layer.stop] = layer.name in task.own_names
    return own
