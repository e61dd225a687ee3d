"""Initial weights from a file and frozen parts over Flower and Ray: the bits of a run in-process, or a refusal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from same_bits import same
from small_plans import TABLES, in_process
from torch import Tensor

from fedptr.cli.main import main
from fedptr.core.federation import federate
from fedptr.core.predictor import write_weights
from fedptr.core.task import ModelTask
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.plan import Plan, check_plan

pytestmark = pytest.mark.real


def plan_with(name: str, **model: Any) -> Plan:
    return check_plan({**TABLES, "model": {"name": "mlp", "width": 8, **model}, "method": {"name": name}})


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A file of initial weights that no seed gives."""
    task, path = prepare_experiment(plan_with("fedavg")).task, tmp_path / "first.safetensors"
    write_weights(path, task.named_tensors(task.init() + 0.01))
    return path


@pytest.mark.parametrize("name", ["scaffold", "local"])
@pytest.mark.parametrize("parts", ["freeze", "init", "both"])
def test_flower_gives_the_same_bits(name: str, parts: str, weights: Path, tmp_path: Path, models: list[Tensor]) -> None:
    """`local` sends no model, so its nodes start from their own copy of the file."""
    from simulated_nodes import Lab

    model = {} if parts == "freeze" else {"init": str(weights)}
    plan = plan_with(name, **model, **({} if parts == "init" else {"freeze": "1.*"}))
    lab = Lab(tmp_path, plan)
    lab.serve()
    assert same(models, [run.w for run in in_process(plan)], still=name == "local")
    assert not any(record.get("dropped") for record in lab.records())


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_own_parts_over_flower_are_those_of_a_run_here(name: str, tmp_path: Path, models: list[Tensor]) -> None:
    """The shared model bit for bit, and the scores of every client's own."""
    from simulated_nodes import Lab

    plan = plan_with(name, local="5.*")
    lab = Lab(tmp_path, plan)
    lab.serve()
    e = prepare_experiment(plan)
    runs = list(federate(plan.method, e.task, e.clients, e.test, plan.run, plan.local, client_tests=e.client_tests))
    assert same(models, [run.w for run in runs])
    found = [(r["client_tests"], r["personal_accuracy"], r["bytes_up"]) for r in lab.records()]
    here = [(r.record["client_tests"], r.record["personal_accuracy"], r.record["bytes_up"]) for r in runs]
    assert found == here


def test_own_parts_under_secure_aggregation_stay_where_they_are(tmp_path: Path) -> None:
    """The sum is of the shared part alone; fixed-point numbers are all that differs."""
    from simulated_nodes import Lab

    plan = plan_with("fedavg", local="5.*")
    secure = replace(plan, privacy=replace(plan.privacy, secure=True, scores=True))
    (tmp_path / "plan.toml").write_text(secure.toml())
    lab = Lab(tmp_path, plan)
    (tmp_path / "plan.toml").write_text(secure.toml())
    lab.serve()
    found = load_file(tmp_path / "weights.safetensors")
    last = in_process(plan)[-1]
    assert isinstance(last.task, ModelTask)
    wanted = last.task.named_tensors(last.w)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0 if name.startswith("5.") else 1e-3)


@pytest.mark.parametrize(
    ("name", "freeze", "refused"), [("fedavg", "1.*", True), ("local", "", True), ("fedavg", "", False)]
)
def test_a_node_without_the_file_is_left_out_where_it_needs_it(
    name: str, freeze: str, refused: bool, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs it for its frozen parts, and for methods that send no model; not where the server sends all of it."""
    from simulated_nodes import Lab

    from fedptr.engines.flower.node import simulated_node

    original = simulated_node.build_node_plan

    def build(tables: dict[str, Any], folder: Path) -> Any:
        if tables["node"]["number"] == 2:
            tables["node"]["init"] = ""
        return original(tables, folder)

    monkeypatch.setattr(simulated_node, "build_node_plan", build)
    lab = Lab(tmp_path, plan_with(name, init=str(weights), freeze=freeze))
    lab.serve()
    dropped = [record.get("dropped", {}) for record in lab.records()]
    if refused:
        assert "has other first weights than the server" in dropped[0]["2"]
        assert "node.init in node.toml" in dropped[0]["2"]
    else:
        assert not any(dropped)


def test_a_changed_file_is_not_resumed_by_the_server(weights: Path, tmp_path: Path) -> None:
    from simulated_nodes import Lab

    from fedptr.errors import UserError

    lab = Lab(tmp_path, plan_with("fedavg", init=str(weights)))

    def die(node: int, message: Any) -> Any:
        if message.metadata.message_type == "train" and message.metadata.group_id == "3":
            raise MemoryError
        return message

    with pytest.raises(MemoryError):
        lab.serve(lab.grid(die))
    write_weights(weights, {"other": torch.ones(1)})
    with pytest.raises(UserError, match=r"the initial weights of .* changed since the run was started"):
        lab.serve()


@pytest.mark.xdist_group("ray")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_ray_gives_the_same_bits(weights: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'fedptr[ray]'")
    plan = plan_with("scaffold", init=str(weights), freeze="1.*", local="5.*")
    (tmp_path / "plan.toml").write_text(plan.toml())
    for engine in ("local", "ray"):
        more = ["--set", "machine.workers=1"] if engine == "ray" else []
        command = ["run", str(tmp_path / "plan.toml"), "--engine", engine, *more, "--out", str(tmp_path / engine)]
        assert main(command) == 0
    one, other = ((tmp_path / engine / "weights.safetensors").read_bytes() for engine in ("local", "ray"))
    assert one == other
    scores = [
        [json.loads(line)["client_tests"] for line in (tmp_path / engine / "rounds.jsonl").read_text().splitlines()]
        for engine in ("local", "ray")
    ]
    assert scores[0] == scores[1]
    assert "personal_accuracy" in scores[0][-1]
