"""FedD3: one round in which every client sends a few images that a kernel regression on them predicts its data from.

    X_i, Y    client i's images, and their labels as rows (one-hot − 1/C)      Θ    the infinitely wide network's kernel
    T         a batch of the client's real images                              C    classes

Client, H times:  a step of Adam on X_i along the gradient of  ½ mean_T ‖Θ(T, X_i)(Θ(X_i, X_i) + ε)⁻¹ Y − Y_T‖²,  with
ε = `ridge`·mean diagonal of Θ(X_i, X_i).  X_i starts as `k` real images, as many of each class as possible.
Server:  `server_epochs` epochs of Adam on the union of all sets, from the initial model.

Numbered details:
1. Θ is that of a fully connected ReLU network with four hidden layers, whatever the model is (`fedptr.methods.ntk`). It
   is computed in double precision. Labels are fixed.
2. `mode` says what is sent: "distilled" images as above; a "coreset" of the means of a Gaussian mixture for each class;
   "real" images, the ones that the other modes start from; or "all" data, which is the upper bound: centralised
   training. A client of fewer than k images sends that many.
3. The mixture has diagonal covariances, as an image has many more pixels than a class has images.
4. All H steps are taken. The public code stops when a batch of ten images is predicted well.
5. All images are normalised as the test images are. The public code normalises each client's by themselves.
6. Clients need nothing from the server, so nothing is sent to them, and nothing in [local] matters; local.augment is
   refused. The recorded training loss is that of the last step.
7. A run has one round. Where a program asks for more, every round does all of it again, from the model of the last.

What a client sends starts as its real images, and may stay close to them; "real" and "all" are its real images.

On quadratics there are no images, so the method is not defined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fedptr.core.local_training import TrainedModel
from fedptr.core.long_work import LongWork, work_through
from fedptr.core.method import EACH_SAMPLE, Cost, Rule, Site
from fedptr.methods.gaussian_mixture import mixture_means
from fedptr.methods.ntk import LAYERS, regress
from fedptr.methods.sent_sets import ServerTraining, SetSender, SetWork, one_hot, pick_balanced, train_on_union, unite
from fedptr.plots import DOTS, Look
from fedptr.settings import setting
from fedptr.types import Reply, State

KEPT = 12  # matrices of the kernel's shape that a layer keeps for the gradient


@dataclass(frozen=True)
class FedD3(SetSender):
    mode: Literal["distilled", "coreset", "real", "all"] = setting("distilled", "what clients send; all = all data")
    k: int = setting(10, "images that a client sends", ge=1, le=100_000)
    H: int = setting(3000, "outer steps of a client on its images", ge=0, le=100_000)
    targets: int = setting(500, "real images that a step predicts; a client of no more predicts all", ge=1)
    ridge: float = setting(1e-6, "ridge ε of the regression, as a part of the kernel's mean diagonal", ge=0)
    lr_img: float = setting(4e-3, "step size of Adam on the images", ge=0)
    server_epochs: int = setting(500, "epochs of the server on the union of the sets", ge=0, le=100_000)
    server_lr: float = setting(1e-3, "step size of the server's Adam", gt=0)
    server_decay: float = setting(1e-4, "weight decay of the server", example=0.001, ge=0)
    server_batch: int = setting(50, "batch size of the server", ge=1)

    name: ClassVar[str] = "fedd3"
    idea: ClassVar[str] = "one round: clients send a few images that predict their data, and the server trains on them"
    cite: ClassVar[str] = "Song et al., IEEE TNNLS 2023, arXiv:2208.11311"
    family: ClassVar[str] = "sends images"
    no_augment: ClassVar[str] = "learns from the clients' images as they are"
    rule: ClassVar[Rule] = Rule(
        step="X_i ← Adam on ½ mean ‖Θ(T, X_i)(Θ(X_i, X_i) + ε)⁻¹Y − Y_T‖²",
        where="Θ = the infinitely wide network's kernel",
        server="x ← epochs of Adam on all X_i",
    )
    look: ClassVar[Look] = Look("#56b4e9", DOTS)
    cost: ClassVar[Cost] = Cost(down=0)
    one_shot: ClassVar[bool] = True
    laptop: ClassVar[Mapping[str, Any]] = {"k": 20, "H": 100, "server_epochs": 100}

    def most_rows(self, classes: int) -> int:
        return EACH_SAMPLE if self.mode == "all" else self.k

    def work(self, classes: int, samples: int, numbers: int) -> SetWork:
        k, targets = min(self.k, samples), min(self.targets, samples)
        kernels, images = KEPT * LAYERS * k * (k + targets), 6 * (k + targets) * numbers
        beside = {"distilled": kernels + images, "coreset": 3 * samples * numbers}
        return SetWork(numbers=beside.get(self.mode, 0), blocks=self.server_batch)

    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        """Clients need nothing."""
        return {}, server

    @property
    def outer_steps(self) -> int:
        return self.H if self.mode == "distilled" else 0

    def shorten(self, steps: int) -> Self:
        return replace(self, H=steps)

    def server_gradients(self, images: float) -> float:
        return self.server_epochs * images

    def train(self, msg: State, client: State, site: Site, buffers: State) -> tuple[TrainedModel, State]:
        w = site.task.init()
        X, y, losses = self.make_set(site, w)
        trained = TrainedModel(w, max(1, len(losses)), losses[-1] if losses else None)
        return trained, {**client, "X": X.to(w), "Y": one_hot(y, site.task.classes, w)}

    def make_set(self, site: Site, like: Tensor) -> tuple[Tensor, Tensor, list[float]]:
        """A client's images, their labels, and the losses of learning them."""
        labels = site.samples.labels.cpu()
        if self.mode == "all":
            X, y = site.samples.take(torch.arange(len(labels)))
            return X, y.cpu(), []
        rows = pick_balanced(labels, self.k, site.key("aux-init"))
        y, X = labels[rows], site.samples.take(rows)[0].to(like)
        if self.mode == "coreset":
            return self.mixture_set(site, labels, y, X), y, []
        return self.learn_images(site, X, y) if self.mode == "distilled" else (X, y, [])

    def mixture_set(self, site: Site, labels: Tensor, y: Tensor, X: Tensor) -> Tensor:
        """For each class as many means as the balanced set has images of it."""
        means, generator = [], site.key("mixture")
        for k in y.unique().tolist():
            own = site.samples.take((labels == k).nonzero().flatten())[0].to(X)
            means.append(mixture_means(own.flatten(1), int((y == k).sum()), generator).view(-1, *X.shape[1:]))
        return torch.cat(means)

    def learn_images(self, site: Site, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor, list[float]]:
        """The images after H steps, in double precision."""
        X, draws, m = X.double(), site.key("real-images"), len(site.samples)
        Y = self.centred(y, site, X)
        work = LongWork({"X": X}, torch.optim.Adam([X], lr=self.lr_img), {"draws": draws})

        def step() -> float:
            rows = torch.arange(m) if m <= self.targets else torch.randperm(m, generator=draws)[: self.targets]
            T, y_T = site.samples.take(rows)
            loss, X.grad = loss_and_gradient(X, Y, T.to(X), self.centred(y_T, site, X), self.ridge)
            assert work.optimiser is not None
            work.optimiser.step()
            return loss

        work_through(work, step, self.H, "learning the images", self, site, {})
        return X, y, work.losses

    def centred(self, y: Tensor, site: Site, like: Tensor) -> Tensor:
        """Labels as the regression has them: one-hot − 1/C."""
        return one_hot(y, site.task.classes, like) - 1 / site.task.classes

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        epochs, decay = self.server_epochs, self.server_decay
        how = ServerTraining(self.server_lr, self.server_batch, epochs, adam=True, weight_decay=decay)
        union = unite(replies)
        return {**server, **union, "x": train_on_union(server["x"], union, how, self, site)}


def loss_and_gradient(X: Tensor, Y: Tensor, T: Tensor, Y_T: Tensor, ridge: float) -> tuple[float, Tensor]:
    """How well a regression on (X, Y) predicts (T, Y_T), and the gradient of this by X."""
    images = X.detach().requires_grad_()
    loss = (regress(images.flatten(1), Y, T.flatten(1), ridge) - Y_T).square().sum(1).mean() / 2
    (g,) = torch.autograd.grad(loss, images)
    return float(loss.detach()), g
