"""The paper's naive attempt: FedProx on the client's data together with its auxiliary dataset.

    D̃_i   learned as in FedPTR          μ   strength of the pull towards the global model

The auxiliary images join the local ones after warm-up, in rounds whose matching did not fail: concatenated, shuffled
together, not augmented. The paper does
not say how it weighted them nor which μ it used; FedPTR's λ = 0.05 is taken. Until then this is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedptr.core.method import Cost, Rule, Site
from fedptr.core.samples import Samples
from fedptr.core.task import Task, takes_texts
from fedptr.errors import UserError
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.ptr.trajectory import Trajectory
from fedptr.plots import DOTS, Look
from fedptr.settings import setting
from fedptr.types import State

NO_TEXTS = (
    "naive trains on auxiliary samples among the client's own, and those of texts are vectors, not tokens; choose "
    "another method"
)


@dataclass(frozen=True)
class Naive(Trajectory, FedAvg):
    labels: Literal["hard"] = setting("hard", "auxiliary images join the client's own, which have these")
    mu: float = setting(0.05, "strength μ of the pull towards the global model", ge=0)

    name: ClassVar[str] = "naive"
    idea: ClassVar[str] = "FedProx on local plus auxiliary data, the attempt FedPTR is contrasted with"
    cite: ClassVar[str] = "Chen, Cao, Wang et al., 2023, arXiv:2312.14380, appendix"
    family: ClassVar[str] = "projected trajectory"
    rule: ClassVar[Rule] = Rule(pull="μ(w − x)", where="on local and auxiliary data")
    look: ClassVar[Look] = Look("#999999", DOTS)
    cost: ClassVar[Cost] = Cost(trail="client", auxiliary="client")

    def check(self, task: Task) -> None:
        if takes_texts(task):
            raise UserError(NO_TEXTS)
        super().check(task)

    def client_init(self, x: Tensor, site: Site) -> State:
        if site.data is not None and len(site.data) and site.samples.x.dtype == torch.int64:
            raise UserError(NO_TEXTS)
        return self.memory(x, site)

    def prepare(self, msg: State, client: State, site: Site) -> tuple[State, State]:
        client, log = self.receive(client, msg["x"], site)
        return {**msg, **log}, client

    def data(self, msg: State, client: State, site: Site) -> Samples:
        joined = self.warm(client) and self.mimics(client)
        return site.samples.joined(client["X"], client["y"]) if joined else site.samples

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        return self.mu * (w - msg["x"]) if self.warm(client) else None
