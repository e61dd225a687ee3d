"""DynaFed: the server learns an auxiliary dataset once, from the first rounds, and trains on it in every later round.

    x       global model w^t              X, Y   auxiliary images, and the logits of their labels
    L       rounds of FedAvg before       β      the learnable step size of the student
    trail   the first L+1 global models

Rounds 1 to L are FedAvg's. Then the server learns (X, Y, β): in each of H outer steps a student starts at a
random model of the trail, takes R steps of size β on the set, and should arrive at a mean of the models that follow.
From round L+1 on, the server trains the clients' mean on the set before it is sent. Clients do nothing that they do
not do in FedAvg, and the set never leaves the server.

Numbered details:
1. The student's target is the mean of two or three, drawn at random, of the next three models.
2. Images start as noise and labels as zero logits, which is the same probability for every class. Both are learned by
   Adam, and so is β.
3. The authors' student has a loss that is a mean over images and classes. Here it is a mean over images, so β is
   divided by the number of classes, and so is its step size, which comes to the same.
4. The server's training begins with a new Adam in every round.
5. The authors make client sizes equal and train clients with Adam; both are choices of the plan here.

On quadratics there are no classes, so the method is not defined. With H = 0 or E = 0 it is FedAvg, bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fedptr.core.long_work import LongWork, work_through
from fedptr.core.method import Cost, Rule, Site
from fedptr.core.task import Task
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.ptr.dsa import Augmentation, draw_augmentation, identity
from fedptr.methods.ptr.soft_labels import SoftSet, soft_gradient, soft_meta_gradient
from fedptr.methods.ptr.trajectory import check_learnable, log_entries
from fedptr.plots import SHORT, Look
from fedptr.settings import setting
from fedptr.types import Reply, State

SPAN, FEWEST = 3, 2  # the models after the student's start, and how many of them its target is at least the mean of
BETA_FLOOR = 1e-6  # a negative step size would make the student climb


@dataclass(frozen=True)
class DynaFed(FedAvg):
    L: int = setting(25, "rounds of FedAvg before the set is learned, once", ge=2)
    H: int = setting(3000, "outer steps of learning the set", ge=0, le=100_000)
    R: int = setting(20, "steps of the student", ge=1, le=1000)
    ipc: int = setting(15, "auxiliary images per class", ge=1)
    dsa: bool = setting(True, "augment the auxiliary images")
    lr_img: float = setting(0.05, "step size of Adam on the images", ge=0)
    lr_label: float = setting(0.01, "step size of Adam on the labels' logits", ge=0)
    beta: float = setting(0.04, "the student's first step size β, for a loss that is a mean over classes too", gt=0)
    lr_beta: float = setting(1e-5, "step size of Adam on β", ge=0)
    E: int = setting(20, "epochs of the server on the set, in every round after the set is learned", ge=0)
    server_lr: float = setting(1e-4, "step size of the server's Adam", gt=0)
    server_batch: int = setting(256, "batch size of the server", ge=1)

    name: ClassVar[str] = "dynafed"
    idea: ClassVar[str] = "the server learns a set from the first rounds, and trains on it in every later round"
    cite: ClassVar[str] = "Pi, Zhang, Xie et al., CVPR 2023, arXiv:2211.10878"
    family: ClassVar[str] = "projected trajectory"
    rule: ClassVar[Rule] = Rule(server="x ← E epochs of Adam on (X, Y), from the mean of w_i")
    look: ClassVar[Look] = Look("#882255", SHORT)
    cost: ClassVar[Cost] = Cost(auxiliary="server")
    needs_classes: ClassVar[bool] = True
    laptop: ClassVar[Mapping[str, Any]] = {"L": 10, "H": 100, "R": 10}
    no_ptr: ClassVar[str] = "learns from the global trajectory already"

    @property
    def active(self) -> bool:
        return self.H > 0 and self.E > 0

    @property
    def quick_rounds(self) -> int:
        return self.L

    def count_sets(self, rounds: int) -> int:
        return int(rounds > self.L)

    @property
    def outer_steps(self) -> int:
        return self.H

    def shorten(self, steps: int) -> Self:
        return replace(self, H=steps)

    @property
    def second_derivatives(self) -> Literal["", "weights", "inputs"]:
        return "inputs" if self.active else ""

    def check(self, task: Task) -> None:
        if self.active:
            check_learnable(task, self.dsa)

    def server_init(self, x: Tensor, site: Site) -> State:
        return {"x": x, **({"trail": x[None]} if self.active else {})}

    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        log: State = {}
        if "trail" in server and len(server["trail"]) > self.L:
            learned, log = self.learn_set(server["trail"], site)
            server = {"x": server["x"], **learned}
        return {"x": server["x"], **log}, server

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        x = self.mean(replies)
        if "X" in server:
            x = self.fine_tune(x, server["X"], server["Y"], site)
        trail = {"trail": torch.cat([server["trail"], x[None]])} if "trail" in server else {}
        return {**server, "x": x, **trail}

    def learn_set(self, trail: Tensor, site: Site) -> tuple[State, State]:
        """X, Y and β, learned from the trajectory, and a log. Should a step go wrong, the last sound set is kept."""
        began = time.perf_counter()
        generators = {"starts": site.key("dynafed-starts"), "noise": site.key("mtt-aug")}
        learned, optimiser = self.first_set(trail, site)
        work = LongWork(learned._asdict(), optimiser, generators)

        def step() -> float | None:
            start, end = draw_stretch(trail, generators["starts"])
            augments = [self.draw_augmentation(learned.X, generators["noise"]) for _ in range(self.R)]
            loss, gradients = soft_meta_gradient(site.task, start, end, learned, augments)
            if not (math.isfinite(loss) and all(bool(g.isfinite().all()) for g in gradients)):
                return None
            for part, gradient in zip(learned, gradients, strict=True):
                part.grad = gradient
            optimiser.step()
            learned.beta.clamp_(min=BETA_FLOOR)
            return loss

        work_through(work, step, self.H, "learning the auxiliary set", self, site, {"trail": trail})
        losses = work.losses
        ends = {"match_before": losses[0], "match_after": losses[-1]} if losses else {}
        log = log_entries(
            **ends, match_steps=len(losses), beta=float(learned.beta), seconds_matching=time.perf_counter() - began
        )
        return {name: part.detach() for name, part in learned._asdict().items()}, log

    def first_set(self, trail: Tensor, site: Site) -> tuple[SoftSet, torch.optim.Optimizer]:
        n, task = self.ipc * site.task.classes, site.task
        X = torch.randn(n, *task.shape, generator=site.key("aux-init")).to(trail)
        learned = SoftSet(X, trail.new_zeros(n, task.classes), trail.new_tensor(self.beta / task.classes))
        rates = (self.lr_img, self.lr_label, self.lr_beta / task.classes)
        groups = [{"params": [part], "lr": lr} for part, lr in zip(learned, rates, strict=True)]
        return learned, torch.optim.Adam(groups)

    def draw_augmentation(self, X: Tensor, noise: torch.Generator) -> Augmentation:
        return draw_augmentation(len(X), tuple(X.shape[1:]), noise) if self.dsa else identity

    def fine_tune(self, x: Tensor, X: Tensor, Y: Tensor, site: Site) -> Tensor:
        """E epochs of Adam on the set, from x."""
        w = x.clone()
        optimiser = torch.optim.Adam([w], lr=self.server_lr)
        noise = site.key("projection-aug")
        for rows in self.draw_batches(len(X), site):
            images = self.draw_augmentation(X[rows], noise)(X[rows])
            w.grad = soft_gradient(site.task, w, images, Y[rows])
            optimiser.step()
        return w if bool(w.isfinite().all()) else x

    def draw_batches(self, n: int, site: Site) -> Iterator[Tensor]:
        order = site.key("server-batches")
        for _ in range(self.E):
            yield from torch.randperm(n, generator=order).split(self.server_batch)


def draw_stretch(trail: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A model of the trail, and the mean of some of those that follow."""
    span = min(SPAN, len(trail) - 1)
    s = int(torch.randint(len(trail) - span, (), generator=generator))
    count = int(torch.randint(min(FEWEST, span), span + 1, (), generator=generator))
    chosen = s + 1 + torch.randperm(span, generator=generator)[:count]
    return trail[s], trail[chosen].mean(0)
