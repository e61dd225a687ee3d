"""SCAFFOLD: control variates correct each client's gradient by how it differs from the average one.

    c_i     client control variate, an estimate of ∇L_i          c    server control variate, (1/N) Σ_i c_i
    K       local steps                                          ω_i  N·m_i/M, the client's relative size

Numbered details:
1. c and c_i start at zero, and c_i is kept by the client between its visits.
2. The server's c moves by (1/N) Σ_S Δc_i with N = all clients, so c = (1/N) Σ_i c_i holds at any participation.
3. With local momentum ρ a step counts 1/(1−ρ) in the long run, so K becomes the momentum-corrected count `a`;
   otherwise c_i would be in the wrong units. The learning rate is the one used in this round, after decay.
4. `weighted_controls` aims at Σ (m_i/M) L_i instead of (1/N) Σ L_i, with the same c/ω_i in training and in the
   update of c_i (the official FedDyn code mixes c/ω_i and c).
5. Option II measures the way that training went, so it counts from where training started: from x, or, in
   `scaffold+ptr`, from the projected model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedptr.core.method import Cost, Effort, Oracle, Rule, Site, mean_over_all_clients
from fedptr.core.task import full_gradient
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.own_momentum import OwnMomentum, counted_steps, momentum_setting
from fedptr.plots import Look
from fedptr.settings import setting
from fedptr.types import Reply, State


@dataclass(frozen=True)
class Scaffold(OwnMomentum, FedAvg):
    weighting: Literal["samples", "uniform"] = setting("uniform", "how the clients' models are averaged")
    option: Literal["I", "II"] = setting("II", "new c_i: I = full-batch gradient at x, II = mean of the steps taken")
    server_lr: float = setting(1.0, "global step size η_g", gt=0)
    momentum: float | Literal["local"] = momentum_setting()
    momentum_correction: bool = setting(True, "count local steps as momentum makes them count")
    weighted_controls: bool = setting(False, "weigh the control variates by client size")

    name: ClassVar[str] = "scaffold"
    idea: ClassVar[str] = "control variates cancel each client's drift: c − c_i"
    cite: ClassVar[str] = "Karimireddy et al., ICML 2020, arXiv:1910.06378"
    family: ClassVar[str] = "drift correction"
    rule: ClassVar[Rule] = Rule(pull="c − c_i", server="x ← mean of w_i; c ← (1/N) Σ c_i")
    look: ClassVar[Look] = Look("#009e73")
    oracle: ClassVar[tuple[Oracle, ...]] = (
        Oracle("SCAFFOLD, option II", "optimum", "reaches it"),
        Oracle("SCAFFOLD, option I", "optimum", "reaches it", {"option": "I"}),
        Oracle("SCAFFOLD, momentum 0.5", "optimum", "reaches it", {"momentum": 0.5}),
        Oracle("SCAFFOLD, weighted controls", "optimum", "reaches it", {"weighted_controls": True}),
    )
    paper_column: ClassVar[int] = 3
    cost: ClassVar[Cost] = Cost(down=2, client=1, server=1)
    sent: ClassVar[tuple[str, ...]] = ("w", "delta")
    sgd_only: ClassVar[str] = "computes its control variates from plain steps of size local.lr"

    @property
    def effort(self) -> Effort:
        return Effort(full=1 if self.option == "I" else 0)

    def server_init(self, x: Tensor, site: Site) -> State:
        return {"x": x, "c": torch.zeros_like(x)}

    def client_init(self, x: Tensor, site: Site) -> State:
        return {"c_i": torch.zeros_like(x)}

    def omega(self, site: Site) -> float:
        return site.share if self.weighted_controls else 1.0

    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        return {"x": server["x"], "c": server["c"]}, server

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        return msg["c"] / self.omega(site) - client["c_i"]

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        if self.option == "I":
            delta = full_gradient(site.task, msg["x"], site.samples) - client["c_i"]
        else:
            a = counted_steps(steps, site.local.momentum) if self.momentum_correction else steps
            delta = (self.start(msg, client) - w) / (a * site.local.lr) - msg["c"] / self.omega(site)
        return {"w": w, "delta": self.omega(site) * delta}, {"c_i": client["c_i"] + delta}

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        x, mean = server["x"], self.mean(replies)
        x = mean if self.server_lr == 1 else x + self.server_lr * (mean - x)
        return {**server, "x": x, "c": server["c"] + mean_over_all_clients((r.state["delta"] for r in replies), site)}
