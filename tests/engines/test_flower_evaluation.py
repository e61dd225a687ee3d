"""Nodes evaluate on their own test data: the numbers of the in-process engine, and nothing of it decides a round."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

from same_bits import same
from simulated_nodes import Lab
from small_plans import TABLES, plan_for
from small_world import part_for

from fedptr.core.federation import Run, federate
from fedptr.engines.flower.server.deploy_plan import DeployRules, check_evaluation, nodes_evaluate
from fedptr.engines.flower.setup.check_folder import try_to_get
from fedptr.engines.flower.wire.parcel import Parcel
from fedptr.engines.flower.wire.records import from_records, to_records
from fedptr.engines.flower.wire.tensors import blocks_to_state, state_to_blocks
from fedptr.errors import UserError
from fedptr.methods import all_methods
from fedptr.runs import plan as planning
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.plan import Plan

pytestmark = pytest.mark.real

NODES = 'evaluate = "nodes"\n'
SCORES = ("client_accuracy", "client_loss", "personal_accuracy", "personal_loss", "client_tests")


def toy_plan(**run: Any) -> Plan:
    return planning.check_plan({**TABLES, "run": {**TABLES["run"], **run}, "method": {"name": "toy_methods:Toy"}})


def lab_of(folder: Path, plan: Plan, rules: str = "") -> Lab:
    """`rules` may say who evaluates."""
    lab = Lab(folder, plan)
    text = (folder / "deploy.toml").read_text()
    (folder / "deploy.toml").write_text(
        (text.replace('evaluate = "server"\n', "") if "evaluate" in rules else text) + rules
    )
    return lab


def in_process(plan: Plan) -> list[Run]:
    """Every client is tested on its own part where the split has such parts, else on the whole test set."""
    e = prepare_experiment(plan)
    asked = (e.test, plan.run, plan.local, plan.faults)
    tests = e.client_tests or [e.test] * len(e.clients)
    return list(federate(plan.method, e.task, e.clients, *asked, privacy=plan.privacy, client_tests=tests))


def scores(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in SCORES if name in record}


@pytest.mark.parametrize("participation", [1.0, 0.34])
@pytest.mark.parametrize("plan", [toy_plan, lambda **run: plan_for("ditto", **run)], ids=["toy", "ditto"])
def test_own_messages_other_shapes_and_own_models_travel_with_the_same_bits(
    plan: Callable[..., Plan], participation: float, tmp_path: Path, models: list[torch.Tensor]
) -> None:
    """With one client a round, most clients evaluate a model that has not been trained yet."""
    chosen = plan(participation=participation)
    lab, runs = lab_of(tmp_path, chosen), in_process(chosen)
    lab.serve()
    assert same(models, [run.w for run in runs])
    assert [scores(record) for record in lab.records()] == [scores(run.record) for run in runs]
    assert all(set(scores(record)) == set(SCORES) for record in lab.records())
    assert runs[-1].record["client_loss"] != runs[-1].record["personal_loss"]
    assert [record["test_loss"] for record in lab.records()] == [run.record["test_loss"] for run in runs]


@pytest.mark.parametrize("name", [name for name, method in all_methods().items() if method.personalised])
def test_every_personalised_method_gives_the_scores_of_the_in_process_engine(name: str, tmp_path: Path) -> None:
    """Most clients have not been trained yet; some methods adapt the model on the node's training data."""
    plan = plan_for(name, rounds=3, participation=part_for(name, 0.34))
    lab = lab_of(tmp_path, plan)
    lab.serve()
    expected = [scores(run.record) for run in in_process(plan)]
    assert [scores(record) for record in lab.records()] == expected
    assert all(set(told) == set(SCORES) for told in expected)


def test_an_evaluation_leaves_a_nodes_state_as_it_is(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, plan_for("ditto", rounds=3))
    kept: list[dict[str, bytes]] = []

    def look(node: int, message: Any) -> Any:
        if message.metadata.message_type == "evaluate":
            kept.append({path.name: path.read_bytes() for path in (tmp_path / "node-states").rglob("client-*")})
        return message

    lab.serve(lab.grid(look))
    assert len(kept) == 9
    assert kept[0] == kept[1] == kept[2] != kept[3]
    assert {path.name: path.read_bytes() for path in (tmp_path / "node-states").rglob("client-*")} == kept[-1]


def test_the_mean_over_nodes_is_weighted_by_their_tests(tmp_path: Path) -> None:
    plan = plan_for("fedavg", rounds=2, eval_every=2)
    lab = lab_of(tmp_path, plan, NODES)
    summary = lab.serve()
    first, last = lab.records()
    assert not {"test_accuracy", "tested", "client_tests", "evaluated"} & set(first)
    expected = in_process(plan)[-1].record
    assert (last["test_accuracy"], last["test_loss"]) == (expected["client_accuracy"], expected["client_loss"])
    assert (last["tested"], last["evaluated"], summary["evaluated"]) == ([0, 1, 2], "nodes", "nodes")
    assert summary["accuracy_final"] == last["test_accuracy"]


def altered(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[int, Any], Any]:
    """Node 102's scores, changed."""

    def apply(node: int, message: Any) -> Any:
        if node == 102 and message.metadata.message_type == "evaluate":
            parcel = from_records(message.content)
            state = blocks_to_state(parcel.blocks)
            change(state)
            message.content = to_records(Parcel(parcel.words, state_to_blocks(state)))
        return message

    return apply


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


BAD: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "more than all": (lambda s: s.update(right=s["tests"] + 1), "predictions are right"),
    "fewer than none": (lambda s: s.update(right=number(-1)), "says that -1 of"),
    "a part of one": (lambda s: s.update(right=number(1.5)), "says that 1.5 of"),
    "other tests": (lambda s: s.update(tests=number(10**6)), "says that it has 1e+06 test samples"),
    "a loss below 0": (lambda s: s.update(loss=number(-1)), "losses have the sum -1"),
    "a huge loss": (lambda s: s.update(loss=number(1e300)), "losses have the sum 1e+300"),
    "not a number": (lambda s: s.update(loss=number(math.nan)), "'loss' is not finite"),
    "missing": (lambda s: s.pop("loss"), "sent right, tests, not loss, right, tests"),
    "a model": (lambda s: s.update(w=torch.ones(5)), "sent loss, right, tests, w"),
    "another type": (lambda s: s.update(right=s["right"].float()), "float32"),
}


@pytest.mark.parametrize("what", BAD)
def test_scores_that_cannot_be_right_are_dropped_and_named(what: str, tmp_path: Path) -> None:
    """Also where every reply is needed and a failure would stop the run: an evaluation does neither."""
    change, words = BAD[what]
    lab = lab_of(tmp_path, plan_for("fedavg", rounds=1, on_failure="stop"), NODES + "min_replies = 3\n")
    lab.serve(lab.grid(altered(change)))
    (record,) = lab.records()
    assert record["tested"] == [0, 2]
    assert list(record["not_evaluated"]) == ["1"]
    assert words in record["not_evaluated"]["1"]
    assert record["not_evaluated"]["1"].startswith("client 1 ")
    assert "dropped" not in record
    assert 0 < record["test_loss"] < 100


def test_rounds_count_when_nobody_evaluates(tmp_path: Path, models: list[torch.Tensor]) -> None:
    plan = plan_for("fedavg", rounds=2)
    lab = lab_of(tmp_path, plan, NODES + "round_timeout = 1.0\nmin_replies = 3\npatience = 60.0\n")
    grid = lab.grid()

    def leave(node: int, message: Any) -> Any:
        if message.metadata.message_type == "evaluate":
            nonce = from_records(message.content).words["nonce"]
            message.content = to_records(Parcel({"kind": "refused", "reason": "has no time", "nonce": nonce}))
        return message

    grid.change = leave
    summary = lab.serve(grid)
    assert same(models, [run.w for run in in_process(plan)])
    for record in lab.records():
        assert "test_accuracy" not in record
        assert record["not_evaluated"] == {str(i): f"client {i} has no time" for i in range(3)}
    assert math.isnan(summary["accuracy"])
    assert math.isnan(summary["loss_final"])


@pytest.mark.parametrize("believed_online", [False, True])
def test_an_offline_node_is_listed(tmp_path: Path, believed_online: bool) -> None:
    lab = lab_of(tmp_path, plan_for("fedavg", rounds=1), NODES)
    grid = lab.grid()
    if believed_online:
        everyone = list(grid.get_node_ids())
        grid.get_node_ids = lambda: everyone  # type: ignore[method-assign]

    def leave(node: int, message: Any) -> Any:
        if node == 103 and message.metadata.message_type == "train":
            grid.offline = {103}
        return message

    grid.change = leave
    lab.serve(grid)
    (record,) = lab.records()
    assert len(record["clients"]) == 3
    # Whether the server looks who is online before it asks is a matter of time: a look is valid for a moment.
    before, after = {"2": "client 2 is offline"}, {"2": "client 2 went offline"}
    assert record["not_evaluated"] in ([after] if believed_online else [before, after])


def test_a_node_that_lost_its_own_model_is_listed_and_trains_from_a_new_state(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, plan_for("ditto", rounds=2), 'lost_state = "anew"\n')

    def lose(node: int, message: Any) -> Any:
        if node == 103 and message.metadata.message_type == "train" and message.metadata.group_id == "1":
            for path in (tmp_path / "node-states").rglob("client-1-*"):
                path.unlink()
        return message

    lab.serve(lab.grid(lose))
    first, second = lab.records()
    assert "lost its state of round 1" in first["not_evaluated"]["1"]
    assert "not_evaluated" not in second
    assert len(second["clients"]) == 3


def secure(plan: Plan, **privacy: Any) -> Plan:
    tables = plan.tables()
    tables["method"]["weighting"] = "uniform"
    return planning.check_plan({**tables, "privacy": {"secure": True, "range": 8.0, **privacy}})


def test_secure_aggregation_hides_scores_unless_the_plan_allows_them(tmp_path: Path) -> None:
    plan = plan_for("ditto", rounds=1)
    hidden, shown = secure(plan), secure(plan, scores=True)
    with pytest.raises(UserError, match=r"shows the server every client's scores; set deploy\.evaluate = server"):
        check_evaluation(hidden, DeployRules())
    ((well, words),) = try_to_get("evaluation", lambda: check_evaluation(shown, DeployRules(evaluate="server")))
    assert (well, words) == (True, "evaluation: on server and on nodes")
    assert [nodes_evaluate(p, DeployRules(evaluate="server")) for p in (hidden, shown, plan)] == [False, True, True]
    for name, chosen in (("hidden", hidden), ("shown", shown)):
        folder, asked = tmp_path / name, []
        folder.mkdir()
        lab = lab_of(folder, plan)
        (folder / "plan.toml").write_text(chosen.toml())
        lab.serve(lab.grid(lambda node, message, asked=asked: asked.append(message.metadata.message_type) or message))
        assert ("evaluate" in asked) == (name == "shown")
        assert ("client_tests" in lab.records()[0]) == (name == "shown")


def test_a_node_itself_keeps_its_scores_under_secure_aggregation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for("ditto", rounds=1)
    lab = lab_of(tmp_path, plan)
    (tmp_path / "plan.toml").write_text(secure(plan).toml())
    monkeypatch.setattr("fedptr.engines.flower.server.deploy_plan.nodes_evaluate", lambda plan, rules: True)
    lab.serve()
    reasons = lab.records()[0]["not_evaluated"]
    assert sorted(reasons) == ["0", "1", "2"]
    assert all("keeps its scores to itself under privacy.secure" in reason for reason in reasons.values())
