"""`fedptr deploy remove` and `rotate`, with real processes: an old key is refused, a new one takes part."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

from deployed_federation import federation
from small_plans import in_process, moving, plan_for
from wait_until import until

from fedptr.cli.main import main
from fedptr.engines.flower.setup.init_federation import REMOVED, read_register
from fedptr.runs.experiment import prepare_experiment

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.xdist_group("federation")]

if not sys.platform.startswith("linux"):
    pytest.skip("process trees are looked up in /proc", allow_module_level=True)


def test_a_removed_key_is_refused_and_a_new_one_takes_part(tmp_path: Path) -> None:
    plan = plan_for("fedavg", rounds=2)
    with federation(tmp_path / "f", plan, prepare_experiment(plan).split, nodes="ab") as lab:
        folder, server = lab.folder / "nodes" / "c", str(lab.server)
        old = (folder / "key").read_bytes()
        assert main(["deploy", "remove", server, "c"]) == 0
        assert read_register(lab.server)["c"] == {"number": 2, "node": REMOVED}
        assert main(["deploy", "remove", server, "c"]) == 2
        lab.start_node("c")
        until(lambda: "Exit Code: 305" in lab.log("c"), "the refusal of the old key")
        assert main(["deploy", "rotate", server, "c"]) == 0
        assert (folder / "key").read_bytes() != old
        assert (folder / "key").stat().st_mode & 0o77 == 0
        lab.train(plan, "rotated")  # node c, which tries again, reads the new key
        assert lab.summary()["weights_sha256"] == moving(in_process(plan))
        events = [json.loads(line) for line in (lab.run / "events.jsonl").read_text().splitlines()]
        assert sorted(event["node"] for event in events if event["event"] == "joined") == ["a", "b", "c"]
