"""pFedMe: every client has a model θ_i that is tied to the global one by λ/2 ‖θ − y‖², and keeps it.

    θ       the client's personal model          y    its copy of the global model
    λ       strength of the tie                  γ, k    step size and number of the inner steps on θ
    η       local.lr, the step size on y         β    how far the server moves towards the mean

A local step, on one batch:  k times θ ← θ − γ(∇L(θ) + λ(θ − y));  then y ← y − ηλ(y − θ).
The server:  x ← (1 − β)x + β·mean(y_i).

Numbered details:
1. θ is kept by its client and is the model that the client uses. Official code scores y in its place, as its list of
   personal parameters is the list of the live ones; PFLlib scores the global model.
2. The R local rounds of the paper are the steps of the local loop: local.epochs passes over the data.
3. θ starts at x in every round and is warm from step to step, as in the official code. `reset` starts it at y in every
   local step, so that a step depends on y alone.
4. Official code adds 0.001·θ to the inner gradient. Here it does not, unless `theta_decay` says so.
5. local.weight_decay and local.clip act on λ(y − θ), which is the gradient of the Moreau envelope of L. So does
   local.optimiser; the inner steps on θ are plain ones.
6. The paper has no momentum: `momentum` replaces local.momentum.
7. Clients are averaged by size, as in the official code. The paper's mean is `weighting = "uniform"`.
8. Defaults are the official ones, but for η (0.005 there) and R, which belong to [local].
9. `pfedme+ptr` projects and pulls y.

On quadratics, with Q = λ(I − (I − γ(A + λ))^k)(A + λ)⁻¹A and `reset`: x ends at μ(I − (I − ηQ)^R) for every β, and θ
near (A + λ)⁻¹(Ac + λy). Both are exact in `quadratic_limit`, and so is the end of a warm θ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedptr.core.local_training import TrainedModel, local_sgd
from fedptr.core.method import Cost, Effort, Oracle, Rule, Site
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.own_momentum import OwnMomentum, momentum_setting
from fedptr.methods.quadratic_limits import weighted_centre
from fedptr.plots import Look
from fedptr.settings import setting
from fedptr.types import Batch, Reply, State


@dataclass(frozen=True)
class PFedMe(OwnMomentum, FedAvg):
    lam: float = setting(15.0, "strength λ of the tie between θ and y", gt=0)
    k: int = setting(5, "inner steps k on every batch", ge=1, le=100_000)
    gamma: float = setting(0.09, "step size γ of the inner steps", gt=0)
    beta: float = setting(1.0, "β: the server moves to (1 − β)x + β·mean of y", gt=0)
    reset: bool = setting(False, "start θ at y in every local step instead of once a round")
    theta_decay: float = setting(0.0, "weight decay in the inner steps; the official code has 0.001", ge=0)
    momentum: float | Literal["local"] = momentum_setting()

    name: ClassVar[str] = "pfedme"
    idea: ClassVar[str] = "personal models tied to the global one, which follows them: ∇L_i(θ) + λ(θ − y)"
    cite: ClassVar[str] = "Dinh et al., NeurIPS 2020, arXiv:2006.08848"
    family: ClassVar[str] = "personalised"
    rule: ClassVar[Rule] = Rule(
        direction="λ(w − θ)",
        where="θ after k steps along ∇L_i(θ) + λ(θ − w)",
        server="x ← (1 − β)x + β·mean of w_i",
    )
    look: ClassVar[Look] = Look("#aa7744")
    oracle: ClassVar[tuple[Oracle, ...]] = (
        Oracle("pFedMe, λ = 1", "off", "its global model minimises other losses, Moreau envelopes", {"lam": 1.0}),
    )
    cost: ClassVar[Cost] = Cost(client=1)

    @property
    def effort(self) -> Effort:
        return Effort(step=self.k)

    def client_init(self, x: Tensor, site: Site) -> State:
        return {"theta": x}

    def train(self, msg: State, client: State, site: Site, buffers: State) -> tuple[TrainedModel, State]:
        start = theta = self.start(msg, client)

        def direction(y: Tensor, theta: Tensor) -> Tensor:
            pull = self.pull(y, msg, client, site)
            return self.lam * (y - theta) + (0 if pull is None else pull)

        def gradient(y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            nonlocal theta
            theta, loss = self.improve_theta(y if self.reset else theta, y, batch, site)
            return direction(y, theta), loss

        def objective(y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            near, loss = self.improve_theta(y, y, batch, site)
            return direction(y, near), loss

        trained = local_sgd(start, gradient, self.data(msg, client, site), site, buffers, objective)
        return trained, {**client, "theta": theta}

    def improve_theta(self, theta: Tensor, y: Tensor, batch: Batch, site: Site) -> tuple[Tensor, Tensor]:
        """θ after k inner steps, and its loss before them."""
        losses = []
        for _ in range(self.k):
            g, loss = site.task.grad(theta, batch)
            theta = theta - self.gamma * (g + self.lam * (theta - y) + self.theta_decay * theta)
            losses.append(loss)
        return theta, losses[0]

    def personal(self, msg: State, client: State, site: Site) -> Tensor:
        return client["theta"]

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        mean = self.mean(replies)
        return {**server, "x": mean if self.beta == 1 else server["x"] + self.beta * (mean - server["x"])}

    def quadratic_limit(self, A: Tensor, c: Tensor, K: int, lr: float) -> tuple[Tensor, Tensor] | None:
        """With (y − c, θ − c) ← M (y − c, θ − c) in a local step, and M^K from (x − c, x − c) in a round."""
        d, eye = A.shape[-1], torch.eye(A.shape[-1], dtype=A.dtype)
        decayed = A + self.theta_decay * eye  # weight decay is a part of the loss that θ sees, and moves its centre
        c = torch.linalg.solve(decayed, torch.einsum("nij,nj->ni", A, c))
        tied = decayed + self.lam * eye
        by_theta = torch.linalg.matrix_power(eye - self.gamma * tied, self.k)
        by_y = self.lam * torch.linalg.solve(tied, eye - by_theta)
        if self.reset:
            by_theta, by_y = torch.zeros_like(by_theta), by_y + by_theta
        rate = lr * self.lam
        upper = torch.cat([(1 - rate) * eye + rate * by_y, rate * by_theta], dim=2)
        M = torch.cat([upper, torch.cat([by_y, by_theta], dim=2)], dim=1)
        ends = torch.linalg.matrix_power(M, K) @ torch.cat([eye, eye])
        x = weighted_centre(eye - ends[:, :d], c)
        return x, c + torch.einsum("nij,nj->ni", ends[:, d:], x - c)
