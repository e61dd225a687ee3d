"""A one-shot method has one round: on the command line, beside others, in the report, and after a kill within it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import made_run
from same_bits import outcome

from fedptr.cli.main import main
from fedptr.core.long_work import LongWork
from fedptr.methods import all_methods, fedd3
from fedptr.report.find_runs import find_runs
from fedptr.report.group_runs import group_runs
from fedptr.runs.dataset_defaults import with_dataset_defaults
from fedptr.runs.leftovers import UNFINISHED
from fedptr.runs.plan import check_plan

Capture = pytest.CaptureFixture[str]
ONE_SHOT = [name for name, method in all_methods().items() if method.one_shot]
TINY = [
    "--dataset", "digits", "--clients", "3", "--model", "mlp", "--width", "8", "--set", "machine.threads=1",
    "--set", "data.subset=200",
]  # fmt: skip
H = 8
QUICK = ["--set", f"method.H={H}", "--set", "method.k=5", "--set", "method.server_epochs=3"]


def said(capsys: Capture) -> str:
    found = capsys.readouterr()
    assert "Traceback" not in found.err
    return found.err + found.out


@pytest.mark.parametrize("name", ONE_SHOT)
def test_its_plan_has_one_round_whatever_it_says(name: str) -> None:
    assert check_plan({"method": {"name": name}, "run": {"rounds": 30}}).run.rounds == 1
    tables, told = with_dataset_defaults({"method": {"name": name}})
    assert check_plan(tables).run.rounds == 1
    assert "1 round" in told
    both, told = with_dataset_defaults({}, [name, "fedavg"])
    assert both["run"]["rounds"] == 30
    assert "30 rounds" in told


def test_the_command_says_so_and_a_longer_run_is_refused(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "run"
    assert main(["run", "--method", "fedd3", *TINY, *QUICK, "--rounds", "4", "--out", str(out)]) == 0
    words = said(capsys)
    assert "fedd3: one-shot, so its clients are asked once, and its run has one round" in words
    assert "after one round" in words
    assert len((out / "rounds.jsonl").read_text().splitlines()) == 1
    assert main(["resume", str(out), "--rounds", "3"]) == 2
    assert "keeps its one round: fedd3 is one-shot, its clients are asked once" in said(capsys)
    assert main(["resume", str(out)]) == 0


def test_a_comparison_has_methods_of_one_round_and_of_several(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "both"
    own = ["--set", "methods.fedd3.H=2", "--set", "methods.fedd3.server_epochs=3"]
    asked = ["--methods", "fedd3,fedavg", *TINY, *own, "--rounds", "3", "--out", str(out)]
    assert main(["compare", *asked]) == 0
    words = said(capsys)
    assert "fedd3: one-shot" in words
    assert "3 rounds" in words
    assert rounds_of(out) == {"fedd3": 1, "fedavg": 3}
    before = outcome(out / "fedd3" / "seed0")
    assert main(["resume", str(out), "--rounds", "4"]) == 0
    assert rounds_of(out) == {"fedd3": 1, "fedavg": 4}
    assert outcome(out / "fedd3" / "seed0") == before
    groups = group_runs(find_runs([out])[0])
    assert [[series.method for series in group.series] for group in groups] == [["fedavg", "fedd3"]]
    assert "4 rounds" in groups[0].title


def rounds_of(out: Path) -> dict[str, int]:
    (both,) = (json.loads((out / "compare.json").read_text()),)
    return {name: summary["rounds"] for name, (summary,) in both.items()}


def test_alone_it_is_a_group_of_its_own(tmp_path: Path) -> None:
    other = {"local": {"batch": 7}}
    made_run(tmp_path / "a", {"method": {"name": "fedd3"}, "run": {"rounds": 1}})
    made_run(tmp_path / "b", {"method": {"name": "fedavg"}, "run": {"rounds": 5}, **other})
    made_run(tmp_path / "c", {"method": {"name": "fedavg"}, "run": {"rounds": 5}})
    groups = group_runs(find_runs([tmp_path])[0])
    assert sorted(sorted(series.method for series in group.series) for group in groups) == [
        ["fedavg"],
        ["fedavg", "fedd3"],
    ]


SCRIPT = f"""
import os, signal, sys
from fedptr.cli import main as cli
from fedptr.core import long_work
from fedptr.methods import fedd3
long_work.OFTEN, long_work.PART = 0.0, 1e9
gradient, calls = fedd3.loss_and_gradient, []
def dying(*args):
    if len(calls) == {H + 3}:
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(1)
    return gradient(*args)
fedd3.loss_and_gradient = dying
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_kill_within_the_only_round_repeats_what_was_not_kept(tmp_path: Path, monkeypatch) -> None:
    """The first client's images were finished, the second's begun."""
    run = ["run", "--method", "fedd3", *TINY, *QUICK]
    assert main([*run, "--out", str(tmp_path / "whole")]) == 0
    part = tmp_path / "part"
    done = subprocess.run([sys.executable, "-c", SCRIPT, *run, "--out", str(part)], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    kept = sorted(path.name.rsplit("-", 1)[0] for path in (part / UNFINISHED).glob("*.safetensors"))
    assert kept == ["round-0-client-0", "round-0-client-1"]
    steps, gradient = [], fedd3.loss_and_gradient

    def counted(*args):
        steps.append(1)
        return gradient(*args)

    monkeypatch.setattr(fedd3, "loss_and_gradient", counted)
    assert main(["resume", str(part)]) == 0
    assert outcome(part) == outcome(tmp_path / "whole")
    assert len(steps) == 3 * H - (H + 3)
    assert not (part / UNFINISHED).exists()


def test_clients_side_by_side_keep_their_own_work(tmp_path: Path, monkeypatch) -> None:
    """With the bits of one after another, interrupted or not."""
    run = ["run", "--method", "fedd3", *TINY, *QUICK]
    assert main([*run, "--out", str(tmp_path / "whole")]) == 0
    at_once = ["--set", "machine.clients_at_once=2"]
    assert main([*run, *at_once, "--out", str(tmp_path / "beside")]) == 0
    assert outcome(tmp_path / "beside") == outcome(tmp_path / "whole")
    part = tmp_path / "part"
    done = subprocess.run([sys.executable, "-c", SCRIPT, *run, *at_once, "--out", str(part)], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    taken, unpack = [], LongWork.unpack

    def noted(self, state):
        taken.append(int(state["done"]))
        return unpack(self, state)

    monkeypatch.setattr(LongWork, "unpack", noted)
    assert main(["resume", str(part)]) == 0
    assert outcome(part) == outcome(tmp_path / "whole")
    assert sum(taken) >= H + 1, "what two threads had done, but for their last steps"
