"""A node that is killed and started again takes part again, long before Flower would have missed it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

from deployed_federation import federation
from small_plans import plan_for
from wait_until import until

from fedptr.runs.experiment import prepare_experiment

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.xdist_group("federation")]

if not sys.platform.startswith("linux"):
    pytest.skip("process trees are looked up in /proc", allow_module_level=True)


def test_a_node_that_is_killed_and_started_again_is_back(tmp_path: Path) -> None:
    plan = plan_for("fedavg", rounds=500)
    rules = {"min_nodes": 2, "min_replies": 2, "round_timeout": 600.0}
    with federation(tmp_path / "f", plan, prepare_experiment(plan).split, **rules) as lab:
        lab.begin()
        lab.reach(1)
        lab.kill("c")
        lab.start_node("c")
        until(lambda: "is back before it was missed" in lab.log("superlink"), "node c at the gate")
        seen = len(lab.rounds())
        until(lambda: any(len(record["clients"]) == 3 for record in lab.rounds()[seen:]), "a round with node c")
        records = lab.rounds()
        missed = [record["round"] for record in records if "dropped" in record]
        print("rounds without node c:", missed, [record["dropped"] for record in records if "dropped" in record])
        assert all("c " in record["dropped"]["2"] for record in records if "dropped" in record)
