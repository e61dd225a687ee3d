"""FedAvg with fine-tuning: a client's own model is the global one, trained on the client's data. A control.

    x       global model, FedAvg's          v_i     client i's own model, made when it is asked for

The rounds are FedAvg's, bit for bit. Then v_i ← `epochs` epochs of local SGD on L_i, from x.

Numbered details:
1. v_i is made from the client's training data only, never from its test data. It is not kept and not sent: each
   evaluation makes it again from the global model of that round, so rounds are not changed by it.
2. Its batches come from (seed, round, client) with a name of their own: they are not those of the round's training.
3. Step size and momentum are those of local training, and `lr` changes the step size alone. With a given `lr` nothing
   decays. γ does not stop it early. `epochs` = 0 is FedAvg: v_i = x.

On quadratics: x ends where FedAvg does, at w̄, and v_i = c_i + (I − ηA_i)^E (w̄ − c_i) after E full-batch steps: between
w̄ and the client's own optimum, however good or bad either is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from fedptr.core.local_training import local_sgd
from fedptr.core.method import Rule, Site
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.quadratic_limits import fedavg_limit, take_steps
from fedptr.plots import DOTS, Look
from fedptr.settings import setting
from fedptr.types import Batch, State


@dataclass(frozen=True)
class FineTune(FedAvg):
    epochs: int = setting(1, "epochs of fine-tuning; 0 = none, FedAvg", ge=0, le=100_000)
    lr: float | Literal["local"] = setting("local", 'its step size; "local" = as in local training', gt=0)

    name: ClassVar[str] = "finetune"
    idea: ClassVar[str] = "FedAvg, whose model each client then trains on its own data"
    cite: ClassVar[str] = "McMahan et al., AISTATS 2017, arXiv:1602.05629; Yu et al., 2020, arXiv:2002.04758"
    family: ClassVar[str] = "personalised"
    rule: ClassVar[Rule] = Rule(server="x ← mean of w_i; then v_i ← a few epochs from x")
    look: ClassVar[Look] = Look("#cc6677", DOTS)
    adapts: ClassVar[bool] = True

    def personal(self, msg: State, client: State, site: Site) -> Tensor:
        if not self.epochs:
            return msg["x"]
        lr = site.local.lr if self.lr == "local" else self.lr
        local = replace(site.local, lr=lr, epochs=self.epochs, gamma=0.0, record_gamma=False)
        site = replace(site, local=local, key=site.key.at("finetune"))

        def gradient(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            return site.task.grad(w, batch)

        return local_sgd(msg["x"], gradient, site.samples, site, {}).w

    def quadratic_limit(self, A: Tensor, c: Tensor, K: int, lr: float) -> tuple[Tensor | None, Tensor]:
        x = fedavg_limit(A, c, K, lr)
        return x, take_steps(A, c, self.epochs, lr if self.lr == "local" else self.lr, x)
