"""The server as an optimiser with a step size per parameter: the clients' mean change is its gradient.

    Δ       mean over the cohort of w_i − x          m    its running mean, zero at first
    v       running square of Δ, τ² at first         η    step size          τ    guard of small v

A round:  m ← β₁m + (1−β₁)Δ;  v by the method's own rule;  x ← x + η m/(√v + τ).

Numbered details:
1. v starts at τ² (`v_start`): with 0, as one public library has it, a first Δ of any size makes the same step.
2. There is no bias correction: that is the paper's rule.
3. η has no default that fits everywhere. The size of a step is about η per parameter, whatever the clients did, so η
   is to be tuned before all else.
4. With m and Δ zero x stays where it is, exactly.

On quadratics: biased. A fixed point has Δ = 0, which is FedAvg's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedptr.core.method import Cost, Site
from fedptr.methods.fedavg import FedAvg
from fedptr.settings import setting
from fedptr.types import Reply, State


@dataclass(frozen=True)
class AdaptiveServer(FedAvg):
    server_lr: float = setting(0.03, "step size η of the server; to be tuned", gt=0)
    beta1: float = setting(0.9, "β₁, memory of the mean of Δ", ge=0, lt=1)
    beta2: float = setting(0.99, "β₂, memory of the square of Δ", ge=0, lt=1)
    tau: float = setting(0.001, "guard τ: parameters that hardly move make steps of η Δ/τ at most", gt=0)
    v_start: float | Literal["tau"] = setting("tau", 'first v; "tau" = τ²', ge=0, le=1e30)

    cost: ClassVar[Cost] = Cost(server=2)

    def server_init(self, x: Tensor, site: Site) -> State:
        v = self.tau**2 if self.v_start == "tau" else self.v_start
        return {"x": x, "m": torch.zeros_like(x), "v": torch.full_like(x, v)}

    def square(self, v: Tensor, delta: Tensor) -> Tensor:
        """The method's new v."""
        raise NotImplementedError

    def moments(self, server: State, delta: Tensor) -> State:
        m = self.beta1 * server["m"] + (1 - self.beta1) * delta
        return {**server, "m": m, "v": self.square(server["v"], delta)}

    def scale(self, server: State) -> Tensor:
        """What m is divided by."""
        return server["v"].sqrt() + self.tau

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        new = self.moments(server, self.mean(replies) - server["x"])
        return {**new, "x": server["x"] + self.server_lr * new["m"] / self.scale(new)}
