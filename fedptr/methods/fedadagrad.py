"""FedAdagrad: Adagrad on the server; steps get smaller with all that was ever moved.

    v       sum of Δ²:  v ← v + Δ²

The rest is in `fedptr.methods.adaptive_server`. There is no momentum unless β₁ is set (one public library always
has it), and β₂ is not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedptr.core.method import Oracle, Rule
from fedptr.methods.adaptive_server import AdaptiveServer
from fedptr.plots import Look
from fedptr.settings import setting


@dataclass(frozen=True)
class FedAdagrad(AdaptiveServer):
    beta1: float = setting(0.0, "β₁, memory of the mean of Δ", ge=0, lt=1)

    name: ClassVar[str] = "fedadagrad"
    idea: ClassVar[str] = "Adagrad on the server: steps shrink with what was moved so far"
    cite: ClassVar[str] = "Reddi et al., ICLR 2021, arXiv:2003.00295"
    family: ClassVar[str] = "adaptive server"
    rule: ClassVar[Rule] = Rule(server="v ← v + Δ²; x ← x + η Δ/(√v + τ)")
    look: ClassVar[Look] = Look("#332288")
    oracle: ClassVar[tuple[Oracle, ...]] = (
        Oracle("FedAdagrad, η = 3", "off", "ends where FedAvg does", {"server_lr": 3.0}),
    )

    def square(self, v: Tensor, delta: Tensor) -> Tensor:
        return v + delta**2
