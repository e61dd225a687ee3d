"""The projected trajectory: one step ahead on the auxiliary dataset, towards which local training is pulled.

    w̃           the projected next global model

Numbered details (each is a field):
1. The projection takes K plain steps with η, not with the learned β, on the whole set; it happens in every round
   after warm-up, also when matching was not due. Should it not be finite, or should the last matching have failed, the
   round continues as FedAvg's, and `projection_skipped` is recorded.
2. `reach` makes the projection as long as this many rounds are on average, ‖w^t − w^{t−m}‖/m, whatever K and η are: the
   auxiliary data gives the direction, the trajectory the length. The paper's length is what K steps of η come to.
3. Further details of the pull are in `fedptr.methods.ptr.pull`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedptr.core.method import Site
from fedptr.methods.ptr.matching import project_model
from fedptr.methods.ptr.pull import Pull
from fedptr.methods.ptr.trajectory import Trajectory, log_entries
from fedptr.settings import setting
from fedptr.types import State


@dataclass(frozen=True)
class Projection(Pull, Trajectory):
    K: int = setting(5, "projection steps", ge=0, le=100_000)
    eta: float = setting(0.01, "projection step size η", ge=0)
    projection_lr: Literal["eta", "beta"] = setting("eta", "project with η or with the learned β")
    reach: float | Literal["free"] = setting(
        "free", 'length of the projection, in rounds; "free" = as far as K steps of its step size lead', gt=0
    )
    projection_momentum: float = setting(0.0, "momentum of the projection", ge=0, lt=1)
    dsa_in_projection: bool | Literal["same"] = setting("same", 'augment in projection; "same" = as in matching')
    observe: bool = setting(False, "match and project, but train as FedAvg does")

    @property
    def active(self) -> bool:
        """Whether matching and projection are needed at all."""
        return self.lam > 0 or self.observe

    def advance(self, memory: State, x: Tensor, site: Site) -> tuple[Tensor | None, State, State]:
        """Receive x, match if due, project if warm: (w̃ or None, the new memory, a log)."""
        memory, log = self.receive(memory, x, site)
        if not self.warm(memory):
            return None, memory, log
        if not self.mimics(memory):
            return None, memory, log | log_entries(projection_skipped=1.0)
        began = time.perf_counter()
        lr = self.eta if self.projection_lr == "eta" else float(memory["beta"])
        dsa = self.dsa if self.dsa_in_projection == "same" else self.dsa_in_projection
        X, y = memory.get("X_mean", memory["X"]), memory.get("Y", memory["y"])
        target = project_model(site.task, x, X, y, self.K, lr, self.projection_momentum, dsa, site.key)
        if self.reach != "free":
            first = memory["trail"][0]
            paced = site.task.reachable_end(first, x)
            target = set_step_length(x, target, self.reach * (paced - first).norm() / self.m)
        sound = bool(target.isfinite().all())  # a hopeless D̃ must not take the training down with it
        log |= log_entries(seconds_projection=time.perf_counter() - began, projection_skipped=float(not sound))
        return (target, memory, {**log, "log/target": target}) if sound else (None, memory, log)

    def start(self, msg: State, client: State) -> Tensor:
        return msg["x"] if self.observe else super().start(msg, client)

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        return None if self.observe else super().pull(w, msg, client, site)


def set_step_length(x: Tensor, target: Tensor, length: Tensor) -> Tensor:
    """The point at this distance from x in the target's direction; x where there is no direction."""
    step = target - x
    norm = step.norm()
    return x + step * (length / norm) if float(norm) > 0 else x
