"""`fedptr.testing.check_method` lets good methods pass, and says of bad ones what is wrong."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from small_world import QUICK
from torch import Tensor

from fedptr.core.method import Cost, Method, Site
from fedptr.methods import make_method
from fedptr.methods.fedavg import FedAvg
from fedptr.settings import setting
from fedptr.testing import check_method
from fedptr.types import Reply, State


@dataclass(frozen=True)
class Good(FedAvg):
    """Draws, keeps and sends, all as it should be."""

    noise: float = setting(0.01, "noise on the model that is sent", ge=0)

    name: ClassVar[str] = "good"
    idea: ClassVar[str] = "FedAvg with noise and a memory"
    cite: ClassVar[str] = "nobody"
    cost: ClassVar[Cost] = Cost(client=1)

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        drawn = torch.randn(len(w), generator=site.key("noise"))
        return {"w": w + self.noise * drawn}, {"last": w, "visits": client.get("visits", torch.tensor(0)) + 1}


class ChangesMessage(Good):
    def prepare(self, msg: State, client: State, site: Site) -> tuple[State, State]:
        msg["x"] *= 0.9
        return msg, client


class ChangesModel(Good):
    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        return w.sub_(0.01)


class ChangesState(Good):
    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        client["last"] = w
        return {"w": w}, client


class ChangesData(Good):
    def prepare(self, msg: State, client: State, site: Site) -> tuple[State, State]:
        site.samples.x.add_(1)
        return msg, client


class DrawsFromTorch(Good):
    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        return {"x": self.mean(replies) + 0.01 * torch.randn(len(server["x"]))}


class DrawsFromPython(Good):
    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        return random.random() * w


class DrawsFromTheSystem(Good):
    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        return random.SystemRandom().random() * w


COUNTED = itertools.count()


class CountsElsewhere(Good):
    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        return {"x": server["x"] + 0.001 * next(COUNTED)}, server


class KeepsInItself(Good):
    """Each object counts from the start, so that two whole runs agree, and a resumed one does not."""

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        seen = 0 if site.round == 0 else vars(self).get("seen", 0)
        vars(self)["seen"] = seen + 1
        return {"x": self.mean(replies) + 0.01 * seen}


class KnowsTheOrder(Good):
    """Who comes first in a round is treated in another way."""

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        first = vars(self).get("round") != site.round
        vars(self)["round"] = site.round
        return {"w": w + 0.01 * first}, client


class KeepsNumbers(Good):
    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"w": w}, {"steps": steps}  # type: ignore[dict-item]


class KeepsInfinity(Good):
    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"w": w}, {"last": w / 0}


class SendsInfinity(Good):
    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"w": w / 0}, client


class SendsAPart(Good):
    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"w": w[:3]}, client


class SendsMore(Good):
    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"w": w, "again": w}, client


class BroadcastsMore(Good):
    def broadcast(self, server: State, site: Site) -> tuple[State, State]:
        return {"x": server["x"], "again": server["x"]}, server


class KeepsMore(Good):
    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"w": w}, {"last": w, "again": w}


class ServerKeepsMore(Good):
    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        return {"x": self.mean(replies), "last": server["x"]}


class RaisesAnError(Good):
    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        raise ValueError("out of order")


@dataclass(frozen=True)
class BareSetting(Good):
    strength: float = 0.1

    name: ClassVar[str] = "good"


@dataclass(frozen=True)
class Nameless(Method):
    idea: ClassVar[str] = "none"


BROKEN: dict[type[Any], str] = {
    ChangesMessage: "good: prepare changed its argument 'msg'",
    ChangesModel: "good: pull changed its argument 'w'",
    ChangesState: "good: reply changed its argument 'client'",
    ChangesData: "good: prepare changed its argument 'site'",
    DrawsFromTorch: "good draws from a global generator",
    DrawsFromPython: "good draws from a global generator",
    DrawsFromTheSystem: "good gives two results from one seed",
    CountsElsewhere: "good gives two results from one seed",
    KeepsInItself: "good ends otherwise when it is resumed after round 2",
    KnowsTheOrder: "good ends otherwise when clients come in another order",
    KeepsNumbers: "good: reply returns 'steps', a int and no tensor",
    KeepsInfinity: "keeps 'last', which is not finite",
    SendsInfinity: "its 'w' is not finite",
    SendsAPart: "its 'w' is torch.float32 of shape",
    SendsMore: "it sent again, w, not w",
    BroadcastsMore: "good sends 2 model sizes down, and declares 1",
    KeepsMore: "good: the client keeps 2 model sizes, and its cost declares 1",
    ServerKeepsMore: "good: the server keeps 1 model sizes, and its cost declares 0",
    RaisesAnError: "good does not run: good, round 1, client 0: ValueError: out of order",
    BareSetting: "BareSetting.strength is declared without",
    Nameless: "Nameless does not declare name",
}


def test_a_good_method_passes() -> None:
    check_method(Good)
    check_method(Good(noise=0.5))


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_method_is_told_what_is_wrong(broken: type[Method]) -> None:
    named = broken if "name" in vars(broken) or broken is Nameless else type("Broken", (broken,), {"name": "good"})
    with pytest.raises(AssertionError) as caught:
        check_method(named)
    assert BROKEN[broken] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_combined_method_passes() -> None:
    check_method(make_method("scaffold+ptr", **QUICK))
