"""FedDC: each client learns its drift and is corrected by it; control variates as in SCAFFOLD besides.

    h_i     local drift, Σ (w − x) over the client's visits      h    (1/N) Σ_i h_i, kept by the server
    c_i, c  control variates                                     ω_i  N·m_i/M, the client's relative size

Numbered details:
1. The paper's linear term is the official code's accumulator c_i, which follows SCAFFOLD's rule.
2. The mean drift is over *all* clients: those outside the cohort still count.
3. Without the control variates this is FedDyn, exactly.
4. Steps are counted with momentum, and the learning rate is this round's (the official code uses the undecayed one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedptr.core.method import Cost, Oracle, Rule, Site, local_change, mean_over_all_clients
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.own_momentum import OwnMomentum, counted_steps, momentum_setting
from fedptr.plots import Look
from fedptr.settings import setting
from fedptr.types import Reply, State


@dataclass(frozen=True)
class FedDC(OwnMomentum, FedAvg):
    weighting: Literal["samples", "uniform"] = setting("uniform", "how the clients' models are averaged")
    alpha: float = setting(0.1, "strength α of the drift penalty", gt=0)
    control: bool = setting(True, "use the control variates; without them FedDC is FedDyn")
    momentum: float | Literal["local"] = momentum_setting()
    momentum_correction: bool = setting(True, "count local steps as momentum makes them count")
    weighted: bool = setting(False, "weigh penalty and control variates by client size")

    name: ClassVar[str] = "feddc"
    idea: ClassVar[str] = "learns and cancels the local drift: α(w − x + h_i) + c − c_i"
    cite: ClassVar[str] = "Gao et al., CVPR 2022, arXiv:2203.11751"
    family: ClassVar[str] = "drift correction"
    rule: ClassVar[Rule] = Rule(pull="α(w − x + h_i) + c − c_i", server="h, c ← (1/N) Σ h_i, c_i; x ← mean of w_i + h")
    look: ClassVar[Look] = Look("#cc79a7")
    oracle: ClassVar[tuple[Oracle, ...]] = (
        Oracle("FedDC", "optimum", "reaches it", {"alpha": 1.0}),
        Oracle("FedDC, weighted", "optimum", "reaches it", {"alpha": 1.0, "weighted": True}),
    )
    paper_column: ClassVar[int] = 5
    cost: ClassVar[Cost] = Cost(down=2, client=2, server=2)
    sent: ClassVar[tuple[str, ...]] = ("w", "delta")
    measures_drift: ClassVar[bool] = True
    sgd_only: ClassVar[str] = "computes its control variates from plain steps of size local.lr"

    def server_init(self, x: Tensor, site: Site) -> State:
        return {"x": x, "h": torch.zeros_like(x), "c": torch.zeros_like(x)}

    def client_init(self, x: Tensor, site: Site) -> State:
        return {"h_i": torch.zeros_like(x), "c_i": torch.zeros_like(x)}

    def omega(self, site: Site) -> float:
        return site.share if self.weighted else 1.0

    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        return {"x": server["x"], "c": server["c"]}, server

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        penalty = (self.alpha / self.omega(site)) * (w - self.start(msg, client) + client["h_i"])
        return penalty + (msg["c"] / self.omega(site) - client["c_i"]) if self.control else penalty

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        a = counted_steps(steps, site.local.momentum) if self.momentum_correction else steps
        moved = w - self.start(msg, client)
        delta = -msg["c"] / self.omega(site) - moved / (a * site.local.lr)
        kept = {"h_i": client["h_i"] + moved, "c_i": client["c_i"] + delta}
        return {"w": w, "delta": self.omega(site) * delta}, kept

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        h = server["h"] + mean_over_all_clients((local_change(reply, server["x"]) for reply in replies), site)
        c = server["c"] + mean_over_all_clients((reply.state["delta"] for reply in replies), site)
        return {**server, "x": self.mean(replies) + h, "h": h, "c": c}
