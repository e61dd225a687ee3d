"""Real processes on the loopback interface: SuperLink, SuperNodes, TLS and node keys, and what goes wrong with them.

Slow for tests: Flower takes seconds to start anything. Each test does as much as it can with one federation, and of the
methods one of each kind is taken; `make parity` takes all. In test_flower.py all are tested without a network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

from deployed_federation import Federation3, federation
from small_plans import in_process, moving, plan_for
from wait_until import PATIENCE

from fedptr.cli.main import main
from fedptr.engines.flower.setup import certificates as keys
from fedptr.engines.flower.setup import launch_run
from fedptr.methods import all_methods
from fedptr.runs import plan as planning
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.summary import read_finished

pytestmark = pytest.mark.real

if not sys.platform.startswith("linux"):
    pytest.skip("process trees are looked up in /proc", allow_module_level=True)

# On two of pytest's workers: a federation waits more than it computes, but many at a time would slow each other.
federations, faults = pytest.mark.xdist_group("federation"), pytest.mark.xdist_group("faults")

# With control variates; with what clients keep; what the server keeps; a question; features. FedAvg is below.
KINDS = ["scaffold", "fedptr", "fedptr-s", "mime", "moon"]
METHODS = list(all_methods()) if os.environ.get("FEDPTR_ALL_METHODS") else KINDS


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation3]:
    """A server and three nodes that stay for several tests."""
    plan = plan_for("fedavg")
    with federation(tmp_path_factory.mktemp("three") / "f", plan, prepare_experiment(plan).split) as lab:
        yield lab


@pytest.mark.parametrize("name", METHODS)
@federations
def test_over_tls_every_method_gives_the_weights_of_the_in_process_engine(name: str, three: Federation3) -> None:
    plan = plan_for(name)
    three.train(plan, name)
    assert three.summary()["weights_sha256"] == moving(in_process(plan))
    assert three.summary()["dropped"] == 0


@federations
def test_nodes_run_no_program_that_the_server_sends(three: Federation3, tmp_path: Path) -> None:
    """Flower would: the app of the run has one line more, and its server half does run it."""
    plan, traces = plan_for("fedavg"), {half: tmp_path / half for half in ("server", "client")}
    app = three.server / "app" / "fedptr_app"
    honest = {half: (app / f"{half}.py").read_text() for half in traces}
    try:
        for half, trace in traces.items():
            (app / f"{half}.py").write_text(f"open({str(trace)!r}, 'w').close()\n{honest[half]}")
        three.train(plan, "tampered")
    finally:
        for half, text in honest.items():
            (app / f"{half}.py").write_text(text)
    assert three.summary()["weights_sha256"] == moving(in_process(plan))
    assert {half: trace.exists() for half, trace in traces.items()} == {"server": True, "client": False}


@federations
def test_status_shows_nodes_that_wait_for_the_next_run(three: Federation3, capsys: pytest.CaptureFixture[str]) -> None:
    three.train(plan_for("fedavg"), "status")
    assert main(["status", str(three.run)]) == 0
    said = capsys.readouterr().out
    assert "finished" in said
    lines = [line.split() for line in said.splitlines()]
    assert [cells[1:2] + cells[3:] for cells in lines if cells[1:2] and cells[1] in "abc"] == [
        [name, "yes", "now"] for name in "abc"
    ]


@federations
def test_over_tls_with_secure_aggregation_and_noise(three: Federation3) -> None:
    """The weights of an in-process run with the same noise, but for rounding; ε in every record; no client's loss."""
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: pip install 'fedptr[privacy]'")
    privacy = {"clip": 0.5, "noise": 0.01, "randomness": "seed", "range": 0.5}
    tables = {**plan_for("fedavg").tables(), "method": {"name": "fedavg", "weighting": "uniform"}}
    plan = planning.check_plan({**tables, "privacy": {**privacy, "secure": True}})
    three.train(plan, "secure")
    open_ = planning.check_plan({**tables, "privacy": privacy})
    runs = in_process(open_)
    found = safetensors.torch.load_file(three.run / "weights.safetensors")
    for name, value in prepare_experiment(open_).task.parameters(runs[-1].w).items():
        assert torch.allclose(found[name], value, atol=1e-4)
    moving(runs)
    records = [json.loads(line) for line in (three.run / "rounds.jsonl").read_text().splitlines()]
    assert [record["epsilon"] for record in records] == [run.record["epsilon"] for run in runs]
    assert all("train_loss" not in client for record in records for client in record["clients"])
    assert three.summary()["dropped"] == 0


@faults
def test_nodes_that_die_and_return_and_a_server_that_is_killed(tmp_path: Path) -> None:
    """One of three is killed and comes back, a fourth joins, one is late, the server is killed: the run continues."""
    plan = plan_for("scaffold", clients=4, rounds=500)
    rules = {"min_nodes": 2, "min_replies": 2, "round_timeout": 30.0, "patience": PATIENCE}
    with federation(tmp_path / "f", plan, prepare_experiment(plan).split, **rules) as lab:
        lab.begin()
        lab.reach(1)
        lab.kill("c")
        missed = lab.until(
            lambda: [r["dropped"] for r in lab.rounds() if "2" in r.get("dropped", {})], "missing node c"
        )
        assert missed[0]["2"].startswith("c ")
        with_two = [record for record in lab.rounds() if len(record["clients"]) == 2]
        assert with_two, "no round went on without node c"
        lab.start_node("c")
        lab.start_node("d")
        lab.until(lambda: 3 in lab.rounds()[-1]["cohort"] and "dropped" not in lab.rounds()[-1], "all four nodes")
        with lab.frozen("b"):
            for words in ("b did not answer", "b is busy"):  # and is not asked in the rounds after the first
                lab.until(lambda words=words: words in str([r.get("dropped") for r in lab.rounds()]), words)
        lab.until(lambda: any("late" in record for record in lab.rounds()), "node b's late reply")
        lab.until(lambda: "dropped" not in lab.rounds()[-1], "all four nodes again")
        lab.kill("superlink")
        lab.kill("command")
        before = len(lab.rounds())
        lab.start_server()
        lab.command("resume", str(lab.run))
        lab.until(lambda: any(record["attempt"] == 2 for record in lab.rounds()), "a round of the second attempt")
        records = lab.rounds()
        assert [record["round"] for record in records] == list(range(1, len(records) + 1))
        assert len(records) >= before - 1  # what was not in a checkpoint yet is done again
        assert [record["attempt"] for record in records] == sorted(record["attempt"] for record in records)


@faults
def test_a_killed_server_and_restarted_nodes_end_where_an_uninterrupted_run_does(tmp_path: Path) -> None:
    plan, rules = plan_for("fedptr", rounds=12), {"min_replies": 3, "round_timeout": PATIENCE, "patience": PATIENCE}
    with federation(tmp_path / "f", plan, prepare_experiment(plan).split, **rules) as lab:
        lab.begin()
        lab.reach(2)
        lab.kill("superlink", alone=True)
        lab.until(lambda: not launch_run.is_folder_in_use(lab.run), "the end of the run's own process")
        for what in ("a", "b", "command"):
            lab.kill(what)
        assert len(lab.rounds()) < 12
        lab.start_server()
        lab.start_node("a")
        lab.start_node("b")
        assert lab.command("resume", str(lab.run)).wait(PATIENCE) == 0, lab.log("command")
        assert lab.summary()["weights_sha256"] == moving(in_process(plan))
        assert {record["attempt"] for record in lab.rounds()} == {1, 2}


@federations
def test_strangers_are_refused(tmp_path: Path) -> None:
    """A key nobody registered, another authority, no encryption, and commands from another machine."""
    plan = plan_for("fedavg")
    with federation(tmp_path / "f", plan, prepare_experiment(plan).split, nodes="") as lab:
        folder = lab.folder / "nodes" / "a"
        kept = {name: (folder / name).read_bytes() for name in ("key", "key.pub", "ca.crt")}

        def attempt(change: Any, *words: str) -> str:
            (lab.folder / "a.log").unlink(missing_ok=True)
            change()
            lab.start_node("a")
            lab.until(lambda: any(word in lab.log("a") for word in (*words, "SuperNode ID")), f"one of {words}")
            text = lab.log("a")
            lab.kill("a")
            for name, content in kept.items():
                (folder / name).write_bytes(content)
            return text

        def other_key() -> None:
            for name in ("key", "key.pub"):
                (folder / name).unlink()
            keys.make_node(folder, "a")
            (folder / "key").chmod(0o600)

        def other_authority() -> None:
            (tmp_path / "other").mkdir()
            keys.make_authority(tmp_path / "other", 1)
            (folder / "ca.crt").write_bytes((tmp_path / "other" / "ca.crt").read_bytes())

        def no_encryption() -> None:
            script = folder / "supernode.sh"
            text = script.read_text()
            script.write_text(text.replace("--root-certificates ca.crt --auth-supernode-private-key key", "--insecure"))

        for change, *words in (
            (other_key, "Exit Code: 305"),
            (other_authority, "CERTIFICATE_VERIFY_FAILED"),
            (no_encryption, "Connection attempt failed"),
        ):
            assert "SuperNode ID" not in attempt(change, *words), words


@pytest.mark.parametrize("name", METHODS if len(METHODS) > len(KINDS) else ["scaffold", "fedptr"])
@federations
def test_the_simulation_gives_the_weights_of_the_in_process_engine(name: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'fedptr[flower]'")
    plan = plan_for(name)
    (tmp_path / "plan.toml").write_text(plan.toml())
    out = tmp_path / name
    command = [sys.executable, "-m", "fedptr", "deploy", "simulate", str(tmp_path / "plan.toml"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert read_finished(out)[0]["weights_sha256"] == moving(in_process(plan))
