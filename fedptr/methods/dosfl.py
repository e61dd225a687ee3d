"""One-shot distilled federated learning (DOSFL): every client sends a small learned dataset, once, and no model.

    x           initial model                         w    the server's model
    X_is, Y_is  client i's samples and labels for step s       η_ies   the rate of step s in pass e
    σ, p_rm     `sigma`, `p_rm`                       L    loss on a batch of client i's own samples

Client i learns (X_i, Y_i, η_i), so that E passes over the S steps w ← w − η_ies ∇ℓ(w; X_is, Y_is) from x end in a small
L. Every outer step is one of Adam along the exact gradient, with a random start x + σξ, and with each step's samples
replaced by noise with probability p_rm. Server, from x, for every pass e, every step s, and then every client i:

    w ← w − η_ies ∇ℓ(w; X_is, Y_is)

Numbered details:
1. There is one round. What goes up is images with labels and rates: whoever receives them can look at them.
2. The random start (soft reset) and the masks prepare a client's steps for those that other clients take in between.
   The paper does not say how large σ and p_rm are; the values here are ours, without a claim.
3. A masked step keeps its labels and its rate, and gets no gradient. The mask is drawn once an outer step, so the
   samples are noise in all passes.
4. Samples start as noise. There are `ipc` of every class in each step, whether a client has the class or not.
5. Labels start as one-hot vectors, and are learned as numbers of at least 0, whatever their sum. With negative ones the
   loss has no lower end: the server, whose model is not the one a client expects, diverged in all seven settings that
   we tried with a small MLP on digits. With `learn_labels = false` they stay, and one client with σ = p_rm = 0 is
   dataset distillation (Wang et al., arXiv:1811.10959), whose defaults these are.
6. A rate is softplus(r), and r is learned by the same Adam. Its step size is halved every `halve_every` epochs; an
   epoch is one pass over the client's own samples. H > 0 is the number of outer steps instead.
7. Of [local] only `augment` matters, for batches of real samples. A straggler takes its part of the outer steps.
8. An outer step that is not finite ends the learning with the last sound set; if it is the first, the client fails.

Cross-entropy is linear in a label, and a step is a sum over samples. For a linear model with squared loss, one free
sample and one step lead anywhere, so also to the client's own optimum c_i.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fedptr.core.local_training import TrainedModel, draw_batches, flip_and_crop
from fedptr.core.long_work import LongWork, work_through
from fedptr.core.method import Entry, Rule, Site, Sizes
from fedptr.errors import ReplyError
from fedptr.methods.dataset_distillation import (
    DistilledSet,
    distillation_gradient,
    inverse_softplus,
    take_distilled_step,
)
from fedptr.methods.sent_sets import SetSender, SetWork, unite
from fedptr.plots import LONG, Look
from fedptr.settings import setting
from fedptr.types import Batch, Reply, State

BETAS = (0.5, 0.999)  # of Adam
SECOND = 4  # times the memory of a gradient that its derivative needs
STEP = 11 / 3  # cost of a student's step and of its adjoint, in gradients
LEARNED = 3  # times the set, in numbers of 8 bytes: itself, its gradient, two moments, noise


@dataclass(frozen=True)
class DOSFL(SetSender):
    steps: int = setting(10, "steps S, each with samples of its own", ge=0, le=1000)
    passes: int = setting(3, "passes E over the steps, each with rates of its own", ge=1, le=1000)
    ipc: int = setting(1, "learned samples per class and step", ge=1)
    rate: float = setting(0.02, "where the rates η start", gt=0)
    learn_labels: bool = setting(True, "learn the labels too")
    outer_epochs: int = setting(400, "epochs of learning over the client's own samples", ge=1, le=100_000)
    H: int = setting(0, "outer steps of a client; 0 = as many as these epochs have", ge=0, le=1_000_000)
    real_batch: int = setting(1024, "own samples per outer step", ge=1)
    lr: float = setting(0.01, "step size of Adam on samples, labels and rates", ge=0)
    halve_every: int = setting(40, "epochs after which it is halved, again and again", ge=1)
    sigma: float = setting(0.05, "soft reset σ: noise on the model at which an outer step starts", ge=0)
    p_rm: float = setting(0.1, "random masking: probability that a step's samples are noise", ge=0, lt=1)

    name: ClassVar[str] = "dosfl"
    idea: ClassVar[str] = "every client sends learned images with labels and rates, once; the server trains on them"
    cite: ClassVar[str] = "Zhou, Pu, Ma, Li, Wu, 2020, arXiv:2009.07999"
    family: ClassVar[str] = "sends images"
    rule: ClassVar[Rule] = Rule(
        step="(X_i, Y_i, η_i) ← Adam along the gradient of L",
        where="L = loss of the model after S steps with rates η_i on (X_i, Y_i)",
        server="for e, s, i: x ← x − η_ies ∇ℓ(x; X_is, Y_is)",
    )
    look: ClassVar[Look] = Look("#56b4e9", LONG)
    one_shot: ClassVar[bool] = True
    laptop: ClassVar[Mapping[str, Any]] = {
        "passes": 2, "H": 60, "real_batch": 256, "lr": 0.05, "halve_every": 20, "rate": 0.03
    }  # fmt: skip

    @property
    def second_derivatives(self) -> Literal["", "weights", "inputs"]:
        return "inputs"

    def most_rows(self, classes: int) -> int:
        return self.steps * self.ipc * classes

    def work(self, classes: int, samples: int, numbers: int) -> SetWork:
        step, real = self.ipc * classes, min(self.real_batch, samples)
        learned = LEARNED * self.steps * step * numbers
        return SetWork(SECOND * step, numbers=learned, blocks=max(step, real), models=self.path)

    @property
    def outer_steps(self) -> int:
        """Without H, of a client that has no more samples than an outer step takes."""
        return (self.H or self.outer_epochs) if self.steps else 0

    def shorten(self, steps: int) -> Self:
        return replace(self, H=steps)

    def server_gradients(self, images: float) -> float:
        return self.passes * images

    def client_gradients(self, classes: int) -> float:
        return self.outer_steps * (self.real_batch + STEP * self.path * self.ipc * classes)

    @property
    def path(self) -> int:
        """Steps of a student."""
        return self.passes * self.steps

    def sends(self, task: Sizes) -> dict[str, Entry]:
        sets = {name: entry._replace(fewer=False, plain=True) for name, entry in super().sends(task).items()}
        return {**sets, "rates": Entry((self.passes, self.steps), summable=False)}

    def train(self, msg: State, client: State, site: Site, buffers: State) -> tuple[TrainedModel, State]:
        """The client's set goes through its state to `reply`; its model stays x."""
        learned, losses = self.distil(msg["x"], site)
        trained = TrainedModel(msg["x"], max(1, len(losses)), losses[-1] if losses else None)
        return trained, {**client, **pack_set(learned)}

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        sent, kept = super().reply(w, msg, client, steps, site)
        return {**sent, "rates": kept.pop("rates")}, kept

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        w, sets = server["x"], [self.unpack_set(reply.state) for reply in replies]
        for e in range(self.passes):
            for s in range(self.steps):
                for one, rates in sets:
                    w = take_distilled_step(site.task, w, Batch(one.X[s], one.Y[s]), rates[e, s])
        if not bool(w.isfinite().all()):
            raise ReplyError("training on the clients' sets diverges; a smaller method.rate or method.lr may help")
        return {**server, "x": w, **unite(replies)}

    def distil(self, x: Tensor, site: Site) -> tuple[DistilledSet, list[float]]:
        """The learned set, and L of every outer step."""
        learned = self.first_set(x, site)
        optimiser = torch.optim.Adam(list(learned), betas=BETAS)
        work = LongWork(learned._asdict(), optimiser)
        per_epoch = math.ceil(len(site.samples) / self.real_batch)
        total = math.ceil(site.part * (self.H or self.outer_epochs * per_epoch)) if self.steps else 0

        def step() -> float | None:
            loss, gradient = self.outer_gradient(x, learned, work.done, site)
            if not (math.isfinite(loss) and all(bool(g.isfinite().all()) for g in gradient)):
                if not work.done:
                    raise ReplyError("the first loss of its set is not finite; a smaller method.rate may help")
                return None
            for part, g in zip(learned, gradient, strict=True):
                part.grad = g
            optimiser.param_groups[0]["lr"] = self.lr * 0.5 ** (work.done // per_epoch // self.halve_every)
            optimiser.step()
            learned.Y.clamp_(min=0)
            return loss

        work_through(work, step, total, "distilling", self, site, {"x": x})
        return learned, work.losses

    def first_set(self, x: Tensor, site: Site) -> DistilledSet:
        """Noise, one-hot labels, and the same rate everywhere."""
        task, n = site.task, self.ipc * site.task.classes
        X = torch.randn(self.steps, n, *task.shape, generator=site.key("aux-init")).to(x)
        y = F.one_hot(torch.arange(task.classes).repeat_interleave(self.ipc), task.classes).to(x)
        raw = inverse_softplus(x.new_full((self.passes, self.steps), self.rate))
        return DistilledSet(X, y.expand(self.steps, -1, -1).clone(), raw)

    def outer_gradient(self, x: Tensor, learned: DistilledSet, k: int, site: Site) -> tuple[float, DistilledSet]:
        """L and its gradient in outer step k, whose random draws depend on nothing but k."""
        key = site.key.at("outer", k)
        start = x + self.sigma * torch.randn(len(x), generator=key("reset")).to(x) if self.sigma else x
        masks = self.draw_masks(learned.X, key("mask")) if self.p_rm else []
        loss, gradient = distillation_gradient(site.task, start, learned, self.draw_real(k, site), masks)
        return loss, gradient if self.learn_labels else gradient._replace(Y=torch.zeros_like(gradient.Y))

    def draw_masks(self, X: Tensor, noise: torch.Generator) -> list[Tensor | None]:
        masked = torch.rand(len(X), generator=noise) < self.p_rm
        return [
            torch.randn(one.shape, generator=noise).to(one) if m else None for one, m in zip(X, masked, strict=True)
        ]

    def draw_real(self, k: int, site: Site) -> Batch:
        """The batch of own samples of outer step k: epochs are random orders, cut into batches."""
        data = site.samples
        epoch, i = divmod(k, math.ceil(len(data) / self.real_batch))
        order = site.key.at("epoch", epoch)("batch-order")
        x, y = data.take(list(draw_batches(len(data), self.real_batch, order))[i])
        if site.local.augment == "flip-crop":
            x = flip_and_crop(x, site.key.at("outer", k)("augment"))
        return Batch(x, y)

    def unpack_set(self, reply: State) -> tuple[DistilledSet, Tensor]:
        """A client's set, step by step, and its rates."""
        X, Y = (reply[name].unflatten(0, (self.steps, -1)) if self.steps else reply[name] for name in ("X", "Y"))
        return DistilledSet(X, Y, inverse_softplus(reply["rates"])), reply["rates"]


def pack_set(learned: DistilledSet) -> State:
    return {"X": learned.X.flatten(0, 1), "Y": learned.Y.flatten(0, 1), "rates": learned.rates}
