"""FedCM: every local step is mixed with the direction in which everyone moved in the last round.

    Δ̄       mean over the last cohort of (x − w_i)/(K_i η_l), in units of a gradient; zero at first
    α       part of the client's own gradient in a step

A local step:  w ← w − η_l (α g + (1−α) Δ̄).  The server:  x ← x + η_g mean(w_i − x).

Numbered details:
1. Each client's own number of steps K_i counts, and the learning rate of the round they were made in (a public
   simulator takes the first client's for all).
2. With local momentum K_i is the momentum-corrected count, as in SCAFFOLD; the default is none, as in the paper.
3. Weight decay is added to the mixture, not to g.
4. α = 1 is FedAvg, bit for bit.

On quadratics: biased. Where all make equally many steps, the mean direction of the local steps is zero at a fixed
point, as in FedAvg; each client still drifts by its own gradient, only α times as fast, so that the bias is smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedptr.core.method import Cost, Oracle, Rule, Site, local_change
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.own_momentum import OwnMomentum, counted_steps, momentum_setting
from fedptr.plots import DOTS, Look
from fedptr.settings import setting
from fedptr.types import Batch, Reply, State


@dataclass(frozen=True)
class FedCM(OwnMomentum, FedAvg):
    alpha: float = setting(0.1, "part α of the client's own gradient in a step", gt=0, le=1)
    server_lr: float = setting(1.0, "global step size η_g", gt=0)
    momentum: float | Literal["local"] = momentum_setting()

    name: ClassVar[str] = "fedcm"
    idea: ClassVar[str] = "mixes every local gradient with the last round's mean direction: α g + (1−α) Δ̄"
    cite: ClassVar[str] = "Xu et al., 2021, arXiv:2106.10874"
    family: ClassVar[str] = "momentum"
    rule: ClassVar[Rule] = Rule(
        direction="α ∇L_i(w) + (1−α) Δ̄", server="x ← x + η_g Δ; Δ̄ ← mean of (x − w_i)/(K_i η_l)"
    )
    look: ClassVar[Look] = Look("#117733", DOTS)
    oracle: ClassVar[tuple[Oracle, ...]] = (
        Oracle("FedCM, α = 0.5", "off", "ends where FedAvg does at αη_l", {"alpha": 0.5}),
    )
    cost: ClassVar[Cost] = Cost(down=2, server=1)
    measures_drift: ClassVar[bool] = True
    sgd_only: ClassVar[str] = "computes its momentum from plain steps of size local.lr"

    def server_init(self, x: Tensor, site: Site) -> State:
        return {"x": x, "delta": torch.zeros_like(x)}

    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        return {"x": server["x"], "delta": server["delta"]}, server

    def gradient(self, w: Tensor, batch: Batch, msg: State, client: State, site: Site) -> tuple[Tensor, Tensor]:
        g, loss = super().gradient(w, batch, msg, client, site)
        return self.alpha * g + (1 - self.alpha) * msg["delta"], loss

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        x, mean, rho = server["x"], self.mean(replies), self.settings(site.local).momentum
        steps = [
            reply._replace(state={"w": -local_change(reply, x) / (counted_steps(reply.steps, rho) * site.local.lr)})
            for reply in replies
        ]
        x = mean if self.server_lr == 1 else x + self.server_lr * (mean - x)
        return {**server, "x": x, "delta": self.mean(steps)}
