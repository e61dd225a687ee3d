"""The driver of `make soak`, and a few kills of it; an hour of them is for docs/reliability.md."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from soak.hit_and_compare import LostError, hit_and_compare
from soak.journal import Journal, read_entries, summarise
from soak.kinds import Kind
from soak.places import files_below, tell_place
from soak.plain_runs import RUNS, command, list_cases
from soak.processes import Forked, start_as_user
from wait_until import PATIENCE

from fedptr.cli.main import build_parser
from fedptr.cli.plan_options import build_tables
from fedptr.methods import all_methods
from fedptr.runs.plan import check_plan

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc")


@pytest.mark.slow
def test_killed_runs_end_as_if_they_had_not_been(tmp_path: Path) -> None:
    """Started as a user does."""
    short, hits = replace(RUNS, command=functools.partial(command, rounds=20), longest=4.0), Counter[str]()
    hit_and_compare(short, "fedptr 0.4", 2, random.Random(0), tmp_path, start_as_user, hits)
    assert hits.total() >= 1


@pytest.mark.slow
def test_a_soak_forks_kills_and_sums_up(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "soak", "--kills", "6", "--only", "run", str(tmp_path)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(", none lost\n")
    assert sum(sum(entry["hits"].values()) for entry in read_entries(tmp_path)) >= 6


def test_it_takes_every_method_with_all_clients_and_with_a_part_of_them(tmp_path: Path) -> None:
    seen: dict[str, set[float]] = {}
    for case in list_cases():
        plan = check_plan(build_tables(build_parser().parse_args(command(case, tmp_path))))
        seen.setdefault(plan.method.name, set()).add(plan.run.participation)
        assert case == f"{plan.method.name} {plan.run.participation:g}"
    assert seen == {name: {1.0} if method.everyone else {0.4, 1.0} for name, method in all_methods().items()}


def ended(code: int) -> Forked:
    process = Forked(0)
    process.returncode = code
    return process


def pretend_kind(result: object) -> Kind:
    return Kind("pretend", 1.0, ["case"], lambda case, folder: [], lambda folder: result)


@pytest.mark.parametrize(
    ("code", "result", "words"),
    [(0, {"a": [1, 2]}, r"differs: \.a\[1\] is 2 instead of 3"), (2, {"a": [1, 3]}, "ended with 2: no checkpoint")],
)
def test_what_differs_or_fails_is_lost(
    code: int, result: object, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "expected.json").write_text(json.dumps({"a": [1, 3]}))
    (tmp_path / "hit.log").write_text("no checkpoint")
    monkeypatch.setattr("soak.hit_and_compare.kill", lambda process: None)
    with pytest.raises(LostError, match=words):
        hit_and_compare(
            pretend_kind(result), "case", 0, random.Random(0), tmp_path, lambda argv, log: ended(code), Counter()
        )


def test_a_journal_continues_and_sums_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(tmp_path / "run.jsonl")
    journal.add("run", "fedavg 1", Counter({"between writes": 3, "within a line": 1}), 2.0)
    again = Journal(tmp_path / "run.jsonl")
    assert (len(again.of("run")), again.seconds("run")) == (1, 2.0)
    again.add("run", "fedptr 1", Counter({"between writes": 2}), 3.0, "differs")
    Journal(tmp_path / "deploy.jsonl").add("deploy", "fedavg", Counter({"a node": 1}), 9.0)
    assert "LOST: differs; 6 so far" in capsys.readouterr().out
    said = summarise(read_entries(tmp_path)).splitlines()
    assert said[-1] == "7 kills, 2 ends equal to those of their twins, 1 lost"
    assert "LOST: run fedptr 1: differs" in said
    assert [line.split() for line in said if line.startswith("run")] == [["run", "2", "1", "6", "1", "5"]]


def test_where_a_kill_hit(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    before = files_below(tmp_path)
    assert tell_place(tmp_path, before) == "before there was a plan"
    (tmp_path / "plan.toml").touch()
    assert tell_place(tmp_path, before) == "before the first round"
    (tmp_path / "rounds.jsonl").write_text('{"round": 1}\n')
    assert tell_place(tmp_path, before) == "between a line and its checkpoint"
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "server-1.safetensors").touch()
    assert tell_place(tmp_path, before) == "between writes"
    (tmp_path / "rounds.jsonl").write_text('{"round": 1}\n{"rou')
    assert tell_place(tmp_path, before) == "within a line"
    (tmp_path / "checkpoint" / ".server-2.safetensors.7.tmp").touch()
    assert tell_place(tmp_path, before) == "within the write of a checkpoint"
    assert tell_place(tmp_path, files_below(tmp_path)) == "within a line", "the temporary file was there before"
