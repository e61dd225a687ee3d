"""FedPTR without its auxiliary data: w̃ is on the straight line through two global models. A control.

    x   global model w^t          w̃   w^t + r·(w^t − w^{t−m})/m, for r = 1 the next step if nothing changed

The same start, pull and warm-up as FedPTR, so whatever FedPTR gains over this comes from its learned data. The
server keeps the last m+1 models and sends w̃; clients that keep the models they saw could do the same by themselves.
With r = 0 there is no projection at all, and only the pull is left: towards the model that training began with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedptr.core.method import Cost, Rule, Site
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.ptr.pull import Pull
from fedptr.plots import Look
from fedptr.settings import setting
from fedptr.types import State


@dataclass(frozen=True)
class FedPTRLinear(Pull, FedAvg):
    m: int = setting(2, "span of the trajectory that is extended, in rounds", ge=1)
    reach: float = setting(1.0, "how far it is extended, r, in rounds; 0 = not at all: towards the global model", ge=0)

    name: ClassVar[str] = "fedptr-linear"
    idea: ClassVar[str] = "FedPTR from a plain extrapolation of the trajectory; no auxiliary data"
    cite: ClassVar[str] = "a control of this library; the pull is of Chen, Cao, Wang et al., 2023, arXiv:2312.14380"
    family: ClassVar[str] = "projected trajectory"
    rule: ClassVar[Rule] = Rule(
        pull="λ_j(w_j − w̃_j) per layer j", start="w̃, the projected model", where="w̃ = x + r(x − x^{t−m})/m"
    )
    look: ClassVar[Look] = Look("#882255", bold=True)
    cost: ClassVar[Cost] = Cost(down=2, trail="server")

    def server_init(self, x: Tensor, site: Site) -> State:
        return {"x": x, **({"trail": x.new_zeros(0, len(x)), "seen": torch.tensor(0)} if self.lam else {})}

    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        x, msg = server["x"], {"x": server["x"]}
        if not self.lam:
            return msg, server
        trail = torch.cat([server["trail"][-self.m :], x[None]])
        server = {**server, "trail": trail, "seen": server["seen"] + 1}
        if int(server["seen"]) < self.m + 2:  # FedPTR's own warm-up
            return msg, server
        target = x + self.reach * (x - trail[0]) / self.m
        return {**msg, "target": target, "log/target": target}, server
