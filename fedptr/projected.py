"""The projected trajectory: one step ahead on the auxiliary dataset, and the pull towards it.

    w̃           the projected next global model                  d_j    w_j − w̃_j for layer j
    λ_j         λ/max(‖d_j‖, ε), recomputed at every local step

Numbered details (each is a field):
1. The projection takes K plain steps with η, not with the learned β, on the whole set; it happens in every round
   after warm-up, also when matching was not due. Should it not be finite, the round goes on without a pull.
2. λ_j is not differentiated; `through` halves the pull, which is what the gradient of (λ/2)‖d_j‖ is (and what the
   common snippet with an un-squared norm computes).
3. ε = η_l·λ by default. The literal formula (a tiny ε) pulls with full strength however small d_j is, so a tensor that
   the projection left in place (a bias before an instance norm) would be shaken by amplified rounding noise. Below ε
   the pull is a quadratic that one plain step lands on.
4. The granularity changes the strength: the pull's total norm is λ·√(number of groups).
5. Local training starts at the global model, so that λ = 0 is FedAvg.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedptr.matching import project
from fedptr.settings import setting
from fedptr.site import Site
from fedptr.task import State, Task
from fedptr.trajectory import Trajectory, logged


@dataclass(frozen=True)
class Projected(Trajectory):
    lam: float = setting(0.05, "strength λ of the pull towards the projected model; 0 = FedAvg", ge=0)
    regulariser: Literal["adaptive", "fixed"] = setting("adaptive", "λ_j = λ/‖d_j‖ per layer, or one λ for all")
    granularity: Literal["tensor", "module", "global"] = setting("tensor", "what a layer is")
    adaptive_grad: Literal["detached", "through"] = setting("detached", "take λ_j as a constant, or differentiate it")
    adaptive_eps: float | Literal["auto"] = setting("auto", 'guard ε of the adaptive λ; "auto" = η_l·λ', gt=0)
    K: int = setting(5, "projection steps", ge=0)
    eta: float = setting(0.01, "projection step size η", ge=0)
    projection_lr: Literal["eta", "beta"] = setting("eta", "project with η or with the learned β")
    projection_momentum: float = setting(0.0, "momentum of the projection", ge=0, lt=1)
    dsa_in_projection: bool | Literal["same"] = setting("same", 'augment in projection; "same" = as in matching')
    start_from: Literal["global", "projected"] = setting("global", "where local training starts")
    observe: bool = setting(False, "match and project but do not pull: training is FedAvg's")

    @property
    def active(self) -> bool:
        """Whether matching and projection are needed at all."""
        return self.lam > 0 or self.observe

    def advance(self, memory: State, x: Tensor, site: Site) -> tuple[Tensor | None, State, State]:
        """Receive x, match if due, project if warm: (w̃ or None, the new memory, a log)."""
        memory, log = self.receive(memory, x, site)
        if not self.warm(memory):
            return None, memory, log
        began = time.perf_counter()
        lr = self.eta if self.projection_lr == "eta" else float(memory["beta"])
        dsa = self.dsa if self.dsa_in_projection == "same" else self.dsa_in_projection
        target = project(site.task, x, memory["X"], memory["y"], self.K, lr, self.projection_momentum, dsa, site.key)
        sound = bool(target.isfinite().all())  # a hopeless D̃ must not take the training down with it
        log |= logged(seconds_projection=time.perf_counter() - began, projection_skipped=float(not sound))
        return (target, memory, {**log, "log/target": target}) if sound else (None, memory, log)

    def start(self, msg: State, client: State) -> Tensor:
        return msg["target"] if self.start_from == "projected" and "target" in msg else msg["x"]

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        """λ d, or per layer λ d_j / max(‖d_j‖, ε); nothing before warm-up."""
        if "target" not in msg or self.observe:
            return None
        d = w - msg["target"]
        if self.regulariser == "fixed":
            return self.lam * d
        eps = site.local.lr * self.lam if self.adaptive_eps == "auto" else self.adaptive_eps
        strength = self.lam if self.adaptive_grad == "detached" else self.lam / 2
        parts = d.split(group_sizes(site.task, self.granularity))
        return torch.cat([part * (strength / part.norm().clamp(min=eps)) for part in parts])

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        if "target" not in msg:
            return {"w": w}, client
        parts = (w - msg["target"]).split(group_sizes(site.task, "tensor"))
        return {"w": w, "log/distances": torch.stack([part.norm() for part in parts])}, client


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
