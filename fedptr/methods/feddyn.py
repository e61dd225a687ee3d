"""FedDyn: a linear and a quadratic term make every client's optimum agree with the global one.

    α       strength           ĝ_i = −α r_i    the client's dual variable; the paper's h is −α r
    r_i     Σ (w − x) over the client's visits                  r    (1/N) Σ_i r_i, kept by the server

Numbered details:
1. Stored as r_i, without α (as in the official code): nothing is divided by α, and α may change between runs.
2. Quadratic and linear term are one pull, inside the clipped gradient. The official code delivers half of it as weight
   decay after clipping; another library lost that half on the way.
3. The server adds r, the mean over *all* clients, so FedDyn with α → 0 is not FedAvg.
4. `weighted` uses α_i = α/ω_i, which aims at Σ (m_i/M) L_i instead of (1/N) Σ L_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedptr.core.method import Cost, Oracle, Rule, Site, local_change, mean_over_all_clients
from fedptr.methods.fedavg import FedAvg
from fedptr.plots import Look
from fedptr.settings import setting
from fedptr.types import Reply, State


@dataclass(frozen=True)
class FedDyn(FedAvg):
    weighting: Literal["samples", "uniform"] = setting("uniform", "how the clients' models are averaged")
    alpha: float = setting(0.01, "strength α of the dynamic penalty", gt=0)
    weighted: bool = setting(False, "use α/ω_i, with ω_i the client's relative size")

    name: ClassVar[str] = "feddyn"
    idea: ClassVar[str] = "a dynamic penalty aligns local and global optima: α(w − x + r_i)"
    cite: ClassVar[str] = "Acar et al., ICLR 2021, arXiv:2111.04263"
    family: ClassVar[str] = "drift correction"
    rule: ClassVar[Rule] = Rule(pull="α(w − x + r_i)", server="r ← (1/N) Σ r_i; x ← mean of w_i + r")
    look: ClassVar[Look] = Look("#e69f00")
    oracle: ClassVar[tuple[Oracle, ...]] = (
        Oracle("FedDyn", "optimum", "reaches it", {"alpha": 1.0}),
        Oracle("FedDyn, weighted", "optimum", "reaches it", {"alpha": 1.0, "weighted": True}),
    )
    paper_column: ClassVar[int] = 4
    cost: ClassVar[Cost] = Cost(client=1, server=1)
    measures_drift: ClassVar[bool] = True

    def server_init(self, x: Tensor, site: Site) -> State:
        return {"x": x, "r": torch.zeros_like(x)}

    def client_init(self, x: Tensor, site: Site) -> State:
        return {"r_i": torch.zeros_like(x)}

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        alpha = self.alpha / site.share if self.weighted else self.alpha
        return alpha * (w - self.start(msg, client) + client["r_i"])

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"w": w}, {"r_i": client["r_i"] + (w - self.start(msg, client))}

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        r = server["r"] + mean_over_all_clients((local_change(reply, server["x"]) for reply in replies), site)
        return {**server, "x": self.mean(replies) + r, "r": r}
