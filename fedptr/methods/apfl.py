"""APFL: every client mixes a model of its own with the global one, and trains the mixture.

    y       the global branch, which is FedAvg          v    the client's own branch, kept between rounds
    α       the own branch's part of the mixture        v̄    αv + (1 − α)y, the personal model

A local step, on one batch:  y ← y − η∇L(y);  v ← v − ηα∇L(v̄);  with `adaptive` also α ← α − η⟨v − y, ∇L(v̄)⟩, clipped to
[0, 1]. All three use what was there before the step.

Numbered details:
1. Parameters are mixed. Public code mixes outputs, which costs two models at use and is another method on a network.
2. The global branch is FedAvg bit for bit, whatever the own branch does.
3. Both branches train on the same batches with the client's settings: momentum (or Adam's means), weight decay and
   clipping are the branch's own. α itself always makes plain steps of size η.
4. The paper mixes v with the client's own y, as it is after local training. So does `mix_with = "local"`: a client that
   is evaluated after later rounds uses the y of its last visit, which v was trained beside. `mix_with = "global"` uses
   the newest global model instead, for which a client keeps one model less.
5. `adaptive` moves α at every local step, starting from `alpha` in a client's first visit. Official code moves it in a
   round's first step only, and adds 0.02·α to its gradient.
6. v and α start at the global model and at `alpha` when a client first takes part; until then it uses the global model.
7. `apfl+ptr` projects and pulls the global branch.

On quadratics y ends where FedAvg does, and v̄ has a closed form for every α and K (`quadratic_limit`). With one local
step v mixed with the global model ends at the client's own minimum c_i for every α > 0: v corrects whatever y is.
α = 1 is training alone and α = 0 is y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedptr.core.local_training import TrainedModel, local_sgd
from fedptr.core.method import Cost, Effort, Oracle, Rule, Site
from fedptr.core.optimisers import make_optimiser
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.quadratic_limits import fedavg_limit
from fedptr.plots import DOTS, Look
from fedptr.settings import setting
from fedptr.types import Batch, State


@dataclass(frozen=True)
class APFL(FedAvg):
    alpha: float = setting(0.5, "part α of the client's own branch in its model", ge=0, le=1)
    adaptive: bool = setting(False, "learn α, starting from `alpha`")
    mix_with: Literal["local", "global"] = setting(
        "local", "what v is mixed with for use: the client's last y, or the newest global model"
    )

    name: ClassVar[str] = "apfl"
    idea: ClassVar[str] = "every client trains a mixture of an own and the global model: αv + (1 − α)y"
    cite: ClassVar[str] = "Deng et al., 2020, arXiv:2003.13461"
    family: ClassVar[str] = "personalised"
    rule: ClassVar[Rule] = Rule(where="beside it v ← v − η_l·α∇L_i(αv + (1 − α)w)")
    look: ClassVar[Look] = Look("#aa7744", DOTS)
    oracle: ClassVar[tuple[Oracle, ...]] = (Oracle("APFL", "off", "its global model is FedAvg's"),)
    cost: ClassVar[Cost] = Cost(client=2)

    @property
    def effort(self) -> Effort:
        return Effort(step=2)

    def client_init(self, x: Tensor, site: Site) -> State:
        y = {"y_i": x} if self.mix_with == "local" else {}
        return {"v": x, **y, **({"alpha": torch.tensor(self.alpha, dtype=x.dtype)} if self.adaptive else {})}

    def mixture(self, alpha: float | Tensor, v: Tensor, y: Tensor) -> Tensor:
        """v̄: parameters are mixed, not outputs."""
        return alpha * v + (1 - alpha) * y

    def train(self, msg: State, client: State, site: Site, buffers: State) -> tuple[TrainedModel, State]:
        own, alpha = make_optimiser(client["v"], site.local), client.get("alpha", self.alpha)

        def objective(y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            return self.gradient(y, batch, msg, client, site)

        def gradient(y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            nonlocal alpha
            g_y, loss = objective(y, batch)
            g, _ = site.task.grad(self.mixture(alpha, own.w, y), batch)
            slope = torch.dot(own.w - y, g)
            own.step(alpha * g)
            if isinstance(alpha, Tensor):
                alpha = (alpha - site.local.lr * slope).clamp(0, 1)
            return g_y, loss

        trained = local_sgd(self.start(msg, client), gradient, self.data(msg, client, site), site, buffers, objective)
        kept = {**client, "v": own.w}
        if isinstance(alpha, Tensor):
            kept["alpha"] = alpha
        if self.mix_with == "local":
            kept["y_i"] = trained.w
        return trained, kept

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"w": w, **({"log/alpha": client["alpha"]} if self.adaptive else {})}, client

    def personal(self, msg: State, client: State, site: Site) -> Tensor:
        alpha = client.get("alpha", self.alpha)
        return self.mixture(alpha, client["v"], client.get("y_i", msg["x"]))

    def quadratic_limit(self, A: Tensor, c: Tensor, K: int, lr: float) -> tuple[Tensor, Tensor] | None:
        """v rests where the K steps of a round, with y on its way from x, bring it back to where it started."""
        if self.adaptive:
            return None
        a, eye, x = self.alpha, torch.eye(A.shape[-1], dtype=A.dtype), fedavg_limit(A, c, K, lr)
        of_y = torch.linalg.matrix_power(eye - lr * A, K)  # y − c over a round
        of_v = torch.linalg.matrix_power(eye - lr * a**2 * A, K)  # v − c, without what y adds to it
        mixed = (1 - a) * (of_y if self.mix_with == "local" else eye)
        if a:
            mixed = mixed - a**2 / (1 + a) * torch.linalg.solve(eye - of_v, of_v - of_y)
        return x, c + torch.einsum("nij,nj->ni", mixed, x - c)
