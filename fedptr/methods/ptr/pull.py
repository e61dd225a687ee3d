"""The pull towards a target model w̃, with a layer-adaptive strength.

    w̃           the target that comes with the message           d_j    w_j − w̃_j for layer j
    λ_j         λ/max(‖d_j‖, ε), recomputed at every local step

Numbered details (each is a field):
1. λ_j is not differentiated; `through` halves the pull, which is what the gradient of (λ/2)‖d_j‖ is (and what the
   common snippet with an un-squared norm computes).
2. ε = η_l·λ by default. The literal formula (a tiny ε) pulls with full strength however small d_j is, so a tensor that
   the target left in place (a bias before an instance norm) would be shaken by amplified rounding noise. Below ε
   the pull is a quadratic that one plain step lands on.
3. The granularity changes the strength: the pull's total norm is λ·√(number of groups).
4. Local training starts at w̃ too: the theory measures how well a client solved its problem by the gradient at w̃, the
   centre of the pull, and only from there does it matter how far the projection reached. `global` starts at x, and
   leaves the pull alone to bring the client towards w̃. With λ = 0 nothing is projected, and this is FedAvg.
5. `regulariser = "none"` starts at w̃ and does not pull.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedptr.core.method import Site
from fedptr.core.task import Task
from fedptr.settings import setting
from fedptr.types import State


@dataclass(frozen=True)
class Pull:
    lam: float = setting(0.05, "strength λ of the pull towards the projected model; 0 = none, the method alone", ge=0)
    regulariser: Literal["adaptive", "fixed", "none"] = setting(
        "adaptive", "λ_j = λ/‖d_j‖ per layer, one λ for all, or no pull: start at the projected model and train freely"
    )
    granularity: Literal["tensor", "module", "global"] = setting("tensor", "what a layer is")
    adaptive_grad: Literal["detached", "through"] = setting("detached", "take λ_j as a constant, or differentiate it")
    adaptive_eps: float | Literal["auto"] = setting("auto", 'guard ε of the adaptive λ; "auto" = η_l·λ', gt=0)
    start_from: Literal["global", "projected"] = setting("projected", "where local training starts: w̃, or x")

    no_ptr: ClassVar[str] = "has a part of FedPTR already"

    def start(self, msg: State, client: State) -> Tensor:
        return msg["target"] if self.start_from == "projected" and "target" in msg else msg["x"]

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        """λ d, or per layer λ d_j / max(‖d_j‖, ε); nothing before warm-up."""
        if "target" not in msg or self.regulariser == "none":
            return None
        d = w - msg["target"]
        if self.regulariser == "fixed":
            return self.lam * d
        eps = site.local.lr * self.lam if self.adaptive_eps == "auto" else self.adaptive_eps
        strength = self.lam if self.adaptive_grad == "detached" else self.lam / 2
        sizes = group_sizes(site.task, self.granularity)
        factors = strength / group_norms(d, sizes).clamp(min=eps)
        return d * factors.repeat_interleave(torch.tensor(sizes, device=d.device), output_size=len(d))

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        if "target" not in msg:
            return {"w": w}, client
        distances = group_norms(w - msg["target"], group_sizes(site.task, "tensor"))
        return {"w": w, "log/distances": distances}, client


def group_norms(d: Tensor, sizes: list[int]) -> Tensor:
    return torch.stack(torch._foreach_norm(d.split(sizes)))


def group_sizes(task: Task, granularity: str) -> list[int]:
    """Sizes of the stretches of the flat vector that share one λ_j."""
    sizes: list[int] = []
    previous = None
    for layer in task.layers:
        group = {"tensor": layer.name, "module": layer.name.rpartition(".")[0], "global": ""}[granularity]
        if sizes and group == previous:
            sizes[-1] += layer.stop - layer.start
        else:
            sizes.append(layer.stop - layer.start)
        previous = group
    return sizes
