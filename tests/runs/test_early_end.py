"""Runs that stop early in their folders: finished for all who ask, resumed exactly, and not made longer."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from same_bits import outcome

from fedptr.audit.target import plan_as_trained
from fedptr.cli.main import main
from fedptr.errors import UserError
from fedptr.jobs.run_queue import find_finished_runs
from fedptr.report.find_runs import find_runs
from fedptr.runs import runner
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.runs.plan import Plan, load_plan, with_rounds
from fedptr.runs.run_status import read_status
from fedptr.runs.same_run import lineage
from fedptr.runs.summary import read_finished, summary_at_round

TINY = ["--dataset", "digits", "--model", "mlp", "--width", "8", "--method", "fedavg", "--partition", "iid",
        "--clients", "3"]  # fmt: skip
ROUNDS = 12
Capture = pytest.CaptureFixture[str]


def run(out: Path, *more: str, rounds: int = ROUNDS) -> Path:
    assert main(["run", *TINY, *more, "--rounds", str(rounds), "--out", str(out)]) == 0
    return out


def resume(folder: Path, capsys: Capture, *more: str, code: int = 0) -> str:
    """What was said on stderr."""
    capsys.readouterr()
    assert main(["resume", str(folder), *more]) == code
    return capsys.readouterr().err


def stop_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())["stopped_early"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> float:
    """A score that a run reaches somewhere in its middle."""
    free = run(tmp_path_factory.mktemp("free") / "run")
    scores = [record["test_accuracy"] for record in read_finished(free)[1]]
    return max(scores[: ROUNDS // 2])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, target: float) -> Path:
    """A run that stopped."""
    return run(tmp_path_factory.mktemp("made") / "run", "--target", str(target))


@pytest.fixture
def stopped(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def test_a_run_stops_at_its_target(made: Path, target: float, capsys: Capture) -> None:
    summary, records = read_finished(made)
    assert summary["rounds"] == len(records) == stop_of(made)["round"] < ROUNDS
    assert records[-1]["test_accuracy"] >= target > max(record["test_accuracy"] for record in records[:-1])
    assert re.fullmatch(r"the test score 0\.\d{4} reached run\.target = [\d.]+", stop_of(made)["reason"])
    assert load_plan(made).run.rounds == ROUNDS, "the plan is what was asked for"


def test_all_who_ask_take_it_as_finished(made: Path, capsys: Capture) -> None:
    end, plan = stop_of(made)["round"], load_plan(made)
    status = read_status(made)
    assert (status.state, status.round, status.rounds) == ("finished", end, ROUNDS)
    assert main(["status", str(made)]) == 0
    assert f"finished · fedavg · round {end} of {ROUNDS}" in capsys.readouterr().out
    for rounds in (ROUNDS, 50):
        assert list(find_finished_runs({made: with_rounds(plan, rounds)}).done) == [made]
        assert runner.read_if_finished(made, rounds)
    assert runner.read_if_finished(made, end - 1) is None
    (found,), problems = find_runs([made])
    assert not problems
    assert found.state.startswith(f"finished early, after round {end}: the test score ")


def test_resuming_it_does_nothing_more(stopped: Path, capsys: Capture) -> None:
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file() and path.name != "lock"}
    for more in ((), ("--rounds", "50")):
        assert "is finished; there is nothing to do" in resume(stopped, capsys, *more)
        assert main(["resume", str(stopped), *more]) == 0
        assert f"stopped early after round {stop_of(stopped)['round']}: the test" in capsys.readouterr().out
    assert before == {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file() and path.name != "lock"}


def test_another_target_is_another_run(stopped: Path, capsys: Capture) -> None:
    text = (stopped / "plan.toml").read_text()
    (stopped / "plan.toml").write_text(re.sub(r"target = \S+", "target = 0.0", text))
    assert "run.target was" in resume(stopped, capsys, code=2)


@pytest.mark.parametrize("rounds", [ROUNDS, 50])
def test_killed_between_its_last_round_and_its_summary(rounds: int, made: Path, stopped: Path, capsys: Capture) -> None:
    (stopped / "summary.json").unlink()
    resume(stopped, capsys, "--rounds", str(rounds))
    assert outcome(stopped) == outcome(made)
    assert stop_of(stopped) == stop_of(made)


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("--patience", "2", "--lr", "2"), ("--set", "run.checkpoint_every=3")])
def test_stopped_anywhere_it_ends_at_the_same_round(
    how: tuple[str, ...], target: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The process dies after each round in turn."""
    more = how if "--patience" in how else ("--target", str(target), *how)
    whole = run(tmp_path / "whole", *more)
    end = stop_of(whole)["round"]
    assert CheckpointStore(whole / "checkpoint").rounds() == [end], "the last round is saved, whenever it is"
    show = runner.record_rounds

    for stop in range(1, end + 1):
        out = tmp_path / f"stop{stop}"

        def die(plan: Plan, folder: Path, runs: Any, *rest: Any, stop: int = stop) -> Any:
            def until_killed() -> Any:
                for one in runs:
                    yield one
                    if one.round == stop:
                        raise MemoryError

            return show(plan, folder, until_killed(), *rest)

        with monkeypatch.context() as patch:
            patch.setattr(runner, "record_rounds", die)
            main(["run", *TINY, *more, "--rounds", str(ROUNDS), "--out", str(out)])
        assert not (out / "summary.json").exists()
        resume(out, capsys)
        assert outcome(out) == outcome(whole)
        assert stop_of(out) == stop_of(whole)


def test_a_comparison_of_seeds_that_stop_at_other_rounds(target: float, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "compared"
    options = [*TINY[:6], *TINY[8:], "--target", str(target), "--rounds", str(ROUNDS), "--out", str(out)]
    assert main(["compare", *options, "--methods", "fedavg,fedprox", "--seeds", "3"]) == 0
    ends = {read_finished(folder.parent)[0]["rounds"] for folder in out.glob("*/*/summary.json")}
    assert len(ends) > 1
    assert (out / "curves.png").stat().st_size
    heading, _, *rows = ((out / "table.md").read_text(encoding="utf-8")).splitlines()
    assert heading.endswith("| rounds |")
    assert all(float(row.split("|")[-2]) < ROUNDS for row in rows)
    before = {path: path.read_bytes() for path in out.glob("*/*/rounds.jsonl")}
    for more in ((), ("--rounds", "50")):
        resume(out, capsys, *more)
    assert before == {path: path.read_bytes() for path in out.glob("*/*/rounds.jsonl")}
    assert main(["report", str(out), "--out", str(tmp_path / "report.html")]) == 0
    assert "finished early, after round" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_shorter_part_of_it_did_not_stop(made: Path) -> None:
    """A recipe may ask for fewer rounds than another, and shares its run."""
    summary, records = read_finished(made)
    end = summary["rounds"]
    assert "stopped_early" not in summary_at_round(summary, records, end - 1, 1)
    assert summary_at_round(summary, records, end, 1) is summary
    assert summary_at_round(summary, records, 50, 1) is summary


def test_an_audit_trains_shadows_as_long(made: Path) -> None:
    plan, (summary, _) = load_plan(made), read_finished(made)
    trained = plan_as_trained(plan, summary, made).run
    assert (trained.rounds, trained.target, trained.patience) == (summary["rounds"], 0.0, 0)
    cosine = replace(plan, local=replace(plan.local, schedule="cosine"))
    with pytest.raises(UserError, match="no shadow can be trained like it"):
        plan_as_trained(cosine, summary, made)
    whole = {name: value for name, value in summary.items() if name != "stopped_early"}
    assert plan_as_trained(plan, whole, made) is plan


# Schedules -----------------------------------------------------------------------------------------------------------


def test_a_cosine_keeps_its_length(tmp_path: Path, capsys: Capture) -> None:
    out = run(tmp_path / "run", "--schedule", "cosine", rounds=3)
    before = (out / "plan.toml").read_bytes()
    err = resume(out, capsys, "--rounds", "6", code=2)
    assert err.count("\n") == 1
    assert "keeps its 3 rounds: its learning rates follow a cosine over 3 rounds" in err
    assert "--rounds 6" in err
    assert (out / "plan.toml").read_bytes() == before
    assert "nothing to do" in resume(out, capsys, "--rounds", "3")


@pytest.mark.parametrize("schedule", ["constant", "step"])
def test_other_schedules_are_made_longer(schedule: str, tmp_path: Path, capsys: Capture) -> None:
    how = ("--schedule", schedule, "--set", "local.warmup=2", "--set", "local.step_every=2")
    whole, part = run(tmp_path / "whole", *how, rounds=5), run(tmp_path / "part", *how, rounds=3)
    resume(part, capsys, "--rounds", "5")
    assert outcome(part) == outcome(whole)


def test_runs_of_a_cosine_that_differ_in_length_are_not_shared() -> None:
    for schedule in ("constant", "step", "cosine"):
        plan = replace(Plan(), local=replace(Plan().local, schedule=schedule))
        assert (lineage(plan) == lineage(with_rounds(plan, 7))) == (schedule != "cosine")


def test_what_is_kept_of_the_last_round_is_kept_of_the_one_at_which_it_stops(tmp_path: Path) -> None:
    """Auxiliary images as a picture, and as sets."""
    matching = [f"method.{one}" for one in ("H=1", "R=2", "ipc=1", "m=1")]
    more = [word for one in (*matching, "output.pictures=4", "output.sets=4") for word in ("--set", one)]
    out = run(tmp_path / "run", "--method", "fedptr", "--lr", "2", "--patience", "2", *more)
    end = stop_of(out)["round"]
    assert end % 4
    assert {f"round{end:04}.png", f"round{end:04}.safetensors"} <= {path.name for path in (out / "auxiliary").iterdir()}
