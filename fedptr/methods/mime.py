"""Mime: MimeLite whose local gradients are corrected towards everyone's.

    s       the server's momentum, zero at first          c    mean over the cohort of the full-batch ∇L_i(x)
    ζ       a minibatch

A local step:  w ← w − η_l ((1−β) (∇L(w; ζ) − ∇L(x; ζ) + c) + β s).  The server:  x ← mean(w_i),  s ← (1−β) c + β s.

Numbered details:
1. c has to be known before anybody trains, so the cohort is first asked for its gradients at x. A client that does not
   answer does not train either. x is sent with both messages, as a client that answered keeps nothing: four models
   down, where the paper's count is three.
2. Both gradients of a step are of the same images, augmented alike; a model with dropout draws another mask for each.
3. A first local step goes exactly along (1−β) c + β s, whatever ζ is: with one step a round and everyone taking part
   this is SGD with momentum on all data.
4. The rest is as in MimeLite.

On quadratics: reaches the optimum when everyone takes part: there c = 0, and no client's corrected gradient moves it.
With a part of the clients c is the gradient of that part alone, so the model keeps moving about the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedptr.core.method import Cost, Effort, Oracle, Rule, Site
from fedptr.core.task import full_gradient
from fedptr.methods.mimelite import MimeLite
from fedptr.plots import Look
from fedptr.types import Batch, Reply, State


@dataclass(frozen=True)
class Mime(MimeLite):
    name: ClassVar[str] = "mime"
    idea: ClassVar[str] = "MimeLite with gradients corrected towards everyone's: ∇L(w) − ∇L(x) + c"
    family: ClassVar[str] = "drift correction"
    rule: ClassVar[Rule] = Rule(
        direction="(1−β)(∇L_i(w) − ∇L_i(x) + c) + βs", server="x ← mean of w_i; s ← (1−β)c + βs"
    )
    look: ClassVar[Look] = Look("#aa4499")
    oracle: ClassVar[tuple[Oracle, ...]] = (
        Oracle(
            "Mime, β = 0.5",
            "optimum with everyone",
            "reaches it with everyone; else c is the cohort's",
            {"beta": 0.5},
        ),
    )
    cost: ClassVar[Cost] = Cost(down=4, server=1)
    sent: ClassVar[tuple[str, ...]] = ("w",)
    answered: ClassVar[tuple[str, ...]] = ("g",)

    @property
    def effort(self) -> Effort:
        return Effort(step=2, full=1)

    def ask(self, server: State, site: Site) -> State | None:
        return {"x": server["x"]}

    def answer(self, msg: State, client: State, site: Site) -> State:
        return {"g": full_gradient(site.task, msg["x"], site.samples)}

    def learn(self, server: State, answers: Sequence[Reply], site: Site) -> State:
        return {**server, "c": self.mean(answers, "g")}

    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        return {name: server[name] for name in ("x", "s", "c")}, server

    def estimate(self, w: Tensor, batch: Batch, msg: State, client: State, site: Site) -> tuple[Tensor, Tensor]:
        g, loss = super().estimate(w, batch, msg, client, site)
        g_x, _ = site.task.grad(msg["x"], batch._replace(buffers=None))
        return g - g_x + msg["c"], loss

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"w": w}, client

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        return {"x": self.mean(replies), "s": self.mixed(server["c"], server["s"])}
