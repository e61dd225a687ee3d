"""What is counted in an estimate is right to the number; how long it takes is for benchmarks/figure_estimate.py."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from fedptr.cli.main import build_parser, main
from fedptr.cli.plan_options import build_tables
from fedptr.core.round_record import count_bytes
from fedptr.methods import all_methods, make_method
from fedptr.runs.estimate import count_up, estimate_run, takes_long
from fedptr.runs.experiment import Experiment, prepare_experiment
from fedptr.runs.plan import Plan, check_plan
from fedptr.runs.rehearse import UnitCosts

TINY = ["--dataset", "digits", "--subset", "200", "--model", "mlp", "--width", "8", "--min-size", "1", "--clients", "5"]
FREE = UnitCosts(**dict.fromkeys((part.name for part in fields(UnitCosts)), 0))


def prepared(*options: str) -> tuple[Plan, Experiment]:
    plan = check_plan(build_tables(build_parser().parse_args(["run", *TINY, *options])))
    return plan, prepare_experiment(plan)


def seconds(options: list[str], **unit: float) -> float:
    return count_up(*prepared(*options), replace(FREE, **unit), memory=0, free=None).seconds


def test_each_part_is_counted_as_often_as_it_happens() -> None:
    plan = ["--method", "fedavg", "--rounds", "7", "--participation", "0.4"]
    assert seconds(plan, round=1) == 7
    assert seconds(plan, visit=1) == 7 * 2
    assert seconds(plan, sample=1) == pytest.approx(7 * 2 * 200 / 5)
    assert seconds(plan, later_sample=1) == pytest.approx(seconds(plan, sample=1))
    assert seconds(["--method", "moon", *plan[2:]], later_sample=1) == pytest.approx(6 * 2 * 200 / 5)
    _, experiment = prepared(*plan)
    assert seconds(plan, test=1) == 7 * len(experiment.test)
    assert seconds([*plan, "--set", "run.eval_every=3"], test=1) == 3 * len(experiment.test)  # after 3, 6 and 7
    assert seconds([*plan, "--set", "split.test=holdout"], tester=1) == 7 * 5


@pytest.mark.parametrize(
    ("options", "sets"),
    [
        (["--method", "fedptr-s"], 20 - 4),
        (["--method", "fedptr"], 5 * (20 - 4)),
        (["--method", "scaffold+ptr"], 5 * (20 - 4)),
        (["--method", "fedptr-s", "--set", "method.mtt_every=5"], 4),  # 5, 10, 15 and 20
        (["--method", "fedptr-s", "--set", "method.mtt_every=once"], 1),
        (["--method", "fedptr-s", "--rounds", "3"], 0),
        (["--method", "dynafed", "--set", "method.L=6"], 1),
        (["--method", "dynafed", "--set", "method.L=20"], 0),
        (["--method", "fedavg"], 0),
        (["--method", "dosfl"], 5),
    ],
)
def test_outer_steps_are_counted_for_every_set_that_is_learned(options: list[str], sets: int) -> None:
    trail = [] if {"dynafed", "fedavg", "dosfl"}.intersection(options) else ["--set", "method.m=3"]
    steps = [] if "fedavg" in options else ["--set", "method.H=6"]
    plan = ["--rounds", "20", *trail, *steps, *options]
    assert seconds(plan, outer=1) == 6 * sets


def test_rounds_that_are_all_alike_are_told_as_one() -> None:
    """Also where each of them learns sets."""
    found = count_up(*prepared("--method", "dosfl"), replace(FREE, round=1, outer=1), memory=0, free=None)
    assert found.quick == found.round == found.seconds == 1 + 5 * 60
    assert not any("in the first ones" in line for line in found.in_lines())


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedptr", "fedptr-s", "mime", "ditto"])
def test_what_is_sent_and_kept_is_what_a_run_sends_and_keeps(name: str, tmp_path: Path) -> None:
    trail = ["--set", "method.m=2", "--set", "method.mtt_max_loss=1e9"] if "ptr" in name else []
    options = ["--method", name, "--rounds", "6", "--participation", "0.6", *trail]
    plan, experiment = prepared(*options)
    found = estimate_run(plan, experiment)
    out = tmp_path / "run"
    assert main(["run", *TINY, *options, "--set", "run.checkpoint_every=1", "--out", str(out)]) == 0
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    sent = tuple(sum(record[way] for record in rounds) for way in ("bytes_down", "bytes_up"))
    if name != "fedptr":  # whose clients, at half participation, are not all warm when the server would be
        assert (found.down, found.up) == sent
    assert found.clients == 5
    assert found.cohort == 3
    assert found.seconds > 0
    assert 1 / 3 < found.disk / sum(path.stat().st_size for path in out.rglob("*")) < 3


@pytest.mark.parametrize("name", ["l2gd", "fedpd", "local"])
def test_rounds_that_send_nothing_are_not_counted(name: str, tmp_path: Path) -> None:
    """They depend on a coin, and the first round says nothing of the others."""
    options = ["--method", name, "--rounds", "12", *([] if name == "local" else ["--set", "method.p=0.4"])]
    found = estimate_run(*prepared(*options))
    assert main(["run", *TINY, *options, "--out", str(tmp_path)]) == 0
    rounds = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert (found.down, found.up) == tuple(sum(told[way] for told in rounds) for way in ("bytes_down", "bytes_up"))
    assert len({told["bytes_up"] for told in rounds}) == (1 if name == "local" else 2)


def test_a_rehearsal_learns_in_few_steps_and_uses_what_it_learned() -> None:
    assert make_method("fedavg").shorten(1) == make_method("fedavg")
    assert make_method("fedptr-s").shorten(2).outer_steps == 2
    both = make_method("fedavgm+ptr", H=9).shorten(3)
    assert (both.outer_steps, both.ptr.H) == (3, 3)  # type: ignore[attr-defined]
    assert both.ptr.mtt_max_loss > 1e9  # type: ignore[attr-defined]
    assert not all_methods()["fedavg"]().outer_steps


def test_the_command_says_it_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["estimate", *TINY, "--method", "fedavg", "--rounds", "6", "--participation", "0.6"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("rounds  6, 3 of 5 clients in each; 682 parameters\ntime    ")
    assert [line.split()[0] for line in said.splitlines()] == ["rounds", "time", "sent", "memory", "disk"]
    assert not list(tmp_path.iterdir())


def test_a_long_run_says_it_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options: list[Any] = [*TINY, "--method", "fedavg", "--rounds", "1"]
    assert main(["run", *options, "--out", str(tmp_path / "short")]) == 0
    assert "this run will take" not in capsys.readouterr().err
    monkeypatch.setattr("fedptr.runs.estimate.LONG", -1.0)
    assert main(["run", *options, "--out", str(tmp_path / "long")]) == 0
    assert "fedptr: this run will take about" in capsys.readouterr().err
    weights = [json.loads((tmp_path / run / "summary.json").read_text())["weights_sha256"] for run in ("short", "long")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(("options", "long"), [(["fedavg"], False), (["fedptr", "--set", "method.H=2000"], True)])
def test_matching_makes_a_run_long(options: list[str], long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where local training takes a moment."""
    monkeypatch.setattr("fedptr.runs.estimate.time_gradient", lambda task, data, n: 1e-5 * n)
    assert takes_long(*prepared("--rounds", "20", "--method", *options)) is long


def test_states_are_counted_in_bytes() -> None:
    plan, experiment = prepared("--method", "scaffold", "--rounds", "2")
    model = count_bytes({"x": experiment.task.init()})
    found = estimate_run(plan, experiment)
    assert found.disk > 2 * 2 * model + 5 * model  # two checkpoints of x and c, and c_i of every client
