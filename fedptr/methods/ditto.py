"""Ditto: FedAvg, and beside it every client trains a model of its own that is pulled towards the global one.

    x       global model w^t, FedAvg's          v_i     client i's own model          λ     strength of its pull

A round on client i:  w_i ← local SGD on L_i, from x, as in FedAvg;
v_i ← local SGD on L_i(v) + (λ/2)‖v − x‖², from v_i, on the same batches.  Only w_i is sent.

Numbered details:
1. The global branch is FedAvg's, bit for bit, whatever λ is. v_i is pulled towards the x that the client was sent, not
   towards the model that training makes of it.
2. v_i starts at the first global model that the client is sent; with everyone this is the initial one. It stays with
   its client, which trains it in the rounds in which it is selected. A client that was never selected uses x.
3. λ = 0 is local training alone: with everyone v_i is the model of `local`, bit for bit.
4. `dynamic` leaves λ to each client, in every round in which it trains. A tenth of its training samples (at least one)
   is put aside: they are drawn once per client, and v_i is never trained on them. From v_i one model is trained on the
   other samples for each of λ = 0.1, 1 and 2, and the one with the least loss on those put aside is the new v_i. The
   global branch still uses all samples. A client with a single sample takes `lam`. The choice is recorded.
5. Two gradients a step; with `dynamic` one for the global branch and 0.9 for each λ.
6. In `ditto+ptr` the global branch is FedPTR's, bit for bit: projected, and pulled towards w̃. v_i is pulled towards x.

On quadratics: x ends where FedAvg does, at w̄, and v_i = argmin L_i(v) + (λ/2)‖v − w̄‖², for any number of local steps:
FedAvg's bias is in w̄, and the personal branch adds none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedptr.core.local_training import TrainedModel, local_sgd
from fedptr.core.method import Cost, Effort, Rule, Site
from fedptr.core.samples import Samples
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.quadratic_limits import fedavg_limit, pulled_minima
from fedptr.plots import Look
from fedptr.settings import setting
from fedptr.types import Batch, State

CANDIDATES = (0.1, 1.0, 2.0)  # for λ
PUT_ASIDE = 0.1  # part of the samples that λ is chosen by


@dataclass(frozen=True)
class Ditto(FedAvg):
    lam: float = setting(1.0, "strength λ of the pull of a client's own model towards the global one", ge=0)
    dynamic: bool = setting(False, "each client chooses λ of 0.1, 1 and 2 by a tenth of its own training data")

    name: ClassVar[str] = "ditto"
    idea: ClassVar[str] = "FedAvg, and a model of its own for every client, pulled towards the global one: λ(v − x)"
    cite: ClassVar[str] = "Li et al., ICML 2021, arXiv:2012.04221"
    family: ClassVar[str] = "personalised"
    rule: ClassVar[Rule] = Rule(where="beside it v_i ← v_i − η_l · (∇L_i(v_i) + λ(v_i − x))")
    look: ClassVar[Look] = Look("#cc6677")
    cost: ClassVar[Cost] = Cost(client=1)

    @property
    def effort(self) -> Effort:
        return Effort(step=1 + len(CANDIDATES) * (1 - PUT_ASIDE) if self.dynamic else 2)

    def client_init(self, x: Tensor, site: Site) -> State:
        draw = {"draw": torch.tensor(site.key.number("validation"))} if self.dynamic else {}
        return {"v": x, **draw}

    def train(self, msg: State, client: State, site: Site, buffers: State) -> tuple[TrainedModel, State]:
        trained, client = super().train(msg, client, site, buffers)
        data = self.data(msg, client, site)
        if not self.dynamic or len(data) == 1:
            return trained, {**client, "v": self.train_own(self.lam, msg["x"], client["v"], data, site, buffers)}
        aside, rest = put_aside(data, int(client["draw"]))
        models = {lam: self.train_own(lam, msg["x"], client["v"], rest, site, buffers) for lam in CANDIDATES}
        losses = {lam: site.task.evaluate(v, aside, None)["loss"] for lam, v in models.items()}
        best = min(losses, key=lambda lam: losses[lam] if math.isfinite(losses[lam]) else math.inf)
        return trained, {**client, "v": models[best], "lam": torch.tensor(best, dtype=torch.float64)}

    def train_own(self, lam: float, x: Tensor, v: Tensor, data: Samples, site: Site, buffers: State) -> Tensor:
        """The client's own model after a round with this λ."""

        def gradient(v: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            g, loss = site.task.grad(v, batch)
            return g + lam * (v - x), loss

        return local_sgd(v, gradient, data, site, buffers).w

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"w": w, **({"log/lam": client["lam"]} if "lam" in client else {})}, client

    def personal(self, msg: State, client: State, site: Site) -> Tensor:
        return client["v"]

    def quadratic_limit(self, A: Tensor, c: Tensor, K: int, lr: float) -> tuple[Tensor | None, Tensor] | None:
        if self.dynamic:
            return None
        x = fedavg_limit(A, c, K, lr)
        return x, pulled_minima(A, c, self.lam, x)


def put_aside(data: Samples, draw: int) -> tuple[Samples, Samples]:
    """The samples that λ is chosen by, and the others; the same at every call with one `draw`."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(draw))
    n = max(1, round(PUT_ASIDE * len(data)))
    return data.part(order[:n]), data.part(order[n:])
