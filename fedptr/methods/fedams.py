"""FedAMS: FedAdam that divides by the largest v so far, so that no step size grows again.

    v̂       the largest v so far:  v̂ ← max(v̂, v, ε), with FedAdam's v;  x ← x + η m/√v̂

The rest is in `fedptr.methods.adaptive_server`. Its own numbered details:
1. ε bounds v̂ from below; with `add_eps` it is added to √v̂ instead, as τ is in FedAdam: the paper's other option.
2. There is no bias correction (a co-author's code has one), and v starts at τ², as in FedAdam.
3. η = 1 is that code's. With ε = 1e-3 no parameter moves by more than 32 m in a round.
4. Where v never falls and is above ε the maximum does nothing, and with `add_eps` and τ = ε this is FedAdam.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedptr.core.method import Cost, Oracle, Rule, Site
from fedptr.methods.fedadam import FedAdam
from fedptr.plots import MIXED, Look
from fedptr.settings import setting
from fedptr.types import State


@dataclass(frozen=True)
class FedAMS(FedAdam):
    server_lr: float = setting(1.0, "step size η of the server", gt=0)
    eps: float = setting(0.001, "the smallest v̂", gt=0)
    add_eps: bool = setting(False, "divide by √v̂ + ε instead of √v̂")

    name: ClassVar[str] = "fedams"
    idea: ClassVar[str] = "FedAdam over the largest v so far, so that steps do not grow again"
    cite: ClassVar[str] = "Wang et al., ICML 2022, arXiv:2205.02719"
    family: ClassVar[str] = "adaptive server"
    rule: ClassVar[Rule] = Rule(server="v̂ ← max(v̂, v, ε); x ← x + η m/√v̂")
    look: ClassVar[Look] = Look("#332288", MIXED)
    oracle: ClassVar[tuple[Oracle, ...]] = (Oracle("FedAMS", "off", "ends where FedAvg does"),)
    cost: ClassVar[Cost] = Cost(server=3)

    def server_init(self, x: Tensor, site: Site) -> State:
        return {**super().server_init(x, site), "top": torch.zeros_like(x)}

    def moments(self, server: State, delta: Tensor) -> State:
        new = super().moments(server, delta)
        top = torch.maximum(new["top"], new["v"])
        return {**new, "top": top if self.add_eps else top.clamp(min=self.eps)}

    def scale(self, server: State) -> Tensor:
        return server["top"].sqrt() + (self.eps if self.add_eps else 0.0)
