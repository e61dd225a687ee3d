"""MoFedSAM: FedCM whose gradient is FedSAM's.

    Δ̄       the last round's mean direction, as in FedCM          e    ρ g/(‖g‖ + 1e-7), as in FedSAM

A local step:  w ← w − η_l (α ∇L(w + e) + (1−α) Δ̄), on one batch.  The server is FedCM's.

Numbered details:
1. α is the paper's β. α = 1 is FedSAM and ρ = 0 is FedCM, bit for bit.
2. All else is as in those two.

On quadratics: biased, like both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedptr.core.method import Oracle, Rule
from fedptr.methods.fedcm import FedCM
from fedptr.methods.fedsam import FedSAM
from fedptr.plots import SHORT, Look


@dataclass(frozen=True)
class MoFedSAM(FedCM, FedSAM):
    name: ClassVar[str] = "mofedsam"
    idea: ClassVar[str] = "FedSAM's gradient, mixed as in FedCM: α ∇L(w + e) + (1−α) Δ̄"
    cite: ClassVar[str] = "Qu et al., ICML 2022, arXiv:2206.02618"
    family: ClassVar[str] = "flat minima"
    rule: ClassVar[Rule] = Rule(
        direction="α ∇L_i(w + e) + (1−α) Δ̄",
        where="e = ρ ∇L_i(w)/‖∇L_i(w)‖",
        server="x ← x + η_g Δ; Δ̄ ← mean of (x − w_i)/(K_i η_l)",
    )
    look: ClassVar[Look] = Look("#999933", SHORT)
    oracle: ClassVar[tuple[Oracle, ...]] = (
        Oracle("MoFedSAM, α = 0.5", "off", "biased, less than FedSAM", {"alpha": 0.5}),
    )
