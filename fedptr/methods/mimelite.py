"""MimeLite: local steps with the server's momentum, which stays as it is while clients train.

    s       the server's momentum, zero at first          c    mean over the cohort of the full-batch ∇L_i(x)

A local step:  w ← w − η_l ((1−β) g + β s).  The server:  x ← mean(w_i),  s ← (1−β) c + β s.

Numbered details:
1. c is needed by the server only after training, so each client sends its gradient at x along with its model: no
   further exchange. It is taken over the whole set, without augmentation.
2. The server's optimiser is SGD with momentum; Adam and Adagrad in Mime's manner are not here.
3. s is the momentum, so there is no local one unless `momentum` says so.
4. β = 0 is FedAvg, bit for bit.

On quadratics: biased, by (1−β)² of FedAvg's bias: clients drift (1−β) times as fast, and (1−β) of a step is made of
gradients that have drifted; the rest is s, which at rest is c, a gradient at x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedptr.core.method import Cost, Effort, Oracle, Rule, Site
from fedptr.core.task import full_gradient
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.own_momentum import OwnMomentum, momentum_setting
from fedptr.plots import SHORT, Look
from fedptr.settings import setting
from fedptr.types import Batch, Reply, State


@dataclass(frozen=True)
class MimeLite(OwnMomentum, FedAvg):
    beta: float = setting(0.9, "momentum β of the server's optimiser", ge=0, lt=1)
    momentum: float | Literal["local"] = momentum_setting()

    name: ClassVar[str] = "mimelite"
    idea: ClassVar[str] = "local steps with the server's momentum, frozen meanwhile: (1−β) g + β s"
    cite: ClassVar[str] = "Karimireddy et al., NeurIPS 2021, arXiv:2008.03606"
    family: ClassVar[str] = "momentum"
    rule: ClassVar[Rule] = Rule(direction="(1−β) ∇L_i(w) + βs", server="x ← mean of w_i; s ← (1−β)c + βs")
    look: ClassVar[Look] = Look("#aa4499", SHORT)
    oracle: ClassVar[tuple[Oracle, ...]] = (
        Oracle("MimeLite, β = 0.5", "off", "biased, (1−β)² times as much as FedAvg", {"beta": 0.5}),
    )
    cost: ClassVar[Cost] = Cost(down=2, server=1)
    sent: ClassVar[tuple[str, ...]] = ("w", "g")
    sgd_only: ClassVar[str] = "trains clients with the server's optimiser, which is frozen for a round"

    @property
    def effort(self) -> Effort:
        return Effort(full=1)

    def server_init(self, x: Tensor, site: Site) -> State:
        return {"x": x, "s": torch.zeros_like(x)}

    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        return {"x": server["x"], "s": server["s"]}, server

    def gradient(self, w: Tensor, batch: Batch, msg: State, client: State, site: Site) -> tuple[Tensor, Tensor]:
        g, loss = self.estimate(w, batch, msg, client, site)
        return self.mixed(g, msg["s"]), loss

    def estimate(self, w: Tensor, batch: Batch, msg: State, client: State, site: Site) -> tuple[Tensor, Tensor]:
        """Of the gradient, before momentum."""
        return super().gradient(w, batch, msg, client, site)

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"w": w, "g": full_gradient(site.task, msg["x"], site.samples)}, client

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        return {**server, "x": self.mean(replies), "s": self.mixed(self.mean(replies, "g"), server["s"])}

    def mixed(self, g: Tensor, s: Tensor) -> Tensor:
        return (1 - self.beta) * g + self.beta * s
