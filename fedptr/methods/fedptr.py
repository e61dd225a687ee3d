"""FedPTR: every client projects the next global model, starts its training there and pulls it towards there.

    x   global model w^t          D̃_i   the client's auxiliary dataset (images, labels, β)          w̃   projected model

A round on client i:  D̃_i ← MTT(w^{t−m}, w^t, D̃_i);  w̃ ← K steps of gradient descent from w^t on D̃_i;
w_i ← minimise L_i(w) + Σ_j (λ_j/2)‖w_j − w̃_j‖², from w̃.  The server is FedAvg's. D̃_i never leaves its client.
The machinery is in `fedptr.methods.ptr`: `trajectory` learns D̃_i, `projection` makes w̃.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedptr.core.method import Cost, Rule, Site
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.ptr.projection import Projection
from fedptr.plots import Look
from fedptr.types import State


@dataclass(frozen=True)
class FedPTR(Projection, FedAvg):
    name: ClassVar[str] = "fedptr"
    idea: ClassVar[str] = "each client learns a tiny dataset that mimics the global trajectory: from w̃, λ_j(w_j − w̃_j)"
    cite: ClassVar[str] = "Chen, Cao, Wang et al., 2023, arXiv:2312.14380"
    family: ClassVar[str] = "projected trajectory"
    rule: ClassVar[Rule] = Rule(pull="λ_j(w_j − w̃_j) per layer j", start="w̃, the projected model")
    look: ClassVar[Look] = Look("#d55e00", bold=True)
    paper_column: ClassVar[int] = 6
    cost: ClassVar[Cost] = Cost(trail="client", auxiliary="client")

    def client_init(self, x: Tensor, site: Site) -> State:
        return self.memory(x, site) if self.active else {}

    def prepare(self, msg: State, client: State, site: Site) -> tuple[State, State]:
        if not self.active:
            return msg, client
        target, client, log = self.advance(client, msg["x"], site)
        return (msg if target is None else {**msg, "target": target}) | log, client
