"""What a plan has where nobody says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from fedptr import methods
from fedptr.cli.main import main
from fedptr.core.federation import federate
from fedptr.data.sources import SOURCES
from fedptr.methods.ptr.trajectory import Trajectory
from fedptr.runs.dataset_defaults import DEFAULTS, with_dataset_defaults
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.plan import Plan, check_plan, load_plan, tables_for_method
from fedptr.types import Batch


def plan_of(tables: dict[str, Any]) -> Plan:
    return check_plan(with_dataset_defaults(tables)[0])


def test_every_dataset_has_defaults() -> None:
    assert set(DEFAULTS) == set(SOURCES)


@pytest.mark.parametrize("dataset", [*SOURCES, "mine.npz"])
@pytest.mark.parametrize("name", ["fedavg", "fedptr", "fedptr-s", "fedptr-linear", "fedavgm+ptr", "naive"])
def test_they_are_settings_of_a_plan(dataset: str, name: str) -> None:
    plan = plan_of({"data": {"name": dataset}, "method": {"name": name}})
    assert plan.local.batch < Plan().local.batch
    if isinstance(plan.method, Trajectory):
        method, paper = plan.method, type(plan.method)()
        assert method.H * method.gradients_per_step < paper.H * paper.gradients_per_step


def test_a_round_of_fedptr_on_digits_costs_five_of_fedavg() -> None:
    """In gradients of an image; the adjoint counts as 8/3. In the matching's later rounds, which have a β."""
    costs = {}
    for name in ("fedavg", "fedptr"):
        plan = plan_of({"data": {"name": "digits"}, "method": {"name": name}, "machine": {"compile": "off"}})
        e = prepare_experiment(plan)
        spent, rounds = [0.0], []
        grad, adjoint = e.task.grad, e.task.adjoint

        def counted_grad(w: Tensor, batch: Batch, do: Any = grad, spent: list[float] = spent) -> Any:
            spent[0] += len(batch.y)
            return do(w, batch)

        def counted_adjoint(
            w: Tensor, batch: Batch, *more: Any, do: Any = adjoint, spent: Any = spent, **how: Any
        ) -> Any:
            spent[0] += 8 / 3 * len(batch.y)
            return do(w, batch, *more, **how)

        e.task.grad, e.task.adjoint = counted_grad, counted_adjoint  # type: ignore[method-assign]
        for run in federate(plan.method, e.task, e.clients, None, plan.run, plan.local):
            rounds.append(spent[0])
            spent[0] = 0.0
            if run.round == 8:
                break
        costs[name] = rounds
    assert costs["fedavg"][-1] == 1437
    assert 1437 < costs["fedptr"][-1] <= 5 * 1437


def test_whatever_is_said_counts() -> None:
    plan = plan_of({"local": {"lr": 0.5}, "method": {"name": "fedptr", "H": 7}, "run": {"rounds": 2}})
    assert (plan.local.lr, plan.local.batch, plan.run.rounds) == (0.5, 32, 2)
    assert isinstance(plan.method, methods.FedPTR)
    assert (plan.method.H, plan.method.ipc) == (7, 3)


def test_photographs_are_matched_by_gradients() -> None:
    """In every second round on the server and every fourth on clients, which hardly changes how well they learn."""
    chosen = {"fedptr": "cifar10", "fedptr-s": "cifar100", "naive": "cifar10", "scaffold+ptr": "a.npz"}
    on = {
        name: plan_of({"data": {"name": dataset}, "method": {"name": name}}).method for name, dataset in chosen.items()
    }
    told = {name: (m.matching, m.ipc, m.mtt_every) for name, m in on.items()}  # type: ignore[attr-defined]
    assert told == {
        "fedptr": ("gradient", 3, 4),
        "fedptr-s": ("gradient", "auto", 2),
        "naive": ("gradient", 3, 4),
        "scaffold+ptr": ("trajectory", "auto", 4),
    }


def test_a_comparison_takes_them_for_each_of_its_methods_and_shared_settings_win() -> None:
    tables, _ = with_dataset_defaults(
        {"method": {"R": 9}, "methods": {"fedptr": {"H": 6}}}, ["fedptr", "fedptr-s", "fedavg"]
    )
    found = {name: check_plan(tables_for_method(tables, name)).method for name in ("fedptr", "fedptr-s", "fedavg")}
    assert [(found[name].H, found[name].R) for name in ("fedptr", "fedptr-s")] == [(6, 9), (3, 9)]  # type: ignore[attr-defined]


def test_a_complete_plan_stays_as_it_is() -> None:
    tables = Plan().tables()
    assert plan_of(tables) == Plan()


def run(out: Path, *options: str) -> int:
    return main(["run", "--method", "fedavg", "--rounds", "1", "--out", str(out), *options])


def test_they_are_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "a", "--lr", "0.2") == 0
    line = "fedptr: digits: width 16, batch 32 (defaults for digits; --preset paper takes the paper's)\n"
    assert line in capsys.readouterr().err
    plan = load_plan(tmp_path / "a")
    assert (plan.model.width, plan.local.batch, plan.local.lr) == (16, 32, 0.2)
    assert main(["run", str(tmp_path / "a" / "plan.toml"), "--out", str(tmp_path / "b")]) == 0
    assert "defaults" not in capsys.readouterr().err
    assert load_plan(tmp_path / "b") == plan


def test_the_papers_settings() -> None:
    from fedptr.cli.main import build_parser
    from fedptr.cli.plan_options import build_tables

    def built(*options: str) -> Plan:
        return check_plan(build_tables(build_parser().parse_args(["run", "--preset", "paper", *options])))

    assert built() == Plan()
    plan = built("--dataset", "cifar10", "--alpha", "0.01", "--set", "local.lr=0.5")
    assert (plan.run.rounds, plan.split.min_size, plan.model.width, plan.local.batch) == (400, 2500, 128, 500)
    assert (plan.split.alpha, plan.local.lr) == (0.01, 0.5)


def test_an_npz_file_with_rows_of_numbers_is_a_table(tmp_path: Path) -> None:
    labels = {"train_y": np.arange(6) % 2, "test_y": np.arange(4) % 2}
    rows, images = str(tmp_path / "rows.npz"), str(tmp_path / "images.npz")
    np.savez(rows, train_x=np.zeros((6, 5)), test_x=np.zeros((4, 5)), **labels)
    np.savez_compressed(images, train_x=np.zeros((6, 8, 8)), test_x=np.zeros((4, 8, 8)), **labels)
    plan = plan_of({"data": {"name": rows}, "method": {"name": "fedptr-s"}})
    assert isinstance(plan.method, methods.FedPTRS)
    assert (plan.model.name, plan.method.dsa) == ("mlp", False)
    (tmp_path / "none.npz").write_bytes(b"no archive")
    for other in (images, str(tmp_path / "none.npz"), str(tmp_path / "missing.npz")):
        assert plan_of({"data": {"name": other}}).model.name == "convnet"
