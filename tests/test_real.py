"""On real data: FedAvg learns, matching matches, and the projected step foretells the global one."""

from __future__ import annotations

import pytest
import torch

from fedptr.core.federation import federate, last_run
from fedptr.errors import UserError
from fedptr.runs.experiment import Experiment, prepare_experiment
from fedptr.runs.plan import Plan, check_plan

pytestmark = pytest.mark.real

REAL = pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])


def planned(name: str, **sections: dict) -> tuple[Plan, Experiment]:
    base = {
        "run": {"rounds": 6},
        "data": {"name": name, "subset": 1000, "subset_test": 500},
        "split": {"kind": "iid", "clients": 5},
        "model": {"width": 16},
        "local": {"lr": 0.02, "batch": 50},
    }
    plan = check_plan(
        {section: {**base.get(section, {}), **sections.get(section, {})} for section in {*base, *sections}}
    )
    try:
        return plan, prepare_experiment(plan)
    except UserError as error:
        if "was not found" not in str(error):
            raise
        pytest.skip(f"{name} is not on this machine: run `fedptr data get {name}`")


def runs(plan: Plan, at: Experiment):
    return federate(plan.method, at.task, at.clients, at.test, plan.run, plan.local)


@REAL
def test_fedavg_learns_on_iid_data(name: str) -> None:
    plan, at = planned(name, method={"name": "fedavg"}, local={"lr": 0.05})
    records = [run.record for run in runs(plan, at)]
    assert records[-1]["test_accuracy"] > {"fashion-mnist": 0.6, "cifar10": 0.22}[name]
    assert records[-1]["test_loss"] < records[0]["test_loss"]
    assert records[-1]["train_loss"] < records[0]["train_loss"]


SKEWED = {"split": {"kind": "dirichlet", "alpha": 0.01, "clients": 5, "min_size": 50}}


@REAL
def test_matching_lowers_its_loss_and_the_auxiliary_cosine_exceeds_the_local_one(name: str) -> None:
    """T14 and the paper's second figure: training is FedAvg's, D̃ only watches. Dirichlet 0.01."""
    watch = {"name": "fedptr", "observe": True, "H": 5, "R": 5, "ipc": 1, "dsa": False, "beta": 0.02, "eta": 0.02}
    plan, at = planned(name, method=watch, **SKEWED)
    records = [run.record for run in runs(plan, at)]
    warm = records[plan.method.m + 1 :]  # type: ignore[attr-defined]
    assert len(warm) == 3
    for record in warm:
        for entry in record["clients"]:
            assert entry["match_after"] < entry["match_before"]
        assert record["cos_aux"] > record["cos_local"] + 0.1
    assert warm[0]["clients"][0]["match_after"] < 0.9 * warm[0]["clients"][0]["match_before"]


@REAL
def test_the_paper_configuration_runs_on_the_server(name: str) -> None:
    """FedPTR-S with DSA and its other defaults, but for size: all stays finite, every layer's distance is kept."""
    plan, at = planned(
        name, run={"rounds": 5, "eval_every": 5}, method={"name": "fedptr-s", "H": 3, "R": 4, "ipc": 1}, **SKEWED
    )
    run = last_run(runs(plan, at))
    assert bool(torch.isfinite(run.w).all())
    assert run.record["server"]["match_stopped"] == 0
    assert all(len(entry["distances"]) == 14 for entry in run.record["clients"])
    assert run.record["bytes_down"] == 2 * run.record["bytes_up"]
