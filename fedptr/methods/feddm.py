"""FedDM: clients send images whose features near w^t are distributed as those of their data; the server trains on them.

    x     global model w^t                    X, y    a client's images, `ipc` of each class that it has
    ρ     radius around w^t                   z(w)    features of an image (the last layer's input) and its logits

Client, H times:  w' = w^t + min(1, ρ/‖ξ‖)ξ with ξ ~ N(0, I), and a step of SGD with momentum on X along the gradient of
Σ_c ‖mean z over X of class c − mean z over real images of class c‖², at w'.  X starts as real images.
Server:  `server_epochs` epochs of SGD on the union of all sets, from w^t, staying within ρ of it.

Numbered details:
1. The gap of a class is the squared gap of its mean features plus that of its mean logits.
2. `real` images are drawn of each class for every step; where a class has no more, it is all of them. A class of which
   the client has fewer images than `ipc` gets as many as there are.
3. The server stays within ρ by moving back to the nearest model at that distance after a step. The re-implementation
   that we know of does not do this. With ρ = 0 sets are matched at w^t itself, and the server goes as far as it likes.
4. Images are not augmented, and local.augment is refused. Labels are hard and fixed.
5. Nothing else in [local] matters, as clients train no model. The recorded training loss is the gap of the last step,
   and `gap_growth` is how many times the first one it is. Each step has another w' and other images, so this is often
   above 1 in a round of few steps; where it is far above, images diverge. The paper's step size suits networks with
   instance norm.

What a client sends starts as its real images, and may stay close to them: with H = 0 it is real images.

On quadratics there are no images, so the method is not defined. With H = 0 and `ipc` as large as a client's classes it
is centralised training on the union of all data in every round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedptr.core.local_training import TrainedModel
from fedptr.core.long_work import LongWork, work_through
from fedptr.core.method import Rule, Site
from fedptr.core.task import Task
from fedptr.methods.ptr.trajectory import log_entries
from fedptr.methods.sent_sets import ServerTraining, SetSender, SetWork, one_hot, train_on_union, unite
from fedptr.plots import SHORT, Look
from fedptr.settings import setting
from fedptr.types import Batch, Reply, State

CLOSED = 1e-6  # a gap of about rounding errors, as of a client whose few samples are all in its set


@dataclass(frozen=True)
class FedDM(SetSender):
    ipc: int = setting(10, "images per class that a client sends", ge=1, le=100_000)
    H: int = setting(1000, "outer steps of a client on its images", ge=0, le=100_000)
    real: int = setting(256, "real images of a class in an outer step", ge=1)
    rho: float = setting(5.0, "radius ρ around w^t of matching and of the server; 0 = at w^t, and no limit", ge=0)
    lr_img: float = setting(1.0, "step size on the images", ge=0)
    momentum: float = setting(0.5, "momentum of the steps on the images", ge=0, lt=1)
    server_epochs: int = setting(500, "epochs of the server on the union of the sets", ge=0, le=100_000)
    server_lr: float = setting(0.01, "step size of the server", gt=0)
    server_momentum: float = setting(0.9, "momentum of the server", ge=0, lt=1)
    server_decay: float = setting(5e-4, "weight decay of the server", example=0.001, ge=0)
    server_batch: int = setting(256, "batch size of the server", ge=1)

    name: ClassVar[str] = "feddm"
    idea: ClassVar[str] = "clients send images with the features of their data near w^t, and the server trains on them"
    cite: ClassVar[str] = "Xiong, Wang, Cheng et al., CVPR 2023, arXiv:2207.09653"
    family: ClassVar[str] = "sends images"
    no_augment: ClassVar[str] = "learns from the clients' images as they are"
    rule: ClassVar[Rule] = Rule(
        step="X ← X − η ∇ Σ_c ‖mean z(X_c) − mean z(D_i,c)‖², at w'",
        where="w' = w^t + min(1, ρ/‖ξ‖)ξ",
        server="x ← epochs of SGD on all X, within ρ of w^t",
    )
    look: ClassVar[Look] = Look("#56b4e9", SHORT)
    needs_features: ClassVar[bool] = True
    laptop: ClassVar[Mapping[str, Any]] = {
        "H": 10,
        "real": 16,
        "server_epochs": 20,
        "server_batch": 32,
        "server_lr": 0.03,
    }

    def most_rows(self, classes: int) -> int:
        return self.ipc * classes

    def work(self, classes: int, samples: int, numbers: int) -> SetWork:
        learned, beside = (min(each * classes, samples) for each in (self.ipc, self.real))
        return SetWork(learned, beside, blocks=self.server_batch)

    @property
    def outer_steps(self) -> int:
        return self.H

    def shorten(self, steps: int) -> Self:
        return replace(self, H=steps)

    def server_gradients(self, images: float) -> float:
        return self.server_epochs * images

    def train(self, msg: State, client: State, site: Site, buffers: State) -> tuple[TrainedModel, State]:
        labels, x, task = site.samples.labels.cpu(), msg["x"], site.task
        classes = labels.unique()
        rows = [(labels == k).nonzero().flatten() for k in classes]
        first = pick_first(rows, self.ipc, site.key("aux-init"))
        X = site.samples.take(first)[0].to(x, copy=True)
        own, draws, noise = labels[first], site.key("real-images"), site.key("neighbours")
        work = LongWork({"X": X}, torch.optim.SGD([X], self.lr_img, self.momentum), {"draws": draws, "noise": noise})

        def step() -> float:
            w = draw_neighbour(x, self.rho, noise)
            drawn = [draw_rows(part, self.real, draws) for part in rows]
            real = site.samples.take(torch.cat(drawn))[0].to(x)
            counts = torch.tensor([len(part) for part in drawn])
            loss, X.grad = gap_and_gradient(task, w, X, own, real, classes.repeat_interleave(counts), classes)
            assert work.optimiser is not None
            work.optimiser.step()
            return loss

        work_through(work, step, self.H, "learning the images", self, site, {"x": x})
        losses = work.losses
        log = log_entries(gap_growth=losses[-1] / max(losses[0], CLOSED)) if losses else {}
        trained = TrainedModel(x, max(1, self.H), losses[-1] if losses else None)
        return trained, {**client, "X": X, "Y": one_hot(own, task.classes, x), **log}

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        size, momentum, decay = self.server_batch, self.server_momentum, self.server_decay
        how = ServerTraining(self.server_lr, size, self.server_epochs, False, momentum, decay, radius=self.rho)
        union = unite(replies)
        return {**server, **union, "x": train_on_union(server["x"], union, how, self, site)}


def pick_first(rows: Sequence[Tensor], ipc: int, generator: torch.Generator) -> Tensor:
    """Up to `ipc` samples of each class, of which `rows` are the places, class by class."""
    return torch.cat([part[torch.randperm(len(part), generator=generator)[:ipc]] for part in rows])


def draw_rows(part: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` of these samples; all in their order where there are no more."""
    return part if len(part) <= count else part[torch.randperm(len(part), generator=generator)[:count]]


def draw_neighbour(x: Tensor, rho: float, generator: torch.Generator) -> Tensor:
    """A random model at most ρ away from x."""
    if not rho:
        return x
    step = torch.randn(len(x), generator=generator).to(x)
    return x + step * min(1.0, rho / float(step.norm()))


def gap_and_gradient(
    task: Task, w: Tensor, X: Tensor, own: Tensor, real: Tensor, labels: Tensor, classes: Tensor
) -> tuple[float, Tensor]:
    """The gaps between the means of a class, summed over classes, and their gradient by X."""
    with torch.no_grad():
        there = mean_by_class(task, w, real, labels, classes)
    images = X.detach().requires_grad_()
    here = mean_by_class(task, w, images, own, classes)
    gap = torch.stack([(a - b).square().sum() for a, b in zip(here, there, strict=True)]).sum()
    (g,) = torch.autograd.grad(gap, images)
    return float(gap.detach()), g


def mean_by_class(task: Task, w: Tensor, X: Tensor, labels: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """The mean features and the mean logits of each class."""
    z, logits = task.features_and_outputs(w, Batch(X, labels))
    chosen = (labels[None] == classes[:, None]).to(z)
    means = chosen / chosen.sum(1, keepdim=True)
    return means @ z, means @ logits
