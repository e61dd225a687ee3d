"""FedSAM: local steps with the gradient at the worst point nearby, which leads to flat minima.

    g       ∇L(w) on the batch          e    ρ g/(‖g‖ + 1e-7), one norm for the whole model

A local step:  w ← w − η_l ∇L(w + e), on the same batch.

Numbered details:
1. w + e is a new vector, so w itself is never disturbed; ρ = 0 is FedAvg, bit for bit.
2. Two gradients a step, so twice the work. The loss that is recorded, and BatchNorm's statistics, are those at w.

On quadratics: biased like FedAvg. As every gradient is taken off w, the end is moved besides, in proportion to ρ and
in any direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedptr.core.method import Effort, Oracle, Rule, Site
from fedptr.methods.fedavg import FedAvg
from fedptr.plots import Look
from fedptr.settings import setting
from fedptr.types import Batch, State


@dataclass(frozen=True)
class FedSAM(FedAvg):
    rho: float = setting(0.1, "distance ρ at which the gradient is taken", ge=0)

    name: ClassVar[str] = "fedsam"
    idea: ClassVar[str] = "steps with the gradient at the worst point nearby: ∇L(w + e)"
    cite: ClassVar[str] = "Qu et al., ICML 2022, arXiv:2206.02618"
    family: ClassVar[str] = "flat minima"
    rule: ClassVar[Rule] = Rule(direction="∇L_i(w + e)", where="e = ρ ∇L_i(w)/‖∇L_i(w)‖")
    look: ClassVar[Look] = Look("#999933")
    oracle: ClassVar[tuple[Oracle, ...]] = (Oracle("FedSAM", "off", "biased: nothing corrects the drift"),)

    @property
    def effort(self) -> Effort:
        return Effort(step=2)

    def gradient(self, w: Tensor, batch: Batch, msg: State, client: State, site: Site) -> tuple[Tensor, Tensor]:
        g, loss = super().gradient(w, batch, msg, client, site)
        e = g * (self.rho / (g.norm() + 1e-7))
        g, _ = super().gradient(w + e, batch._replace(buffers=None), msg, client, site)
        return g, loss
