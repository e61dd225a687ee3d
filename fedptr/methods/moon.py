"""MOON: local features are drawn towards the global model's and away from the client's last model's.

    z, z_g, z_p    an image's features by w, by x and by the client's previous model w_i          s    cosine
    μ, τ           strength and temperature

Added to every image's loss:  μ·(−log( e^{s_g/τ} / (e^{s_g/τ} + e^{s_p/τ}) )),  s_g = s(z, z_g),  s_p = s(z, z_p).

Numbered details:
1. Features are what the model's last linear layer is given. The original puts a projection head of two layers before
   it; an own model (`module:factory`) can have one.
2. On a client's first visit there is no previous model. The global one in its place would make the term log 2, with no
   gradient, so it is left out: the first round is FedAvg's, and so is μ = 0, bit for bit.
3. Computed as softplus((s_p − s_g)/τ), which does not overflow.
4. The recorded loss is without the term. BatchNorm's statistics are those of w; frozen models take the batch's.
5. A step is a gradient and three forward passes: features by w are needed before the gradient. It took 2.2 times as
   long as FedAvg's (one core, width 32, the ConvNet in C++; 6.5 times with features from PyTorch).

On quadratics (z = w − v): biased. The term compares directions and does not know of other clients' gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedptr.core.method import Cost, Effort, Oracle, Rule, Site
from fedptr.methods.fedavg import FedAvg
from fedptr.plots import Look
from fedptr.settings import setting
from fedptr.types import Batch, State


@dataclass(frozen=True)
class Moon(FedAvg):
    mu: float = setting(5.0, "strength μ of the contrast", ge=0)
    tau: float = setting(0.5, "temperature τ", gt=0)

    name: ClassVar[str] = "moon"
    idea: ClassVar[str] = "contrasts local features with the global model's and the client's last model's"
    cite: ClassVar[str] = "Li et al., CVPR 2021, arXiv:2103.16257"
    family: ClassVar[str] = "contrast of features"
    rule: ClassVar[Rule] = Rule(direction="∇(L_i(w) + μ·contrast of features)")
    look: ClassVar[Look] = Look("#44aa99")
    oracle: ClassVar[tuple[Oracle, ...]] = (Oracle("MOON", "off", "biased: nothing corrects the drift"),)
    cost: ClassVar[Cost] = Cost(client=1)
    needs_features: ClassVar[bool] = True

    @property
    def effort(self) -> Effort:
        return Effort(step=5 / 3) if self.mu else Effort()

    @property
    def quick_rounds(self) -> int:
        """A client has no w_i before its first."""
        return 1 if self.mu else 0

    def gradient(self, w: Tensor, batch: Batch, msg: State, client: State, site: Site) -> tuple[Tensor, Tensor]:
        if not self.mu or "w_i" not in client:
            return super().gradient(w, batch, msg, client, site)

        def contrast(z: Tensor, x: Tensor) -> Tensor:
            z_g, z_p = (site.task.features(frozen, x) for frozen in (msg["x"], client["w_i"]))
            s_g, s_p = (F.cosine_similarity(z, other) for other in (z_g, z_p))
            return self.mu * F.softplus((s_p - s_g) / self.tau)

        g, loss = site.task.grad_with_extra(w, batch, contrast)
        pull = self.pull(w, msg, client, site)
        return (g if pull is None else g + pull), loss

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"w": w}, {"w_i": w}
