"""FedAGM, also called FedACG: clients start where the server's momentum would take it.

    v       the server's momentum, zero at first          x'    x + λv, the model that is sent

A round:  clients minimise L_i(w) + (β/2)‖w − x'‖² from x';  v ← λv + mean(w_i − x');  x ← x + v.

Numbered details:
1. x + v is mean(w_i), and v is the global model's last step; both are computed as such, which is also exact.
2. x is what is evaluated and kept; x' only travels.
3. The official code weighs ‖w − x'‖² without the ½ by 1e-3, which is β = 2e-3 here.
4. λ = 0 is FedProx(μ = β), and with β = 0 too FedAvg, bit for bit.
5. x' lies λ rounds ahead on the straight line through the last two global models. So with β = 0 this is `fedptr-linear`
   with m = 1, reach λ and no pull, bit for bit once that has warmed up.

On quadratics: biased. A fixed point has v = 0 and is FedProx's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedptr.core.method import Cost, Oracle, Rule, Site
from fedptr.methods.fedavg import FedAvg
from fedptr.plots import SHORT, Look
from fedptr.settings import setting
from fedptr.types import Reply, State


@dataclass(frozen=True)
class FedAGM(FedAvg):
    lam: float = setting(0.85, "how far λ the server looks ahead along its momentum", ge=0, lt=1)
    beta: float = setting(0.002, "strength β of the pull towards the model that was sent", ge=0)

    name: ClassVar[str] = "fedagm"
    idea: ClassVar[str] = "clients start ahead on the server's momentum and stay near there: β(w − x')"
    cite: ClassVar[str] = "Kim et al., 2022, arXiv:2201.03172 (FedACG, CVPR 2024)"
    family: ClassVar[str] = "momentum"
    rule: ClassVar[Rule] = Rule(pull="β(w − x')", start="x' = x + λv", server="x ← mean of w_i; v ← its change")
    look: ClassVar[Look] = Look("#117733", SHORT)
    oracle: ClassVar[tuple[Oracle, ...]] = (Oracle("FedAGM, β = 0.1", "off", "ends where FedProx does", {"beta": 0.1}),)
    aliases: ClassVar[tuple[str, ...]] = ("fedacg",)
    cost: ClassVar[Cost] = Cost(server=1)

    def server_init(self, x: Tensor, site: Site) -> State:
        return {"x": x, "v": torch.zeros_like(x)}

    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        return {"x": server["x"] + self.lam * server["v"]}, server

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        return self.beta * (w - msg["x"])

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        mean = self.mean(replies)
        return {**server, "x": mean, "v": mean - server["x"]}
