"""What methods have in common whose clients send sets of samples: the union, and a server that trains on it.

    X, Y    client i's set: samples, and a row of label weights for each         y      the label with the most weight
    owner   the client that a sample of the union came from                      x      global model w^t

A client's `train` makes its set and leaves it in its state as X and Y, beside a log; `reply` keeps none of these. The
server's state holds the union of the round's sets in client order.

What goes up are samples made from clients' data, and often look like them: nothing here hides them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedptr.core.long_work import LongWork, work_through
from fedptr.core.method import Effort, Entry, Method, Site, Sizes
from fedptr.types import Batch, Reply, State

SENT = ("X", "Y")


class SetWork(NamedTuple):
    """What is computed with at a time, for those who estimate memory."""

    learned: int = 0  # images in a gradient of the model's
    beside: int = 0  # images that only go forward through the model
    numbers: int = 0  # of 8 bytes, besides
    blocks: int = 0  # images in a gradient by class numbers, a client's or the server's, which may come in blocks
    models: int = 0  # that a client keeps on the way


@dataclass(frozen=True)
class SetSender(Method):
    """A method whose clients send sets of at most `most_rows` samples each."""

    sent: ClassVar[tuple[str, ...]] = ()
    sends_sets: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True
    sgd_only: ClassVar[str] = "does not train on clients, so [local] has no meaning for it"
    no_ptr: ClassVar[str] = "has no local steps along a gradient that a pull could be added to"

    def most_rows(self, classes: int) -> int:
        """The most samples in a client's set; EACH_SAMPLE = as many as it has."""
        raise NotImplementedError

    def work(self, classes: int, samples: int, numbers: int) -> SetWork:
        """What a client computes with at a time; `numbers` are those of one sample."""
        return SetWork()

    def server_gradients(self, images: float) -> float:
        """Gradients of single images that the server computes on a union of this size; for those who estimate time."""
        return 0

    def client_gradients(self, classes: int) -> float:
        """The same of a client, for its own set."""
        return 0

    def count_sets(self, rounds: int) -> int:
        return rounds

    @property
    def effort(self) -> Effort:
        return Effort(step=0)  # clients take no local steps

    def sends(self, task: Sizes) -> dict[str, Entry]:
        rows = self.most_rows(task.classes)
        return {
            "X": Entry((rows, *task.shape), summable=False, fewer=True),
            "Y": Entry((rows, task.classes), summable=False, fewer=True),
        }

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        goes = [*SENT, *(name for name in client if name.startswith("log/"))]
        return {name: client[name] for name in goes}, {name: client[name] for name in client if name not in goes}


@dataclass(frozen=True)
class ServerTraining:
    """How the server trains on a union, in shuffled batches, by SGD with momentum or by Adam."""

    lr: float
    batch: int
    epochs: int
    adam: bool = False
    momentum: float = 0.0
    weight_decay: float = 0.0
    radius: float = 0.0  # how far from where it started the model may get; 0 = as far as it likes

    def make_optimiser(self, w: Tensor) -> torch.optim.Optimizer:
        if self.adam:
            return torch.optim.Adam([w], lr=self.lr, weight_decay=self.weight_decay)
        return torch.optim.SGD([w], lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)


def unite(replies: Sequence[Reply]) -> State:
    """The union of the sets, in client order."""
    X, Y = (torch.cat([reply.state[name] for reply in replies]) for name in SENT)
    owner = torch.cat([torch.full((len(reply.state["Y"]),), reply.client) for reply in replies])
    return {"X": X, "Y": Y, "y": Y.argmax(1), "owner": owner}


def train_on_union(x: Tensor, union: State, how: ServerTraining, method: Method, site: Site) -> Tensor:
    """The model after all epochs, from x; on the labels y. An epoch is one step of long work."""
    w = x.clone()
    work = LongWork({"w": w}, how.make_optimiser(w), {"order": site.key("server-batches")})

    def epoch() -> float:
        losses, assigned = [], union["y"].to(x.device)
        for rows in draw_rows(len(assigned), how.batch, work.generators["order"]):
            w.grad, loss = site.task.grad(w, Batch(union["X"][rows], assigned[rows]))
            assert work.optimiser is not None
            work.optimiser.step()
            if how.radius:
                keep_within(w, x, how.radius)
            losses.append(loss)
        return float(torch.stack(losses).mean())

    begun_from = {"x": x, "X": union["X"], "y": union["y"]}
    work_through(work, epoch, how.epochs, "training on the sets", method, site, begun_from)
    return w


def draw_rows(n: int, batch: int, order: torch.Generator) -> Iterator[Tensor]:
    yield from torch.randperm(n, generator=order).split(batch)


def keep_within(w: Tensor, centre: Tensor, radius: float) -> None:
    """Moves w, in place, to the nearest point at most `radius` from the centre."""
    step = w - centre
    length = float(step.norm())
    if length > radius:
        w.copy_(centre + step * (radius / length))


def one_hot(y: Tensor, classes: int, like: Tensor) -> Tensor:
    return F.one_hot(y.to(torch.int64), classes).to(like)


def pick_balanced(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Up to `count` samples in random order, as many of each class as possible, sorted by class."""
    order = torch.randperm(len(labels), generator=generator)
    turn = torch.zeros(len(labels), dtype=torch.int64)  # the how-manieth of its class each sample is
    for k in labels.unique().tolist():
        own = order[labels[order] == k]
        turn[own] = torch.arange(len(own))
    chosen = order[turn[order].argsort(stable=True)][:count]
    return chosen[labels[chosen].argsort(stable=True)]
