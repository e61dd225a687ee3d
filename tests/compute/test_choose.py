"""How a plan's model is computed: it follows from the plan, and the results do not follow from the machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedptr.compute import blocks, malloc
from fedptr.compute.blocks import BlockedTask
from fedptr.compute.choose import LONG, choose_backend, estimate_flops
from fedptr.compute.cores import count_cores
from fedptr.core.federation import federate
from fedptr.core.task import Classification
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.plan import Plan, check_plan


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(malloc, "keep_freed_memory", lambda: False)  # the tests' own process is left alone
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def plan(method: dict[str, Any] | None = None, rounds: int = 3, **machine: Any) -> Plan:
    tables = {
        "run": {"rounds": rounds},
        "model": {"width": 4},
        "data": {"subset": 200},
        "split": {"clients": 3},
        "local": {"batch": 32},
        "machine": {"threads": 1, **machine},
        "method": method or {"name": "fedavg"},
    }
    return check_plan(tables)


MATCHING = {"name": "fedptr-s", "H": 2, "R": 2, "ipc": 1, "m": 1}


@pytest.mark.parametrize("method", [{"name": "fedavg"}, {**MATCHING, "name": "fedptr"}, MATCHING])
def test_the_number_of_threads_does_not_change_a_run(method: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "CACHE", 30_000.0)  # so that these small images make several blocks
    monkeypatch.setattr(blocks, "LEAST", 0.0)
    ends = []
    for threads in (1, 3):
        p = plan(method, rounds=4, threads=threads)
        e = prepare_experiment(p)
        assert isinstance(e.task, BlockedTask)
        assert e.task.block < 16
        assert e.task.threads == threads
        assert torch.get_num_threads() == 1
        *_, run = federate(p.method, e.task, e.clients, e.test, p.run, p.local)
        ends.append((run.w, run.record["test_loss"]))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


def test_long_runs_are_compiled_and_the_user_has_the_last_word() -> None:
    def compiled(p: Plan) -> bool:
        task = prepare_experiment(p).task
        return isinstance(task, BlockedTask) and task.compiled

    assert not compiled(plan())
    assert compiled(plan(rounds=10**9))
    assert not compiled(plan(rounds=10**9, compile="off"))
    assert compiled(plan(compile="on"))


def test_other_models_are_compiled_on_request_alone() -> None:
    def compiled(p: Plan) -> bool:
        task = prepare_experiment(replace(p, model=replace(p.model, name="mlp"))).task
        return isinstance(task, BlockedTask) and task.compiled

    assert not compiled(plan(rounds=10**9))
    assert compiled(plan(compile="on"))


def test_work_is_counted_from_the_plan() -> None:
    task = prepare_experiment(plan()).task
    once = estimate_flops(plan(rounds=1), task, 200)
    per_image = once / 200
    assert per_image > 6 * (9 * 4 * 64), "three passes, two operations for every product of the first layer at least"
    assert estimate_flops(plan(rounds=5), task, 200) == pytest.approx(5 * once)
    server = estimate_flops(plan(MATCHING, rounds=1), task, 200)
    assert server - once == pytest.approx(11 / 3 * 2 * 2 * 10 * per_image)
    clients = estimate_flops(plan({**MATCHING, "name": "fedptr"}, rounds=1), task, 200)
    assert clients - once == pytest.approx(3 * (server - once))
    assert estimate_flops(plan({**MATCHING, "lam": 0.0}, rounds=1), task, 200) == once
    twice = [estimate_flops(plan({"name": name}, rounds=1), task, 200) for name in ("fedsam", "mimelite", "mime")]
    assert [round(value / once, 6) for value in twice] == [2, 2, 3], "one epoch, and what comes beside it"
    assert once < LONG


def test_models_whose_images_see_each_other_are_computed_whole() -> None:
    with pytest.warns(UserWarning, match="BatchNorm"):
        task = Classification(nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10)), (1, 8, 8), 10)
    assert choose_backend(plan(threads=2), task, 200) is task
    assert torch.get_num_threads() == 2


def test_a_model_without_activations_is_no_problem() -> None:
    task = Classification(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), (1, 8, 8), 10)
    assert isinstance(choose_backend(plan(), task, 200), BlockedTask)


def test_all_cores_are_used_by_default() -> None:
    task = prepare_experiment(plan(threads=0)).task
    assert isinstance(task, BlockedTask)
    assert task.threads == count_cores() >= 1
