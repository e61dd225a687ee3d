"""FedAvg: local SGD and a weighted mean. Its functions are the defaults of every other method.

    x       global model w^t                     w    local model
    msg     what the server sends to a client    client, server   what each keeps between rounds

A method reads and writes nothing but its arguments. Entries named `log/…` in a message or reply are diagnostics:
they are recorded, never sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

from fedptr.core.local_training import Local
from fedptr.core.samples import Samples
from fedptr.core.site import Reply, Site
from fedptr.core.task import Batch, State
from fedptr.settings import setting


class Effort(NamedTuple):
    """What a visit computes, for those who count work and memory."""

    step: float = 1  # gradients per local step
    full: int = 0  # gradients over the client's whole set


@dataclass(frozen=True)
class FedAvg:
    weighting: Literal["samples", "uniform"] = setting("samples", "how the clients' models are averaged")

    name: ClassVar[str] = "fedavg"
    idea: ClassVar[str] = "local SGD, then the mean of the clients' models"
    cite: ClassVar[str] = "McMahan et al., AISTATS 2017, arXiv:1602.05629"
    # What is sent per client and round and what is kept, in model sizes.
    cost: ClassVar[dict[str, str]] = {"down": "1", "up": "1", "client keeps": "0", "server keeps": "0"}
    everyone: ClassVar[bool] = False  # whether all clients must take part in every round
    measures_drift: ClassVar[bool] = False  # whether the server needs w_i − where client i's training started

    @property
    def effort(self) -> Effort:
        return Effort()

    def server_init(self, x: Tensor, site: Site) -> State:
        return {"x": x}

    def client_init(self, x: Tensor, site: Site) -> State:
        return {}

    def settings(self, local: Local) -> Local:
        """The plan's local settings, as this method wants them."""
        return local

    def ask(self, server: State, site: Site) -> State | None:
        """A message to the cohort that is answered before the broadcast; None = nothing is asked."""
        return None

    def answer(self, msg: State, client: State, site: Site) -> State | None:
        """The client's answer, if this message asks for one; None = it is to train."""
        return None

    def learn(self, server: State, answers: Sequence[Reply], site: Site) -> State:
        """The server's state for this round, after the answers."""
        return server

    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        """The message to every client of the cohort, and the new server state."""
        return {"x": server["x"]}, server

    def prepare(self, msg: State, client: State, site: Site) -> tuple[State, State]:
        """The client's work before training."""
        return msg, client

    def data(self, msg: State, client: State, site: Site) -> Samples:
        return site.samples

    def start(self, msg: State, client: State) -> Tensor:
        """Where local training starts. What a method makes from the way that training went is measured from here."""
        return msg["x"]

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        """The extra gradient this method adds to the client's own; None = nothing is added."""
        return None

    def gradient(self, w: Tensor, batch: Batch, msg: State, client: State, site: Site) -> tuple[Tensor, Tensor]:
        """The direction of one local step, and the loss to record."""
        g, loss = site.task.grad(w, batch)
        pull = self.pull(w, msg, client, site)
        return (g if pull is None else g + pull), loss

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        """What is sent back after training, and what the client keeps."""
        return {"w": w}, client

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        return {**server, "x": self.mean(replies)}

    def mean(self, replies: Sequence[Reply], entry: str = "w") -> Tensor:
        """The weighted mean over the cohort; the weights are normalised over those who replied."""
        sizes = [reply.size if self.weighting == "samples" else 1 for reply in replies]
        total = sum(reply.state[entry] * (size / sum(sizes)) for reply, size in zip(replies, sizes, strict=True))
        assert isinstance(total, Tensor)
        return total


def drift(reply: Reply, x: Tensor) -> Tensor:
    """How far a client's training moved its model: from x, or from where the client says that it started."""
    return reply.state["w"] - reply.state.get("start", x)


def spread(parts: Iterable[Tensor], site: Site) -> Tensor:
    """(1/N) Σ over the cohort: how much a mean over *all* clients moves when only the cohort's parts do."""
    total = sum(parts)
    assert isinstance(total, Tensor)
    return total / site.clients
