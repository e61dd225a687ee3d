"""FedProx: FedAvg with a quadratic pull towards the global model.

    μ       strength of the penalty (μ/2)‖w − x‖²

Some public code penalises the un-squared norm, or forgets the ½; this is the paper's form. The code behind FedPTR's
tables had a fixed strength that amounts to μ = 2e-4, which is why FedProx and FedAvg are alike there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedptr.core.method import Oracle, Rule, Site
from fedptr.methods.fedavg import FedAvg
from fedptr.plots import Look
from fedptr.settings import setting
from fedptr.types import State


@dataclass(frozen=True)
class FedProx(FedAvg):
    mu: float = setting(0.01, "strength μ of the pull towards the global model", ge=0)

    name: ClassVar[str] = "fedprox"
    idea: ClassVar[str] = "pulls every local model towards the global one: μ(w − x)"
    cite: ClassVar[str] = "Li et al., MLSys 2020, arXiv:1812.06127"
    family: ClassVar[str] = "averaging"
    rule: ClassVar[Rule] = Rule(pull="μ(w − x)")
    look: ClassVar[Look] = Look("#56b4e9")
    oracle: ClassVar[tuple[Oracle, ...]] = (
        Oracle("FedProx, μ = 0.1", "off", "biased: the pull corrects no drift", {"mu": 0.1}),
    )
    paper_column: ClassVar[int] = 2

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        return self.mu * (w - msg["x"])
