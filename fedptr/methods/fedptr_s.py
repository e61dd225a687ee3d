"""FedPTR-S: the server learns one auxiliary dataset and sends its projected model to every client.

    x   global model w^t          D̃   the server's auxiliary dataset, from noise          w̃   projected model

Clients do no extra work and the server sees no client data; w̃ doubles what is sent down once warm-up is over.
(The printed algorithm leaves out w̃ ← w^t before the projection; it is needed.) D̃ never leaves the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedptr.core.method import Cost, Rule, Site
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.ptr.projection import Projection
from fedptr.plots import Look
from fedptr.settings import setting
from fedptr.types import State


@dataclass(frozen=True)
class FedPTRS(Projection, FedAvg):
    init: Literal["noise"] = setting("noise", "the server has no samples to start from")

    name: ClassVar[str] = "fedptr-s"
    idea: ClassVar[str] = "FedPTR on the server: one auxiliary dataset, one projected model for all clients"
    cite: ClassVar[str] = "Chen, Cao, Wang et al., 2023, arXiv:2312.14380"
    family: ClassVar[str] = "projected trajectory"
    rule: ClassVar[Rule] = Rule(
        pull="λ_j(w_j − w̃_j) per layer j", start="w̃, the projected model", where="w̃ from the server"
    )
    look: ClassVar[Look] = Look("#0072b2", (0, (6, 1.5)), bold=True)
    paper_column: ClassVar[int] = 7
    cost: ClassVar[Cost] = Cost(down=2, trail="server", auxiliary="server")

    def server_init(self, x: Tensor, site: Site) -> State:
        return {"x": x, **(self.memory(x, site) if self.active else {})}

    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        msg = {"x": server["x"]}
        if not self.active:
            return msg, server
        target, server, log = self.advance(server, server["x"], site)
        # In observe mode nothing pulls, so nothing more is sent than FedAvg sends.
        return (msg if target is None or self.observe else {**msg, "target": target}) | log, server
