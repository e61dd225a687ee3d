"""FedAvgM: FedAvg whose server has momentum.

    Δ       mean over the cohort of w_i − x          v    the server's velocity, zero at first

A round:  v ← βv + Δ;  x ← x + η_s v.

Numbered details:
1. v is a sum, not a mean: when Δ stays the same, steps grow to η_s/(1−β) of it.
2. `nesterov` looks ahead, x ← x + η_s (Δ + βv), as one public library has it; the paper's rule is the plain one.
3. The step is taken from the clients' mean, x + Δ, so that β = 0 and η_s = 1 is FedAvg to the last bit.

On quadratics: biased like FedAvg. Where Δ = 0 nothing changes, so momentum keeps FedAvg's fixed point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedptr.core.method import Cost, Oracle, Rule, Site
from fedptr.methods.fedavg import FedAvg
from fedptr.plots import Look
from fedptr.settings import setting
from fedptr.types import Reply, State


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    beta: float = setting(0.9, "momentum β of the server", ge=0, lt=1)
    server_lr: float = setting(1.0, "global step size η_s", gt=0)
    nesterov: bool = setting(False, "Nesterov's momentum: look ahead")

    name: ClassVar[str] = "fedavgm"
    idea: ClassVar[str] = "momentum on the server, over the rounds"
    cite: ClassVar[str] = "Hsu et al., 2019, arXiv:1909.06335"
    family: ClassVar[str] = "momentum"
    rule: ClassVar[Rule] = Rule(server="v ← βv + Δ; x ← x + η_s v")
    look: ClassVar[Look] = Look("#117733")
    oracle: ClassVar[tuple[Oracle, ...]] = (Oracle("FedAvgM", "off", "ends where FedAvg does"),)
    cost: ClassVar[Cost] = Cost(server=1)

    def server_init(self, x: Tensor, site: Site) -> State:
        return {"x": x, "v": torch.zeros_like(x)}

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        mean = self.mean(replies)
        delta = mean - server["x"]
        v = self.beta * server["v"] + delta
        step = delta + self.beta * v if self.nesterov else v
        return {**server, "x": mean + (self.server_lr * step - delta), "v": v}
