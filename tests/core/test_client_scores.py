"""Clients' own test data: who is asked, what is recorded, and what the hooks beside training do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedptr.core.client_scores import describe_spread, score_models
from fedptr.core.federation import Rounds, Run, federate, last_run
from fedptr.core.local_training import Local
from fedptr.core.method import Entry, Method, Site, Sizes
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.core.visit import Request, VisitResults, visit_in_process
from fedptr.errors import ClientError, UserError
from fedptr.methods import FedAvg
from fedptr.testing import LOCAL, small_federation
from fedptr.types import State


@dataclass(frozen=True)
class OwnModel(FedAvg):
    """Every client keeps its last local model, and is told its own number."""

    name: ClassVar[str] = "own-model"

    def message(self, server: State, i: int) -> State:
        return {"number": torch.tensor(float(i))}

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"w": w}, {"v": w, "number": msg["number"]}

    def personal(self, msg: State, client: State, site: Site) -> Tensor:
        return client.get("v", msg["x"])


def run_with_tests(method: Method, rounds: Rounds, **more: Any) -> list[Run]:
    task, clients = small_federation()
    tests = [*clients[1:], clients[0]]  # each is tested on its neighbour's data
    return list(federate(method, task, clients, None, rounds, LOCAL, client_tests=tests, **more))


def test_every_client_is_evaluated_also_outside_the_cohort() -> None:
    task, clients = small_federation()
    runs = run_with_tests(OwnModel(), Rounds(rounds=4, participation=0.5, eval_every=2))
    assert [("client_tests" in run.record) for run in runs] == [False, True, False, True]
    for run in runs[1::2]:
        found = run.record["client_tests"]
        assert found["id"] == [0, 1, 2, 3]
        assert found["tests"] == [5, 9, 12, 7]
        for i, test in enumerate([*clients[1:], clients[0]]):
            own = run.clients[i]["v"] if i in run.clients else run.w
            assert found["accuracy"][i] == pytest.approx(task.evaluate(run.w, test)["accuracy"])
            assert found["personal_accuracy"][i] == pytest.approx(task.evaluate(own, test)["accuracy"])
            assert found["personal_loss"][i] == pytest.approx(task.evaluate(own, test)["loss"])
        weighted = sum(a * n for a, n in zip(found["personal_accuracy"], found["tests"], strict=True)) / 33
        assert run.record["personal_accuracy"] == pytest.approx(weighted)


def test_a_global_method_has_no_personal_scores_and_evaluation_changes_nothing() -> None:
    rounds = Rounds(rounds=2)
    task, clients = small_federation()
    alone = last_run(federate(FedAvg(), task, clients, None, rounds, LOCAL))
    tested = run_with_tests(FedAvg(), rounds)[-1]
    assert torch.equal(alone.w, tested.w)
    assert "client_accuracy" in tested.record
    assert "personal_accuracy" not in tested.record
    assert set(tested.record["client_tests"]) == {"id", "tests", "accuracy", "loss"}


def test_clients_without_test_data_are_not_asked() -> None:
    task, clients = small_federation()
    empty = Samples(clients[0].x[:0], clients[0].y[:0])
    run = last_run(
        federate(FedAvg(), task, clients, None, Rounds(rounds=1), LOCAL, client_tests=[empty, clients[1], 0, 0])
    )
    assert run.record["client_tests"]["id"] == [1]


def test_a_client_gets_its_own_message_and_its_bytes_are_counted() -> None:
    run = run_with_tests(OwnModel(), Rounds(rounds=1))[-1]
    assert [float(run.clients[i]["number"]) for i in range(4)] == [0, 1, 2, 3]
    assert run.record["bytes_down"] == 4 * (4 * len(run.w) + 4)


def test_a_client_that_cannot_be_evaluated_is_named_and_the_others_are() -> None:
    def one_fails(
        method: Method, request: Request, states: Mapping[int, State], sites: Mapping[int, Site], tolerant: bool
    ) -> VisitResults:
        visits, dropped = visit_in_process(method, request, states, sites, tolerant)
        if request.purpose == "evaluate":
            del visits[2]
            dropped[2] = "client 2 is offline"
        return visits, dropped

    run = run_with_tests(OwnModel(), Rounds(rounds=1), visits=one_fails)[-1]
    assert run.record["client_tests"]["id"] == [0, 1, 3]
    assert run.record["not_evaluated"] == {2: "client 2 is offline"}


def test_a_personal_model_that_is_not_finite_names_its_client() -> None:
    class Broken(OwnModel):
        name: ClassVar[str] = "broken"

        def personal(self, msg: State, client: State, site: Site) -> Tensor:
            return msg["x"] * torch.nan

    with pytest.raises(ClientError, match=r"broken, round 1, client 0: its 'personal_loss' is not finite"):
        run_with_tests(Broken(), Rounds(rounds=1))


def test_scores_are_counts_and_sums() -> None:
    task, clients = small_federation()
    site = Site(task, Local(), Key(0), 0, 4, clients[0], test=clients[1])
    w = task.init()
    found = score_models(OwnModel(), {"x": w}, {"v": w + 1}, site)
    assert {name: value.shape for name, value in found.items()} == dict.fromkeys(
        ("tests", "right", "loss", "personal_right", "personal_loss"), torch.Size([])
    )
    right = (
        torch.func.functional_call(task.model, task.parameters(w), (clients[1].x,)).argmax(1) == clients[1].y
    ).sum()
    assert float(found["right"]) == float(right)
    assert float(found["tests"]) == len(clients[1])


def test_the_spread_of_scores_over_clients() -> None:
    found = describe_spread([0.2, 0.4, 0.9], [10, 10, 20])
    assert found["weighted"] == pytest.approx(0.6)
    assert found["mean"] == pytest.approx(0.5)
    assert found["worst"] == 0.2
    assert found["p50"] == 0.4
    assert found["p10"] == pytest.approx(0.24)
    assert found["p90"] == pytest.approx(0.8)
    assert found["std"] == pytest.approx(((0.3**2 + 0.1**2 + 0.4**2) / 3) ** 0.5)


def test_a_reply_holds_what_the_method_declares() -> None:
    class Histogram(FedAvg):
        """Sends the number of its samples by class too."""

        name: ClassVar[str] = "histogram"

        def sends(self, task: Sizes) -> dict[str, Entry]:
            return {**super().sends(task), "counts": Entry((task.classes,), torch.int64)}

        def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
            counts = torch.bincount(site.samples.y, minlength=site.task.classes)
            return {"w": w, "counts": counts[: self.kept(site)]}, client

        def kept(self, site: Site) -> int:
            return site.task.classes

    task, clients = small_federation()
    run = last_run(federate(Histogram(), task, clients, None, Rounds(rounds=1), LOCAL))
    assert run.record["bytes_up"] == 4 * (4 * len(run.w) + 8 * task.classes)

    class Shorter(Histogram):
        name: ClassVar[str] = "shorter"

        def kept(self, site: Site) -> int:
            return 2

    with pytest.raises(ClientError, match=r"its 'counts' is torch.int64 of shape \(2,\), not torch.int64 of \(3,\)"):
        last_run(federate(Shorter(), task, clients, None, Rounds(rounds=1), LOCAL))


def test_a_personalised_method_refuses_running_statistics() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    with pytest.warns(UserWarning, match="BatchNorm"):
        task = Classification(model, (1, 4, 4), 3)
    clients = small_federation()[1]
    with pytest.raises(UserError, match=r"own-model keeps a model for every client, but not its running statistics"):
        last_run(federate(OwnModel(), task, clients, None, Rounds(rounds=1), LOCAL))
