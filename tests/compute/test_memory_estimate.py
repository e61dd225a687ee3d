"""The estimate grows with what takes memory, and a run that cannot fit is refused before it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import MLP
from torch import nn

from fedptr.cli.main import main
from fedptr.compute import memory_estimate
from fedptr.compute.available_memory import available_bytes, bytes_left_in_containers, read_meminfo
from fedptr.compute.memory_estimate import Estimate, Footprint, estimate_memory, measure_footprint
from fedptr.core.task import Classification
from fedptr.errors import UserError
from fedptr.models.networks import ModelPlan, build_model
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.plan import check_plan

Capture = pytest.CaptureFixture[str]
SHAPE = (3, 16, 16)


def task_of(name: str = "convnet", **settings: Any) -> Classification:
    return Classification(build_model(ModelPlan(name, **settings), SHAPE, 10), SHAPE, 10)


FOOT = measure_footprint(task_of(width=16))


def needed(clients: int = 4, n: int = 600, tests: int = 100, foot: Footprint = FOOT, **plan: Any) -> Estimate:
    return estimate_memory(check_plan({"method": {"name": "fedavg"}, **plan}), foot, 10, [n] * clients, tests)


# What a task takes


def test_what_a_linear_layer_keeps() -> None:
    task = Classification(nn.Sequential(nn.Flatten(), nn.Linear(768, 10)), SHAPE, 10)
    foot = measure_footprint(task)
    assert foot.model == 4 * (768 * 10 + 10)
    assert foot.image == 4 * 768
    assert foot.widest == 4 * 10  # the log-probabilities; beside them the label, and the input, which is counted apart
    assert foot.saved == 4 * 10 + 8


def test_activations_grow_with_the_width_and_are_counted_without_modules() -> None:
    narrow, wide = measure_footprint(task_of(width=8)), measure_footprint(task_of(width=16))
    assert wide.saved == pytest.approx(2 * narrow.saved, rel=0.1)
    assert wide.widest == 2 * narrow.widest == 4 * 16 * 16 * 16
    residual = measure_footprint(task_of("resnet18", width=8))
    assert residual.saved > 5 * residual.widest  # its sums and ReLUs are no modules

    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(768, 10))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(torch.sigmoid(x.flatten(1) * self.w[:, 0])) @ self.w

    foot = measure_footprint(Classification(Functional(), SHAPE, 10))
    assert foot.saved == 4 * (2 * 768 + 10) + 8  # the sigmoid and the tanh


def test_counting_leaves_no_trace() -> None:
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="BatchNorm"):
        task = Classification(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(768), nn.Linear(768, 10)), SHAPE, 10)
    before, state = task.init(), torch.get_rng_state()
    buffers = task.initial_buffers()
    measure_footprint(task)
    assert torch.equal(before, task.init())
    assert torch.equal(state, torch.get_rng_state())
    assert buffers is not None
    assert torch.equal(buffers, task.pack_buffers(dict(task.model.named_buffers())))
    assert all(p.grad is None for p in task.model.parameters())


# What a run takes


def test_training_grows_with_the_batch_up_to_the_largest_client() -> None:
    small, large, all_ = (needed(local={"batch": b}).phases["training"] for b in (50, 500, 5000))
    assert 3 < large / small < 11
    assert all_ == pytest.approx(large * 600 / 500, rel=0.2)
    assert needed(local={"batch": 10**6}).phases["training"] == all_


def test_holes_in_the_heap_never_make_a_larger_batch_look_smaller() -> None:
    sizes = [FOOT.peak(n, memory_estimate.MATCHING) for n in range(1, 5000, 7)]
    assert sizes == sorted(sizes)


def test_evaluation_is_by_chunks() -> None:
    some, chunk, more = (needed(tests=n).phases["evaluation"] for n in (100, 1000, 10_000))
    assert 10 * some == pytest.approx(chunk)
    assert chunk == more


def test_full_gradients_are_by_chunks_too() -> None:
    assert "full gradients" not in needed().phases
    for plan in (
        {"local": {"gamma": 0.1}}, {"local": {"record_gamma": True}}, {"method": {"name": "scaffold", "option": "I"}},
        {"method": {"name": "mime"}},
    ):  # fmt: skip
        assert needed(n=5000, **plan).most[0] == "full gradients"


def test_matching_grows_with_its_images_or_its_batch() -> None:
    def matching(**settings: Any) -> float:
        return needed(method={"name": "fedptr", **settings}).phases["matching"]

    assert 5 < matching(ipc=10) / matching(ipc=1) < 10
    assert matching() == matching(ipc=10)
    assert matching(ipc=10, aux_batch=10) < 2 * matching(ipc=1)
    assert matching(ipc=1, aux_batch=10**6) == matching(ipc=1)
    assert matching(ipc=1, R=15) - matching(ipc=1, R=10) == 5 * FOOT.model
    assert matching(ipc=1, R=40) - matching(ipc=1, R=10) == 2 * FOOT.model  # 7 stretches of 6, and 1 of 10
    assert matching(ipc=1, matching="gradient") == matching(ipc=1, R=1), "it takes no student steps"
    batched = needed(method={"name": "fedptr", "ipc": 100, "aux_batch": 10})
    assert batched.phases["projection"] > batched.phases["matching"]  # which always takes all


def test_states_grow_with_clients_cohorts_and_methods() -> None:
    def states(name: str, clients: int = 100, participation: float = 1.0, **settings: Any) -> float:
        plan = {"method": {"name": name, **settings}, "run": {"participation": participation}}
        return needed(clients, n=1, **plan).states / FOOT.model

    assert states("fedavg") == 100 + 3
    assert states("scaffold") == 100 + 100 + 200 + 2 * 3
    assert states("feddyn", participation=0.1) == 100 + 10 + 10 + 2 * 3
    owned = memory_estimate.HOLES * (4 + 2 * 10 * FOOT.image / FOOT.model)  # four models and D̃ with its velocity
    assert states("fedptr", ipc=1, m=3) == pytest.approx(200 * owned + 200 + 3)
    assert states("fedptr-s", ipc=1, m=3) == pytest.approx(100 + 3 * (1 + owned))
    assert states("naive", ipc=1, m=3) == pytest.approx(200 * owned + 100 + 3)
    assert states("fedptr", lam=0.0) == states("fedavg")
    assert needed(4, n=0).states == pytest.approx(needed(1, n=0).states)  # who has no data keeps nothing


def test_rare_checkpoints_keep_an_old_generation() -> None:
    plan = {"method": {"name": "scaffold"}}
    rare = needed(100, run={"checkpoint_every": 10}, **plan).states
    assert rare - needed(100, **plan).states == 100 * FOOT.model


def test_states_beyond_the_budget_do_not_count() -> None:
    def states(budget: float, every: int = 1) -> float:
        plan = check_plan({"method": {"name": "feddyn"}, "run": {"participation": 0.1, "checkpoint_every": every}})
        return estimate_memory(plan, FOOT, 10, [1] * 100, 10, budget * FOOT.model).states / FOOT.model

    assert states(10**9) == 100 + 10 + 10 + 2 * 3
    assert states(30) == states(30, every=5) == 30 + 10 + 10 + 2 * 3
    assert states(0) == 10 + 10 + 10 + 2 * 3  # the last cohort's and this one's


def test_the_budget() -> None:
    def budget(there: float | None, **machine: Any) -> float:
        return memory_estimate.client_state_budget(check_plan({"machine": machine}).machine, there)

    assert budget(10**6, client_memory=0) == 0
    assert budget(10**6, client_memory=7) == budget(None, client_memory=7) == 7e6
    assert budget(40e6) == 10e6
    assert budget(None) == budget(10**12) == 32e6


MEASURE = """
import sys
sys.path.insert(0, {benchmarks!r})
from estimated_memory import estimate_and_measure, training_case
needed, peak = estimate_and_measure(**training_case((3, 16, 16), 100, name="convnet", width=64))
print(needed.total / peak)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak cannot be measured here")
def test_the_estimate_is_near_what_is_taken() -> None:
    """In a process of its own, as a used heap has room; the table is in benchmarks/estimated_memory.py."""
    script = MEASURE.format(benchmarks=str(Path(__file__).parents[2] / "benchmarks"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0.6 < float(done.stdout) < 1.8


# What is free


def test_this_machine_says_what_is_free() -> None:
    assert available_bytes("mps") is None
    left = available_bytes("cpu")
    assert left is None or 10**6 < left < 10**15


def test_meminfo(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  10 kB\nMemAvailable:    3 kB\n")
    assert read_meminfo(tmp_path / "meminfo") == 3072
    (tmp_path / "meminfo").write_text("MemTotal:  10 kB\n")
    assert read_meminfo(tmp_path / "meminfo") is None
    assert read_meminfo(tmp_path / "none") is None


NEW, OLD = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@pytest.mark.parametrize(
    ("mine", "group", "names"),
    [
        ("0::/", "", NEW),
        ("0::/user/me", "user", NEW),
        ("0::/user/me", "user/me", NEW),
        ("5:cpu:/x\n4:memory:/not/seen", "memory", OLD),
        ("4:memory:/a\n0::/", "memory/a", OLD),
    ],
)
def test_a_container_may_leave_less(mine: str, group: str, names: tuple[str, str, str], tmp_path: Path) -> None:
    limit, usage, cache = names
    root, folder = tmp_path / "root", tmp_path / "root" / group
    folder.mkdir(parents=True)
    (tmp_path / "mine").write_text(mine)
    (folder / limit).write_text("1000\n")
    (folder / usage).write_text("900\n")
    (folder / "memory.stat").write_text(f"x 1\n{cache} 50\n")
    assert list(bytes_left_in_containers(tmp_path / "mine", root)) == [150]
    (folder / limit).write_text("max\n")
    assert list(bytes_left_in_containers(tmp_path / "mine", root)) == []
    assert list(bytes_left_in_containers(tmp_path / "none", root)) == []


# The door

TINY = [*MLP, "--rounds", "1", "--batch", "32", "--set", "machine.threads=1"]


def refused(capsys: Capture, *argv: str) -> str:
    assert main(["run", *argv, "--out", "out"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert not Path("out").exists()
    assert err.endswith(", or set machine.memory_check = false to try it anyway\n")
    return err


def cramped(monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    monkeypatch.setattr(memory_estimate, "available_bytes", lambda device: left)


PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "training": ({"method": {"name": "fedavg"}}, "lower local.batch, or lower model.width"),
    "evaluation": ({"local": {"batch": 1}, "method": {"name": "fedavg"}}, "lower model.width"),
    "full gradients": ({"local": {"record_gamma": True}, "method": {"name": "fedavg"}}, "turn local.gamma"),
    "full gradients ": ({"local": {"batch": 100}, "method": {"name": "mimelite"}}, "choose a method, or its option,"),
    "matching": ({"method": {"ipc": 500}}, "set method.aux_batch, lower method.ipc, or lower model.width"),
    "projection": ({"method": {"ipc": 500, "aux_batch": 9}, "model": {"name": "lenet"}}, "lower method.ipc, or choose"),
}


@pytest.mark.parametrize("part", PARTS)
def test_what_does_not_fit_is_said_with_what_to_change(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cramped(monkeypatch, 50_000_000)
    plan, change = PARTS[part]
    with pytest.raises(UserError) as caught:
        memory_estimate.refuse_if_too_large(check_plan(plan), FOOT, 10, [1200] * 2, 2000, "cpu")
    assert str(caught.value).startswith("this run needs about ")
    assert f"B of it for {part.strip()}, and 50 MB are free; {change}" in str(caught.value)


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ({"name": "scaffold"}, "lower machine.client_memory or run.participation, or lower model.width"),
        ({"ipc": 1}, "lower machine.client_memory, run.participation, method.m or method.ipc, or lower model.width"),
    ],
)
def test_too_many_clients(method: dict[str, Any], change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cramped(monkeypatch, 100_000_000)
    tables = {"method": method, "local": {"batch": 1}, "run": {"participation": 0.001}}
    memory_estimate.refuse_if_too_large(check_plan(tables), FOOT, 10, [1] * 3000, 10, "cpu")  # most of them are on disk
    with pytest.raises(UserError, match=f"for the states of clients, and 100 MB are free; {change}"):
        memory_estimate.refuse_if_too_large(
            check_plan({**tables, "machine": {"client_memory": 1000}}), FOOT, 10, [1] * 3000, 10, "cpu"
        )
    cohort = check_plan({**tables, "run": {}})  # which is in memory
    with pytest.raises(UserError, match="for the states of clients, and 100 MB are free"):
        memory_estimate.refuse_if_too_large(cohort, FOOT, 10, [1] * 3000, 10, "cpu")


def test_a_run_that_does_not_fit_is_refused_before_anything_is_written(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    cramped(monkeypatch, 60_000_000)
    argv = ["--preset", "paper", "--model", "convnet", "--width", "32", "--compile", "off"]
    many = ["--set", "method.ipc=50", "--threads"]
    assert "; lower method.ipc, or lower model.width" in refused(capsys, *argv, *many, "1")
    assert "; lower machine.threads or method.ipc, or" in refused(capsys, *argv, *many, "4")
    assert "lower machine.threads or local.batch" in refused(
        capsys, *argv, "--method", "fedavg", "--clients", "1", "--threads", "4", "--compile", "off"
    )


def test_a_model_too_large_to_be_made_is_refused_without_making_it(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    err = refused(capsys, "--model", "mlp", "--width", "10000000")
    assert "GB of memory" in err
    assert "lower model.width" in err


def test_an_own_model_is_counted_too(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    cramped(monkeypatch, 10**6)
    Path("own_large.py").write_text(
        "from torch import nn\ndef make(s, c): return nn.Sequential(nn.Flatten(), nn.Linear(64, c))\n"
    )
    assert "choose a smaller model" in refused(capsys, "--model", "own_large:make", "--method", "fedavg")


def test_switched_off_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    cramped(monkeypatch, 10**6)
    argv = ["run", *TINY, "--method", "fedavg", "--out", "out", "--set", "machine.memory_check=false"]
    assert main(argv) == 0
    assert "memory_check = false" in Path("out/plan.toml").read_text()


def test_where_nobody_knows_what_is_free_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_estimate, "available_bytes", lambda device: None)
    prepare_experiment(check_plan({"model": {"name": "mlp"}, "local": {"batch": 10**9}}))


# Methods whose clients send sets


def test_sets_are_counted_where_they_are_learned_sent_and_united() -> None:
    def whole(name: str, clients: int = 4, **settings: Any) -> Estimate:
        return needed(clients, method={"name": name, **settings})

    def learning(name: str, **settings: Any) -> float:
        return whole(name, **settings).phases["learning of sets"]

    assert whole("feddm", real=60).most[0] == "learning of sets"
    assert 1.5 < learning("feddm", ipc=50, real=1) / learning("feddm", ipc=25, real=1) < 2.1
    few, many = (whole("fedd3", mode="real", k=k).states for k in (10, 110))
    row = FOOT.image + 4 * 10
    assert many - few == pytest.approx((4 + 3 * 4) * 100 * row), "four replies, and three times the server's union"
    assert whole("fedd3", mode="all").states - few == pytest.approx((4 + 3 * 4) * 590 * row), "600 samples each"
    assert learning("fedd3", k=100) > 1.5 * learning("fedd3")


def test_what_makes_sets_smaller_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_estimate, "available_bytes", lambda device: 2e8)
    plan = check_plan({"method": {"name": "feddm", "real": 10**5}})
    with pytest.raises(
        UserError, match=r"for learning of sets, .*; lower method.ipc, method.real, or lower model.width"
    ):
        memory_estimate.refuse_if_too_large(plan, FOOT, 10, [60_000] * 4, 100, "cpu")
