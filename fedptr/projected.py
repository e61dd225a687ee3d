"""The projected trajectory: one step ahead on the auxiliary dataset, towards which local training is pulled.

    w̃           the projected next global model

Numbered details (each is a field):
1. The projection takes K plain steps with η, not with the learned β, on the whole set; it happens in every round
   after warm-up, also when matching was not due. Should it not be finite, the round goes on without a pull.
2. Further details of the pull are in `fedptr.pull`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedptr.matching import project
from fedptr.pull import Pull
from fedptr.settings import setting
from fedptr.site import Site
from fedptr.task import State
from fedptr.trajectory import Trajectory, logged


@dataclass(frozen=True)
class Projected(Pull, Trajectory):
    K: int = setting(5, "projection steps", ge=0)
    eta: float = setting(0.01, "projection step size η", ge=0)
    projection_lr: Literal["eta", "beta"] = setting("eta", "project with η or with the learned β")
    projection_momentum: float = setting(0.0, "momentum of the projection", ge=0, lt=1)
    dsa_in_projection: bool | Literal["same"] = setting("same", 'augment in projection; "same" = as in matching')
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

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        return None if self.observe else super().pull(w, msg, client, site)
