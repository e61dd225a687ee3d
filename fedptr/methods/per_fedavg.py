"""Per-FedAvg: learns a global model that is good after one step on a client's own data.

    a       step of the adaptation          b       step of local training, which is local.lr
    D, D′, D″   three batches of a step     δ       how far apart HF takes its two gradients

The objective of client i is F_i(w) = L_i(w − a∇L_i(w)).  A local step, with u = ∇L(w − a∇L(w; D); D′):

    FO      w ← w − b u                                                      no second derivatives
    HF      w ← w − b (u − a [∇L(w + δu; D″) − ∇L(w − δu; D″)] / 2δ)          their product with u from two gradients
    exact   w ← w − b (u − a ∇²L(w; D″) u)                                   their product with u itself

The server is FedAvg's. The client's own model is one step from the global one: v_i = x − a∇L_i(x).

Numbered details:
1. That step uses the client's whole training set. It never sees test data; some public code adapts on labelled test
   batches.
2. b is local.lr, after decay; momentum, weight decay and clipping are local training's and act on the direction above,
   as does local.optimiser. The step of the adaptation is always a plain one.
   The paper has none of them: local.momentum = 0 is its rule.
3. D′ is the batch that FedAvg would take. D and D″ come from two other random orders of the client's samples. Each is
   drawn from (seed, round, client) with a name of its own, is cut into batches as D′ is, and begins again when it is
   used up. So the three are independent and of one size, and clients of any size train: one whose samples fit into a
   batch uses all of them three times. Some public code cuts an epoch into disjoint triples, and small clients never
   train.
4. The recorded loss is that of the adapted model on D′. γ is measured with D = D′ = D″, chunk by chunk.
5. FO with a = 0 is FedAvg, bit for bit.
6. Gradients a step: FO 2, HF 4, exact 2 and a second-order product, which costs about as much as 2 more.

On quadratics: x ends at μ(I − (I − bB_i)^K), where μ(M) = (Σ M_i)⁻¹ Σ M_i c_i. FO has B = A(I − aA). HF, whatever δ is,
and exact have B = (I − aA)A(I − aA), the curvature of F_i. So with K = 1 these two reach the minimum of Σ F_i, and FO
does not; with K > 1 clients drift, as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedptr.core.local_training import TrainedModel, draw_batches, flip_and_crop, local_sgd
from fedptr.core.method import Effort, Rule, Site
from fedptr.core.samples import Samples
from fedptr.core.task import Task, full_gradient
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.quadratic_limits import fedavg_limit, take_steps
from fedptr.plots import SHORT, Look
from fedptr.settings import setting
from fedptr.types import Batch, State


@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    variant: Literal["FO", "HF", "exact"] = setting("HF", "second derivatives: left out, from two gradients, or exact")
    a: float = setting(0.01, "step size a of the adaptation to a client's data", ge=0)
    delta: float = setting(1e-3, "δ, how far along u the two gradients of HF are taken", gt=0)

    name: ClassVar[str] = "per-fedavg"
    idea: ClassVar[str] = "a global model that is good after one step on a client's data: ∇L(w − a∇L(w))"
    cite: ClassVar[str] = "Fallah et al., NeurIPS 2020, arXiv:2002.07948"
    family: ClassVar[str] = "personalised"
    rule: ClassVar[Rule] = Rule(
        direction="(I − a∇²L_i(w)) ∇L_i(w − a∇L_i(w))", server="x ← mean of w_i; then v_i ← x − a∇L_i(x)"
    )
    look: ClassVar[Look] = Look("#cc6677", SHORT)
    adapts: ClassVar[bool] = True
    no_ptr: ClassVar[str] = "trains for the model after a further step, where FedPTR's projected model means nothing"

    @property
    def effort(self) -> Effort:
        return Effort(step=2 if self.variant == "FO" else 4)

    @property
    def second_derivatives(self) -> Literal["", "weights", "inputs"]:
        return "weights" if self.variant == "exact" else ""

    def train(self, msg: State, client: State, site: Site, buffers: State) -> tuple[TrainedModel, State]:
        data = self.data(msg, client, site)
        first, third = (draw_further(data, site, name) for name in ("adaptation-batches", "curvature-batches"))

        def gradient(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            D2 = batch if self.variant == "FO" else next(third)
            return self.meta_gradient(w, next(first), batch, D2, site.task)

        def objective(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            return self.meta_gradient(w, batch, batch, batch, site.task)

        return local_sgd(self.start(msg, client), gradient, data, site, buffers, objective), client

    def meta_gradient(self, w: Tensor, D: Batch, D1: Batch, D2: Batch, task: Task) -> tuple[Tensor, Tensor]:
        """The direction of a local step, and the loss of the adapted model; D1 is D′ and D2 is D″."""
        g, _ = task.grad(w, D)
        u, loss = task.grad(w - self.a * g, D1)
        if self.variant == "FO":
            return u, loss
        return u - self.a * self.curvature(w, u, D2, task), loss

    def curvature(self, w: Tensor, u: Tensor, D2: Batch, task: Task) -> Tensor:
        """∇²L(w) u on this batch."""
        if self.variant == "exact":
            product = task.adjoint(w, D2, u, by_w=True).by_w
            assert product is not None
            return product
        ahead, behind = (task.grad(w + step * u, D2)[0] for step in (self.delta, -self.delta))
        return (ahead - behind) / (2 * self.delta)

    def personal(self, msg: State, client: State, site: Site) -> Tensor:
        return msg["x"] - self.a * full_gradient(site.task, msg["x"], site.samples)

    def quadratic_limit(self, A: Tensor, c: Tensor, K: int, lr: float) -> tuple[Tensor | None, Tensor]:
        left = torch.eye(A.shape[-1], dtype=A.dtype) - self.a * A
        B = A @ left if self.variant == "FO" else left @ A @ left
        x = fedavg_limit(B, c, K, lr)
        return x, take_steps(A, c, 1, self.a, x)


def draw_further(data: Samples, site: Site, purpose: str) -> Iterator[Batch]:
    """Batches in an order of their own, epoch after epoch without end, augmented as those of local training are."""
    order, noise = site.key(purpose), site.key(f"{purpose}-augment")
    while True:
        for index in draw_batches(len(data), site.local.batch, order):
            x, y = data.take(index)
            yield Batch(flip_and_crop(x, noise) if site.local.augment == "flip-crop" else x, y)
