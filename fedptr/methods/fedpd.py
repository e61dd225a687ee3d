"""FedPD: every client solves its part of an augmented Lagrangian, and all meet only now and then.

    η       1/η is the strength of the penalty          λ_i = r_i/η    the client's dual variable
    x_i     the client's copy of the global model       p    part of the rounds in which nobody communicates

A round on client i:  w ≈ argmin L_i(w) + ⟨λ_i, w − x_i⟩ + (1/2η)‖w − x_i‖², from x_i;  λ_i ← λ_i + (w − x_i)/η;
x_i ← w + ηλ_i.  Then with probability 1−p all x_i become their mean x, which is the global model.

Numbered details:
1. Stored as r_i = ηλ_i, as in FedDyn: p = 0 is FedDyn with α = 1/η, up to rounding.
2. The coin is one for everyone, drawn from (seed, round): nobody has to be told. In a silent round nothing is sent back
   and the global model stays; the unchanged x is sent down all the same, as a visit begins with a message.
3. Everyone takes part in every round; other participations are refused. A client that fails is left out of a mean;
   if that was after a silent round, it continues from its own x_i until the next mean.

On quadratics: with p = 0 it reaches the optimum, as FedDyn does. With silent rounds it does not: x_i = w + ηλ_i is a
step along the client's own gradient, so clients that differ part ways until they meet again. The paper's theory too
allows silent rounds only as far as clients are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedptr.core.method import Cost, Oracle, Rule, Site
from fedptr.core.randomness import Key
from fedptr.methods.fedavg import FedAvg
from fedptr.plots import SHORT, Look
from fedptr.settings import setting
from fedptr.types import Reply, State


@dataclass(frozen=True)
class FedPD(FedAvg):
    weighting: Literal["samples", "uniform"] = setting("uniform", "how the clients' models are averaged")
    eta: float = setting(0.1, "η, one over the strength of the penalty", gt=0)
    p: float = setting(0.0, "part p of the rounds in which nobody communicates", ge=0, lt=1)

    name: ClassVar[str] = "fedpd"
    idea: ClassVar[str] = "primal-dual steps that may skip communication: λ_i + (w − x_i)/η"
    cite: ClassVar[str] = "Zhang et al., IEEE TSP 2021, arXiv:2005.11418"
    family: ClassVar[str] = "drift correction"
    rule: ClassVar[Rule] = Rule(
        pull="λ_i + (w − x_i)/η", start="x_i, the client's copy of x", server="x ← mean of w_i + ηλ_i, or nothing"
    )
    look: ClassVar[Look] = Look("#44aa99", SHORT)
    oracle: ClassVar[tuple[Oracle, ...]] = (
        Oracle("FedPD", "optimum with everyone", "FedDyn, with everyone only", {"eta": 1.0}),
        Oracle("FedPD, p = 0.5", "off", "biased: clients part ways in silent rounds", {"eta": 1.0, "p": 0.5}),
    )
    cost: ClassVar[Cost] = Cost(client=2)
    everyone: ClassVar[bool] = True

    def client_init(self, x: Tensor, site: Site) -> State:
        return {"r_i": torch.zeros_like(x)}

    def silent(self, site: Site) -> bool:
        coin = Key(site.key.seed).at("round", site.round)("coin")
        return float(torch.rand((), generator=coin)) < self.p

    def prepare(self, msg: State, client: State, site: Site) -> tuple[State, State]:
        """After a silent round the client continues from its own x_i."""
        return {**msg, "x": client.get("x_i", msg["x"])}, client

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        return (1 / self.eta) * (w - self.start(msg, client) + client["r_i"])

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        r_i = client["r_i"] + (w - self.start(msg, client))
        if self.silent(site):
            return {}, {"r_i": r_i, "x_i": w + r_i}
        return {"w": w + r_i}, {"r_i": r_i}

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        return server if self.silent(site) else super().aggregate(server, replies, site)
