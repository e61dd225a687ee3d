"""Tiny clients trained several at a time: nothing comes out that one by one would not give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from fedptr.compute import together
from fedptr.compute.blocks import BlockedTask
from fedptr.compute.together import find_groups, visit_together
from fedptr.core.faults import Faults
from fedptr.core.federation import Rounds, Run, federate
from fedptr.core.local_training import Local
from fedptr.core.method import Method, Site
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.core.visit import Request, VisitCohort, VisitResults, visit_in_process
from fedptr.errors import ClientError
from fedptr.methods import find_method
from fedptr.models.networks import MLP, LinearModel
from fedptr.types import State

SHAPE, CLASSES, SIZES = (1, 8, 8), 10, (12, 12, 7, 12, 12, 30, 7, 12)


def task(model: type[LinearModel] | type[MLP] = LinearModel, dtype: torch.dtype = torch.float32) -> BlockedTask:
    torch.manual_seed(0)
    return BlockedTask(model(SHAPE, CLASSES).to(dtype), SHAPE, CLASSES, block=16)


def clients(dtype: torch.dtype = torch.float32) -> list[Samples]:
    """Rows of shared pixels, which are normalised when they are used."""
    g = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (sum(SIZES), *SHAPE), generator=g, dtype=torch.uint8)
    mean, std = torch.full((1, 1, 1), 128, dtype=dtype), torch.full((1, 1, 1), 60, dtype=dtype)
    whole = Samples(x, torch.randint(CLASSES, (len(x),), generator=g), mean=mean, std=std)
    return [whole.part(rows) for rows in torch.arange(len(x)).split(list(SIZES))]


class Counting:
    """Visits together, and counts the clients that really were."""

    def __init__(self) -> None:
        self.together = 0

    def __call__(
        self, method: Method, request: Request, states: Mapping[int, State], sites: Mapping[int, Site], tolerant: bool
    ) -> VisitResults:
        for group in find_groups(method, request, sites):
            self.together += len(together.train_group(method, request, states, {i: sites[i] for i in group}))
        return visit_together(method, request, states, sites, tolerant)


def run(visits: VisitCohort, method: str = "fedavg", local: Local | None = None, **more: Any) -> list[Run]:
    asked: dict[str, Any] = {"task": task(), "clients": clients(), "rounds": Rounds(rounds=3, participation=0.9)} | more
    made = find_method(method)()
    return list(federate(made, local=local or Local(lr=0.1, batch=5, epochs=2), visits=visits, **asked))


def assert_same(method: str = "fedavg", local: Local | None = None, **more: Any) -> int:
    """The models, the states and the losses; returns how many clients were trained together."""
    counting = Counting()
    for one, other in zip(
        run(visit_in_process, method, local, **more), run(counting, method, local, **more), strict=True
    ):
        assert all(torch.equal(one.server[name], other.server[name]) for name in one.server)
        for i, state in one.clients.items():
            assert all(torch.equal(value, other.clients[i][name]) for name, value in state.items())
        assert one.record["clients"] == other.record["clients"]
        assert one.record["train_loss"] == other.record["train_loss"]
    return counting.together


@pytest.mark.parametrize("model", [LinearModel, MLP])
@pytest.mark.parametrize("method", ["fedavg", "fedavgm", "fedadam", "fedprox", "scaffold", "feddyn", "feddc"])
def test_no_bit_changes(method: str, model: type[LinearModel] | type[MLP]) -> None:
    assert assert_same(method, task=task(model)) >= 3 * 5


@pytest.mark.parametrize(
    "local",
    [
        Local(batch=4, momentum=0.0),
        Local(batch=12, weight_decay=0.01),
        Local(batch=5, epochs=3, lr=0.3, decay=0.9),
        Local(batch=1),
    ],
)
def test_settings_of_training(local: Local) -> None:
    assert assert_same(local=local) > 0


def test_some_have_less_time() -> None:
    found = assert_same(faults=Faults(straggle=0.5, drop=0.1), rounds=Rounds(rounds=6))
    assert 0 < found < 6 * len(SIZES)


@pytest.mark.parametrize(
    ("method", "local", "more"),
    [
        ("fedsam", Local(batch=5), {}),
        ("ditto", Local(batch=5), {}),
        ("finetune", Local(batch=5, epochs=2, clip=1.0), {}),
        ("fedavg", Local(batch=5, clip=0.1), {}),
        ("fedavg", Local(batch=5, optimiser="adam"), {}),
        ("fedavg", Local(batch=5, record_gamma=True), {}),
        ("fedavg", Local(batch=20), {}),  # in two blocks
        (
            "fedavg",
            Local(batch=5),
            {"task": Classification(nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES)), SHAPE, CLASSES)},
        ),
    ],
)
def test_others_train_one_by_one(method: str, local: Local, more: dict[str, Any]) -> None:
    assert assert_same(method, local, **more) == 0


def test_where_bits_would_change_clients_train_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(self: object, *args: Any) -> torch.Tensor:
        losses = usual(self, *args)
        args[-1].add_(1e-7)
        return losses

    usual = together.DenseGradient.of_many
    monkeypatch.setattr(together.DenseGradient, "of_many", other)
    assert assert_same() == 0


def test_large_models_and_large_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "CACHE", 2 * 3 * 650 * 4)  # of two models
    assert assert_same() > 0
    monkeypatch.setattr(together, "DATA", 12 * 2 * 64 * 4 - 1)
    assert assert_same() == 2 * 3, "only the two clients with seven samples"


def test_a_failure_names_its_client() -> None:
    broken = clients()
    broken[3] = Samples(torch.full((12, *SHAPE), torch.nan), torch.zeros(12, dtype=torch.int64))
    for visits in (visit_in_process, visit_together):
        with pytest.raises(ClientError, match="round 1, client 3: its 'w' is not finite"):
            run(visits, clients=broken, rounds=Rounds(rounds=1))
    rounds = Rounds(rounds=2, on_failure="drop")
    one, other = (run(visits, clients=broken, rounds=rounds)[-1] for visits in (visit_in_process, visit_together))
    assert torch.equal(one.w, other.w)
    assert one.record["dropped"] == other.record["dropped"] != {}
