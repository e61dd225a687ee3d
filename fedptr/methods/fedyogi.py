"""FedYogi: Yogi on the server, Adam whose v forgets no faster than it learns.

    v       ← v − (1−β₂)Δ² sign(v − Δ²): its change has the size of Δ², however large v is

The rest is in `fedptr.methods.adaptive_server`. From v = 0 the first v is Adam's; from τ² it is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedptr.core.method import Oracle, Rule
from fedptr.methods.adaptive_server import AdaptiveServer
from fedptr.plots import SHORT, Look


@dataclass(frozen=True)
class FedYogi(AdaptiveServer):
    name: ClassVar[str] = "fedyogi"
    idea: ClassVar[str] = "Yogi on the server: Adam that forgets large steps slowly"
    cite: ClassVar[str] = "Reddi et al., ICLR 2021, arXiv:2003.00295"
    family: ClassVar[str] = "adaptive server"
    rule: ClassVar[Rule] = Rule(server="v ← v − (1−β₂)Δ² sign(v − Δ²); x ← x + η m/(√v + τ)")
    look: ClassVar[Look] = Look("#332288", SHORT)
    oracle: ClassVar[tuple[Oracle, ...]] = (
        Oracle("FedYogi, η = 0.1", "off", "ends where FedAvg does", {"server_lr": 0.1}),
    )

    def square(self, v: Tensor, delta: Tensor) -> Tensor:
        return v - (1 - self.beta2) * delta**2 * (v - delta**2).sign()
