"""No federation: every client trains a model of its own, and nothing is sent. A control for personalised methods.

    w_i     client i's own model

A round on client i:  w_i ← local SGD on L_i, from w_i.  The global model x stays the initial one.

Numbered details:
1. Every w_i starts at the initial model, which is the same for all. A client trains in the rounds in which it is
   selected, as with other methods, so that all of them compute equally much. A client that was never selected uses the
   initial model.
2. A round's local training is FedAvg's: the same batches, a new optimiser, this round's learning rate.

On quadratics: w_i ends at the client's own optimum c_i. Nothing that other clients know helps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedptr.core.method import Cost, Rule, Site
from fedptr.methods.fedavg import FedAvg
from fedptr.plots import LONG, Look
from fedptr.types import Reply, State


@dataclass(frozen=True)
class LocalOnly(FedAvg):
    name: ClassVar[str] = "local"
    idea: ClassVar[str] = "no federation: every client trains its own model, and nothing is sent"
    cite: ClassVar[str] = "the control without federation; not of one paper"
    family: ClassVar[str] = "personalised"
    rule: ClassVar[Rule] = Rule(start="w_i, the client's own model", server="x stays the initial model")
    look: ClassVar[Look] = Look("#cc6677", LONG)
    cost: ClassVar[Cost] = Cost(down=0, client=1)
    sent: ClassVar[tuple[str, ...]] = ()
    no_ptr: ClassVar[str] = "has no global trajectory"

    def client_init(self, x: Tensor, site: Site) -> State:
        return {"w_i": x}

    def silent(self, site: Site) -> bool:
        return True

    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        return {}, server

    def start(self, msg: State, client: State) -> Tensor:
        return client["w_i"]

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {}, {"w_i": w}

    def personal(self, msg: State, client: State, site: Site) -> Tensor:
        return client["w_i"]

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        return server

    def quadratic_limit(self, A: Tensor, c: Tensor, K: int, lr: float) -> tuple[Tensor | None, Tensor]:
        return None, c
