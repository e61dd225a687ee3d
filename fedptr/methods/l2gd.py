"""L2GD: a coin decides whether clients train their own models or draw them towards their mean.

    x_i     the client's model          x̄    the mean of all x_i          λ    strength of the tie Σ λ/2 ‖x_i − x̄‖²
    p       probability of a round in which models are drawn together      K    steps of a local round
    θ       K·lr·(1−p)·λ/p

A round is one flip.  With probability 1−p:  x_i ← K local steps from x_i.  With probability p:  x_i ← x_i − θ(x_i − x̄).

Numbered details:
1. local.lr is the paper's α/(n(1−p)). With it the paper's factor αλ/(np) is lr·(1−p)·λ/p, which K steps in a local
   round multiply by K: then Σ L_i + λ/2 Σ ‖x_i − x̄‖² is what the expected step descends. Public code (FedRep) has
   αλ/(n(1−p)), which is another λ.
2. The coin is one for everyone, drawn from (seed, round): nobody has to be told. All models are equal before the first
   local round, so the first round is a local one whatever the coin says.
3. Models travel only where the coin changes from local to mean, p(1−p) times a round. Clients know the next coin, so
   they send x_i at the end of the last local round. Their mean comes back with the next message. Clients keep it while
   mean follows mean, as drawing models together does not move it. Only the first round sends a model besides.
4. θ above 1 leads past the mean and is refused. The paper's largest step has θ = ½.
5. K is the client's own count in its last local round, with momentum counted as it acts: then the tie is as strong for
   clients that take other numbers of steps. Their factors θ differ, and drawing models together twice would move the
   mean; x̄ stays the one that was sent.
6. Everyone takes part in every round; other participations are refused. A client that fails where the mean is sent
   leaves its model as it is until the next mean.
7. The mean is plain, as in the paper. With `weighting = "samples"` the tie is to the weighted mean.
8. The client uses x_i. The global model is the last mean that the server made.

On quadratics x_i moves about (A' + λ)⁻¹(A'c + λx̄) with x̄ = μ((A' + λ)⁻¹A'), where A' = (I − (I − lr·A)^K)/(K·lr),
which is A for K = 1. There the expected step is zero, and the average over rounds converges to it. For K = 1 it is also
where pFedMe ends with R = 1 and exact inner solutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedptr.core.local_training import TrainedModel
from fedptr.core.method import Cost, Oracle, Rule, Site
from fedptr.core.randomness import Key
from fedptr.errors import UserError
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.own_momentum import OwnMomentum, counted_steps, momentum_setting
from fedptr.methods.quadratic_limits import pulled_minima, weighted_centre
from fedptr.plots import SHORT, Look
from fedptr.settings import setting
from fedptr.types import Reply, State


@dataclass(frozen=True)
class L2GD(OwnMomentum, FedAvg):
    weighting: Literal["samples", "uniform"] = setting("uniform", "how the clients' models are averaged")
    lam: float = setting(0.1, "strength λ of the tie to the mean; 0 = clients train alone", ge=0)
    p: float = setting(0.2, "probability p of a round that draws models together instead of training", gt=0, lt=1)
    momentum: float | Literal["local"] = momentum_setting()

    name: ClassVar[str] = "l2gd"
    idea: ClassVar[str] = "a coin decides: train the own model, or draw it towards the mean of all"
    cite: ClassVar[str] = "Hanzely and Richtárik, 2020, arXiv:2002.05516"
    family: ClassVar[str] = "personalised"
    rule: ClassVar[Rule] = Rule(
        start="x_i, the client's own model",
        where="or, with probability p, x_i ← x_i − θ(x_i − x)",
        server="x ← mean of x_i where the coin changes",
    )
    look: ClassVar[Look] = Look("#aa7744", SHORT)
    oracle: ClassVar[tuple[Oracle, ...]] = (
        Oracle("L2GD", "off", "aims at models tied by λ, and moves about them with its coin"),
    )
    aliases: ClassVar[tuple[str, ...]] = ("l2sgd",)
    cost: ClassVar[Cost] = Cost(client=2)
    everyone: ClassVar[bool] = True
    sgd_only: ClassVar[str] = "draws models together by a factor that counts plain steps of size local.lr"
    no_ptr: ClassVar[str] = "sends a mean only now and then, which is no trajectory to project"

    def client_init(self, x: Tensor, site: Site) -> State:
        return {"x_i": x, "steps": torch.tensor(0)}

    def averages(self, site: Site, t: int) -> bool:
        """Whether round t draws models together."""
        coin = Key(site.key.seed).at("round", t)("coin")
        return t > 0 and float(torch.rand((), generator=coin)) < self.p

    def silent(self, site: Site) -> bool:
        t = site.round
        return self.averages(site, t) or not self.averages(site, t + 1)

    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        t = site.round
        new = self.averages(site, t) and not self.averages(site, t - 1)
        return {"x": server["x"]} if new or t == 0 else {}, server

    def start(self, msg: State, client: State) -> Tensor:
        return client["x_i"]

    def train(self, msg: State, client: State, site: Site, buffers: State) -> tuple[TrainedModel, State]:
        if not self.averages(site, site.round):
            trained, _ = super().train(msg, client, site, buffers)
            self.factor(trained.steps, site)  # refused as early as it is known
            return trained, {"x_i": trained.w, "steps": torch.tensor(trained.steps)}
        x_i, mean = client["x_i"], msg.get("x", client.get("mean"))
        if mean is None:  # it was not there when the mean was sent
            return TrainedModel(x_i, 0, None), client
        x_i = x_i - self.factor(int(client["steps"]), site) * (x_i - mean)
        return TrainedModel(x_i, 0, None), {**client, "x_i": x_i, "mean": mean}

    def factor(self, steps: int, site: Site) -> float:
        """θ, of a client that took this many steps in its last local round."""
        theta = counted_steps(steps, site.local.momentum) * site.local.lr * (1 - self.p) * self.lam / self.p
        if theta > 1:
            raise UserError(
                f"{self.name}: {steps} local steps make its factor θ = K·lr·(1−p)·λ/p {theta:.2g}, and above 1 it "
                "passes the mean; lower method.lam or local.lr, or raise method.p"
            )
        return theta

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {} if self.silent(site) else {"w": w}, client

    def personal(self, msg: State, client: State, site: Site) -> Tensor:
        return client["x_i"]

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        return server if self.silent(site) else super().aggregate(server, replies, site)

    def quadratic_limit(self, A: Tensor, c: Tensor, K: int, lr: float) -> tuple[Tensor, Tensor] | None:
        """Where the expected step is zero; models of a single run move about it."""
        eye = torch.eye(A.shape[-1], dtype=A.dtype)
        A = (eye - torch.linalg.matrix_power(eye - lr * A, K)) / (K * lr)
        x = weighted_centre(torch.linalg.solve(A + self.lam * eye, A), c)
        return x, pulled_minima(A, c, self.lam, x)
