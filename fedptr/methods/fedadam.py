"""FedAdam: Adam on the server, with the clients' mean change as its gradient.

    v       running mean of Δ²:  v ← β₂v + (1−β₂)Δ²

The rest is in `fedptr.methods.adaptive_server`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedptr.core.method import Oracle, Rule
from fedptr.methods.adaptive_server import AdaptiveServer
from fedptr.plots import DOTS, Look


@dataclass(frozen=True)
class FedAdam(AdaptiveServer):
    name: ClassVar[str] = "fedadam"
    idea: ClassVar[str] = "Adam on the server"
    cite: ClassVar[str] = "Reddi et al., ICLR 2021, arXiv:2003.00295"
    family: ClassVar[str] = "adaptive server"
    rule: ClassVar[Rule] = Rule(server="v ← β₂v + (1−β₂)Δ²; x ← x + η m/(√v + τ)")
    look: ClassVar[Look] = Look("#332288", DOTS)
    oracle: ClassVar[tuple[Oracle, ...]] = (
        Oracle("FedAdam, η = 0.1", "off", "ends where FedAvg does", {"server_lr": 0.1}),
    )

    def square(self, v: Tensor, delta: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * delta**2
