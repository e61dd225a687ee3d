"""Frozen parameters: no part of what methods see, send and save, and as they were in every model that comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_plans import TABLES
from small_world import quick
from torch import nn

from fedptr import Classification, Local, MultiLabel, Regression, Rounds, Samples, federate, load_model
from fedptr.cli.main import main
from fedptr.compute.blocks import BlockedTask
from fedptr.compute.choose import choose_backend
from fedptr.compute.convnet_cpp import is_supported
from fedptr.core.federation import Run, last_run
from fedptr.errors import UserError
from fedptr.methods import all_methods
from fedptr.models.networks import ConvNet
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.plan import Plan, check_plan
from fedptr.types import Batch

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(3, 20, 6, generator=DRAW)
Y = torch.randint(3, (3, 20), generator=DRAW)
FROZEN = {"model": {"name": "mlp", "width": 8, "freeze": "1.*, 3.weight"}}


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def train(task: Any, clients: list[Samples], name: str = "fedavg", rounds: int = 3, start: Run | None = None) -> Run:
    asked = (clients[0], Rounds(rounds=rounds), Local(lr=0.1, batch=8))
    return last_run(federate(quick(name), task, clients, *asked, start=start))


def plan_with(name: str = "fedavg", **more: Any) -> Plan:
    return check_plan({**TABLES, **FROZEN, **more, "method": {"name": name}})


def test_a_frozen_backbone_is_training_on_its_features() -> None:
    """FedAvg with frozen layers, and FedAvg of the head alone on what these layers compute."""
    model = make_model()
    with torch.no_grad():
        features = model[:2](X)
    whole = train(Classification(model, (6,), 3, freeze="0.*"), [Samples(*c) for c in zip(X, Y, strict=True)])
    head = train(Classification(model[2], (5,), 3), [Samples(*c) for c in zip(features, Y, strict=True)])
    assert torch.allclose(whole.w, head.w, rtol=0, atol=1e-6)
    assert whole.w.shape == head.w.shape == (18,)
    assert not torch.allclose(whole.w, Classification(make_model()[2], (5,), 3).init(), atol=1e-3)


@pytest.mark.parametrize("how", ["freeze", "requires_grad"])
def test_frozen_weights_do_not_change_by_a_bit(how: str) -> None:
    """Named by a pattern, or as torch's users do it."""
    model, first = make_model(), make_model().state_dict()
    if how == "requires_grad":
        model[0].requires_grad_(False)
    task = Classification(model, (6,), 3, freeze="0.*" if how == "freeze" else "")
    run = train(task, [Samples(*c) for c in zip(X, Y, strict=True)])
    found = run.model.state_dict()
    assert all(torch.equal(found[name], first[name]) == name.startswith("0.") for name in first)
    assert [layer.name for layer in task.layers] == ["2.weight", "2.bias"]
    assert task.held.keys() == {"0.weight", "0.bias"}
    assert run.record["bytes_up"] == 3 * 4 * 18


@pytest.mark.parametrize("cls", [Regression, MultiLabel])
def test_other_tasks_take_it_too(cls: Any) -> None:
    assert cls(make_model(), (6,), freeze="*.weight").init().shape == (8,)


@pytest.mark.parametrize("name", all_methods())
def test_every_method_trains_the_rest_and_resumes_exactly(name: str) -> None:
    if quick(name).needs_linear:
        return  # a linear model has no part to freeze
    clients = [Samples(*c) for c in zip(X.view(3, 20, 6, 1, 1), Y, strict=True)]

    def task() -> Classification:
        return Classification(nn.Sequential(nn.Flatten(), *make_model()), (6, 1, 1), 3, freeze="1.*")

    run = train(task(), clients, name, 5)
    assert run.w.shape == (18,)
    assert torch.equal(train(task(), clients, name, 5, train(task(), clients, name, 3)).w, run.w)
    with_model = {entry: value for entry, value in run.server.items() if value.shape == (53,)}
    assert not with_model, "nothing has the size of the whole model"


@pytest.mark.parametrize(("freeze", "words"), [("9.*", "matches no parameter"), ("*", "no parameter .* left to train")])
def test_patterns_for_nothing_and_for_everything_are_refused(freeze: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Classification(make_model(), (6,), 3, freeze=freeze)


def gradients_agree(one: Classification, other: Classification) -> None:
    x = torch.randn(7, *one.shape, generator=torch.Generator().manual_seed(3))
    batch, w = Batch(x, torch.arange(7) % one.classes), one.init()
    a = torch.randn(w.shape, generator=torch.Generator().manual_seed(4))
    assert torch.allclose(one.grad(w, batch)[0], other.grad(w, batch)[0], atol=1e-6)
    assert torch.allclose(one.adjoint(w, batch, a).by_x, other.adjoint(w, batch, a).by_x, atol=1e-5)
    for value, again in zip(one.held.values(), other.held.values(), strict=True):
        assert torch.equal(value, again)


def test_fast_ways_to_compute_step_back_or_agree() -> None:
    torch.manual_seed(2)
    plain = Classification(ConvNet((1, 8, 8), 3, width=8, depth=2), (1, 8, 8), 3, freeze="0.*, 1.*")
    assert not is_supported(plain), "convnet.cpp trains all of a model"
    gradients_agree(plain, BlockedTask(plain.model, plain.shape, 3, block=3, threads=2))
    chosen = choose_backend(plan_with(machine={"compile": "on", "threads": 1}), plain, 100)
    assert type(chosen) is BlockedTask


@pytest.mark.slow
def test_compiled_code_has_the_frozen_weights_inside() -> None:
    """Two models that differ in their frozen weights alone share no compiled code."""
    tasks = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        plain = Classification(ConvNet((1, 8, 8), 3, width=4, depth=1), (1, 8, 8), 3, freeze="0.*")
        fast = BlockedTask(plain.model, plain.shape, 3, block=8, compiled=True)
        gradients_agree(plain, fast)
        tasks.append(fast)
    assert all(task.compiled_parts().keys() == {"gradient", "adjoint"} for task in tasks), "both were tried"
    assert tasks[0]._grad is not tasks[1]._grad
    assert tasks[0]._adjoint is not tasks[1]._adjoint


def test_a_run_folder_has_the_whole_model(tmp_path: Path) -> None:
    """Weights, predictions and mended weights hold the frozen parts; checkpoints and messages do not."""
    (tmp_path / "plan.toml").write_text(plan_with().toml())
    out = tmp_path / "run"
    assert main(["run", str(tmp_path / "plan.toml"), "--out", str(out)]) == 0
    first = prepare_experiment(plan_with()).task
    model, (last, _) = load_model(out).network, CheckpointStore(out / "checkpoint").read_server(4)
    assert last["server/x"].numel() == first.layers[-1].stop == 8 + 90
    parameters = dict(model.named_parameters())
    assert parameters.keys() == {*first.held, *(layer.name for layer in first.layers)}
    assert all(torch.equal(parameters[name], value) for name, value in first.held.items())
    assert not torch.equal(parameters["5.weight"], first.parameters(first.init())["5.weight"])
    content = (out / "weights.safetensors").read_bytes()
    (out / "weights.safetensors").unlink()
    assert main(["resume", str(out)]) == 0
    assert (out / "weights.safetensors").read_bytes() == content


def test_a_stopped_run_is_resumed_exactly(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(plan_with("scaffold").toml())
    one, other = tmp_path / "one", tmp_path / "other"
    assert main(["run", str(tmp_path / "plan.toml"), "--out", str(one)]) == 0
    assert main(["run", str(tmp_path / "plan.toml"), "--rounds", "2", "--out", str(other)]) == 0
    assert main(["resume", str(other), "--rounds", "4"]) == 0
    assert (one / "weights.safetensors").read_bytes() == (other / "weights.safetensors").read_bytes()
