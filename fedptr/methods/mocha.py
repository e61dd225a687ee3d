"""MOCHA: a linear model for every client, and how the clients are related, learned together.

    w_i     client i's model; W has them as columns          Σ    relationship of the clients, N×N; Ω = Σ⁻¹
    a_i     dual variables, one per sample and class         B    b_i = (1/m_i) Σ_j a_ij x_j;  W = BΣ/λ
    θ       how well a client solves its part: `frac`        ρ    how far clients' steps may add up

Minimised:  Σ_i mean_j ℓ(y_j, x_jᵀw_i) + (λ/2)·tr(WΩWᵀ),  over W and, with tr Σ = 1, over Σ.

A round on client i: coordinate steps on a_i, each the exact maximum of the dual with the other clients' part bounded by
ρ:  Δa for a sample x, at w = w_i + ρδ_i;  then δ_i += Σ_ii Δa·x/(λm_i),  Δb_i += Δa·x/m_i.  Δb_i goes up.
    squared  ½(y − z)²          Δa = (y − xᵀw − a)/(1 + ρΣ_ii‖x‖²/(λm_i))
    hinge    max(0, 1 − yz)     a·y ← clip(a·y + λm_i(1 − y·xᵀw)/(ρΣ_ii‖x‖²), 0, 1)
Server:  B += ΔB,  W = BΣ/λ.  Every `inner` rounds first:  Σ = (WᵀW)^½/tr,  ρ = max_i Σ_k|Σ_ik|/Σ_ii,  W = BΣ/λ.

Numbered details:
1. After Σ has changed, W is computed from B again. The official code continues with the old W, which then belongs to no
   dual variables: its duality gap stays open.
2. Several classes: one against the rest, y = ±1, a column of a_i and of w_i for each class. Σ is shared by the classes:
   WᵀW is summed over them, which is the minimiser for the sum of their objectives.
3. The bias, where the model has one, is the weight of a constant input 1, and regularised like the others.
4. Coordinates come in a keyed random order without repetition; `frac` above 1 passes again. A straggler takes its part
   of the steps. They are taken a block at a time from the block's Gram matrix, in double precision: the same steps, one
   after another, but for rounding.
5. A client that has not taken part has b_i = 0. It keeps Σ_ii = 1/N, is related to nobody, and uses the global model;
   the others share the rest of the trace. With everyone there it is the rule above.
6. The global model x is the mean of the w_i of those who took part, by `weighting`. MOCHA itself has no global model.
7. A client is sent w_i and the number ρΣ_ii, and neither x nor anybody else's model. Nothing in [local] matters: there
   is no learning rate, and λ is the weight decay. local.augment is refused: each image has dual variables of its own.
8. The recorded training loss is ℓ, summed over classes, at each step's sample before the step.
9. `data.features` names a finished run whose model makes the inputs: the features of a frozen model.
10. `inner` is 10, the paper's code has 100: a round costs more here. With 0, Σ stays I/N: independent models with λN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedptr.core.linear_models import add_constant, to_matrix, to_vector
from fedptr.core.local_training import TrainedModel
from fedptr.core.method import Cost, Effort, Entry, Method, Rule, Site, Sizes
from fedptr.methods.dual_coordinates import hinge_steps, squared_steps
from fedptr.plots import LONG, Look
from fedptr.settings import setting
from fedptr.types import Reply, State

BLOCK = 64  # samples whose steps are taken from one Gram matrix
SHOWN = 100  # clients up to which the relationship is recorded


@dataclass(frozen=True)
class Mocha(Method):
    weighting: Literal["samples", "uniform"] = setting("samples", "how the clients' models are averaged")
    loss: Literal["hinge", "squared"] = setting("hinge", "loss of a class against the rest")
    lam: float = setting(1e-3, "strength λ of the relationship's regulariser", gt=0)
    frac: float = setting(0.5, "coordinate steps of a client in a round, as a part of its samples", gt=0)
    inner: int = setting(10, "rounds between two steps that learn the relationship Σ; 0 = it stays I/N", ge=0)

    name: ClassVar[str] = "mocha"
    idea: ClassVar[str] = "a linear model for every client, regularised by a learned relationship of the clients"
    cite: ClassVar[str] = "Smith et al., NeurIPS 2017, arXiv:1705.10467"
    family: ClassVar[str] = "personalised"
    rule: ClassVar[Rule] = Rule(
        step="a_i ← exact dual coordinate steps",
        start="w_i",
        where="b_i = mean of a_i·x",
        server="W ← BΣ/λ; at times Σ ← (WᵀW)^½/tr, W ← BΣ/λ",
    )
    look: ClassVar[Look] = Look("#ddaa33", LONG)
    cost: ClassVar[Cost] = Cost(each=2, duals=1)
    sent: ClassVar[tuple[str, ...]] = ("delta_b",)
    needs_linear: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True
    sgd_only: ClassVar[str] = "makes exact dual coordinate steps, which need no optimiser"
    no_augment: ClassVar[str] = "keeps dual variables for every image, so images must stay as they are"
    no_ptr: ClassVar[str] = "has no local steps along a gradient that a pull could be added to"

    @property
    def effort(self) -> Effort:
        return Effort(step=0)  # its steps compute no gradient of the task

    def sends(self, task: Sizes) -> dict[str, Entry]:
        return {"delta_b": Entry((task.layers[-1].stop,), summable=False)}  # the server needs to know whose it is

    def server_init(self, x: Tensor, site: Site) -> State:
        rows = x.new_zeros(site.numbers, len(x))
        Sigma = torch.eye(site.numbers, dtype=torch.float64, device=x.device) / site.clients
        sizes = Sigma.new_zeros(site.numbers)  # m_i of those who took part
        return {
            "x": torch.zeros_like(x),
            "W": rows,
            "B": rows,
            "Sigma": Sigma,
            "rho": Sigma.new_ones(()),
            "sizes": sizes,
        }

    def client_init(self, x: Tensor, site: Site) -> State:
        return {"a_i": x.new_zeros(len(site.samples), site.task.classes)}

    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        """The step that learns the relationship, when it is due. Nothing is sent to all clients alike."""
        due = bool(self.inner) and site.round > 0 and site.round % self.inner == 0
        if due:
            server = self.relate(server, site)
        shown = (due or site.round == 0) and site.numbers <= SHOWN
        return ({"log/relationship": server["Sigma"].round(decimals=6)} if shown else {}), server

    def relate(self, server: State, site: Site) -> State:
        """The server's state with Σ and ρ learned from W, and W from them."""
        Sigma = learn_relationship(server["W"], site.clients)
        return self.with_models({**server, "Sigma": Sigma, "rho": bound_interaction(Sigma)})

    def with_models(self, server: State) -> State:
        """W = BΣ/λ, with a row per client, and their mean."""
        W = (server["Sigma"] @ server["B"].double() / self.lam).to(server["x"].dtype)
        weights = server["sizes"] if self.weighting == "samples" else server["sizes"].sign()
        x = (weights / weights.sum().clamp(min=1)).to(W) @ W
        return {**server, "W": W, "x": x}

    def message(self, server: State, i: int) -> State:
        return {"w_i": server["W"][i], "rho_sigma": server["rho"] * server["Sigma"][i, i]}

    def train(self, msg: State, client: State, site: Site, buffers: State) -> tuple[TrainedModel, State]:
        """The trained "model" is Δb_i."""
        data, task, a = site.samples, site.task, client["a_i"].double().clone()
        w, delta_b = (to_matrix(start, task).double() for start in (msg["w_i"], torch.zeros_like(msg["w_i"])))
        scale = float(msg["rho_sigma"]) / (self.lam * len(data))
        take_steps = hinge_steps if self.loss == "hinge" else squared_steps
        steps, loss = 0, 0.0
        for index in draw_blocks(len(data), site.part * self.frac, site.key("coordinates")):
            x, label = data.take(index)
            X = add_constant(x, task).double()
            y = 2.0 * torch.nn.functional.one_hot(label, task.classes).double() - 1
            z, old = X @ w.mT, a[index]
            new, losses = take_steps(y, z, old, scale * (X @ X.mT))
            change = (new - old).mT @ X
            w, delta_b = w + scale * change, delta_b + change / len(data)
            a[index] = new
            steps, loss = steps + len(index), loss + losses
        trained = TrainedModel(to_vector(delta_b, task).to(msg["w_i"].dtype), steps, loss / steps)
        return trained, {"a_i": a.to(client["a_i"].dtype)}

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"delta_b": w}, client

    def personal(self, msg: State, client: State, site: Site) -> Tensor:
        """Its own model, or the global one if it has none yet."""
        return msg["w_i"] if bool(msg["w_i"].any()) else msg["x"]

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        B, sizes = server["B"].clone(), server["sizes"].clone()
        for reply in replies:
            B[reply.client] += reply.state["delta_b"]
            sizes[reply.client] = reply.size
        return self.with_models({**server, "B": B, "sizes": sizes})


def draw_blocks(n: int, part: float, generator: torch.Generator) -> Iterator[Tensor]:
    """The samples of ⌈part·n⌉ steps, at least one: random orders one after another, none of which a block straddles."""
    left = max(1, math.ceil(part * n))
    while left > 0:
        order = torch.randperm(n, generator=generator)[:left]
        yield from order.split(BLOCK)
        left -= len(order)


def learn_relationship(W: Tensor, clients: int) -> Tensor:
    """Σ = (WWᵀ)^½ over its trace, for models in rows; a client without a model is related to none."""
    known = W.any(1)
    rows = W[known].double()
    values, vectors = torch.linalg.eigh(rows @ rows.mT)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.mT
    Sigma = torch.eye(len(W), dtype=torch.float64, device=W.device) / clients
    place = known.nonzero().flatten()
    Sigma[place[:, None], place] = (len(rows) / clients) * root / root.trace()
    return Sigma


def bound_interaction(Sigma: Tensor) -> Tensor:
    """ρ = max_i Σ_k|Σ_ik|/Σ_ii."""
    return (Sigma.abs().sum(1) / Sigma.diagonal()).max()
