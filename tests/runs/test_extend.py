"""More rounds for a run that is there: it ends as one that was asked for them from the start."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from same_bits import equal, outcome, untimed
from small_world import World, part_for, quick

from fedptr import atomic_files
from fedptr.cli.main import main
from fedptr.compute import choose
from fedptr.methods import all_methods
from fedptr.models.networks import MLP
from fedptr.report.find_runs import find_runs
from fedptr.runs import runner
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.runs.compare import ORDER
from fedptr.runs.plan import Plan, load_plan, with_rounds
from fedptr.runs.rounds_file import RoundsFile
from fedptr.runs.summary import read_finished

TINY = ["--preset", "paper", "--model", "mlp", "--width", "8", "--batch", "32", "--set", "machine.threads=1"]
MATCHING = ["--set", "method.H=1", "--set", "method.R=2", "--set", "method.ipc=1", "--set", "method.m=1"]
SCAFFOLD = ["--method", "scaffold", "--participation", "0.5"]
Capture = pytest.CaptureFixture[str]
# Of the machine and the moment, not of the run.
MOMENT = {"seconds", "seconds_per_round", "peak_memory_bytes", "rounds_sha256"}


@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize("name", all_methods())
def test_every_method_ends_as_if_asked_for_more_from_the_start(
    name: str, part: float, world: World, tmp_path: Path
) -> None:
    method = quick(name, dsa=True) if "dsa" in all_methods()[name].__dataclass_fields__ else quick(name)
    part = part_for(name, part)
    whole = world.runs(method, rounds=8, participation=part)
    first = world.runs(method, rounds=5, participation=part)
    CheckpointStore(tmp_path).save(first[-1], {})
    loaded, _ = CheckpointStore(tmp_path).load(5)
    rest = world.runs(method, rounds=8, participation=part, start=loaded)
    for a, b in zip(whole, first + rest, strict=True):
        assert torch.equal(a.w, b.w)
        assert untimed(a.record) == untimed(b.record)
    assert equal(whole[-1].server, rest[-1].server)
    assert equal(dict(whole[-1].clients), dict(rest[-1].clients))


def run(out: Path, rounds: int, *more: str) -> Path:
    assert main(["run", *TINY, *more, "--rounds", str(rounds), "--out", str(out)]) == 0
    return out


def resume(folder: Path, capsys: Capture, *more: str, code: int = 0) -> str:
    """What was said on stderr."""
    capsys.readouterr()
    assert main(["resume", str(folder), *more]) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert not code or err.count("\n") == 1, "one sentence"
    return err


def timeless(folder: Path) -> dict[str, Any]:
    return {name: value for name, value in read_finished(folder)[0].items() if name not in MOMENT}


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SCAFFOLD run of three rounds, and one of six."""
    base = tmp_path_factory.mktemp("made")
    run(base / "short", 3, *SCAFFOLD)
    run(base / "whole", 6, *SCAFFOLD)
    return base


@pytest.fixture
def short(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "short", tmp_path / "run"))


@pytest.mark.parametrize("how", [("--method", "fedptr", *MATCHING), SCAFFOLD], ids=["fedptr", "scaffold"])
def test_a_finished_run_is_continued_from_the_command_line(how: list[str], tmp_path: Path, capsys: Capture) -> None:
    whole, part = run(tmp_path / "whole", 7, *how), run(tmp_path / "part", 4, *how)
    before = (part / "rounds.jsonl").read_bytes()
    assert "resuming after round 4 of 7" in resume(part, capsys, "--rounds", "7")
    assert outcome(part) == outcome(whole)
    assert timeless(part) == timeless(whole)
    assert (part / "rounds.jsonl").read_bytes().startswith(before), "its history stays"
    assert (part / "plan.toml").read_bytes() == (whole / "plan.toml").read_bytes()
    assert (part / "weights.safetensors").read_bytes() == (whole / "weights.safetensors").read_bytes()
    if "fedptr" in how:
        pictures = [{path.name for path in (folder / "auxiliary").iterdir()} for folder in (part, whole)]
        assert pictures[0] == pictures[1] != set()
    assert "nothing to do" in resume(part, capsys)
    assert "nothing to do" in resume(part, capsys, "--rounds", "7")


def test_twice(short: Path, made: Path, capsys: Capture) -> None:
    resume(short, capsys, "--rounds", "5")
    resume(short, capsys, "--rounds", "6")
    assert outcome(short) == outcome(made / "whole")


KILLED = """
import os, signal, sys
from fedptr import atomic_files as sealed
from fedptr.cli import main as cli
from fedptr.runs import extend as longer
from fedptr.runs import rounds_file as history
from fedptr.runs import runner
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
def append(self, record, append=history.RoundsFile.append):
    append(self, record)
    if record["round"] == 5: die()
where = sys.argv.pop(1)
if where == "sealed": longer.write_text = die     # the checkpoint is sealed again, the plan is as it was
if where == "planned": runner.run_rounds = die            # nothing was trained since
if where == "training": history.RoundsFile.append = append
sys.exit(cli.main(sys.argv[1:]))
"""


def kill_on_the_way(where: str, folder: Path, rounds: int = 6) -> Path:
    argv = [where, "resume", str(folder), "--rounds", str(rounds)]
    assert subprocess.run([sys.executable, "-c", KILLED, *argv], check=False).returncode == -9
    return folder


@pytest.fixture(scope="module")
def killed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The short run, killed there on its way to six rounds; one process for all tests that need it."""
    base = tmp_path_factory.mktemp("killed")
    return functools.cache(lambda where: kill_on_the_way(where, Path(shutil.copytree(made / "short", base / where))))


@pytest.mark.parametrize("where", ["sealed", "planned", "training"])
def test_a_kill_on_the_way_loses_nothing(
    where: str, killed: Callable[[str], Path], tmp_path: Path, made: Path, capsys: Capture
) -> None:
    short = Path(shutil.copytree(killed(where), tmp_path / "run"))
    said = resume(short, capsys)
    if where == "sealed":  # it is what it was
        assert "nothing to do" in said
        assert outcome(short) == outcome(made / "short")
        resume(short, capsys, "--rounds", "6")
    assert outcome(short) == outcome(made / "whole")
    assert timeless(short) == timeless(made / "whole")


@pytest.mark.slow
def test_an_early_summary_that_does_not_know_its_plan(short: Path, made: Path, capsys: Capture) -> None:
    """Killed before a round was added, the plan alone tells that there is more to do."""
    from fedptr.runs import summary

    told = read_finished(short)[0]
    del told["plan_sha256"]
    (short / "summary.json").write_text(json.dumps({**told, "sha256": summary.summary_digest(told)}))
    assert read_finished(short)
    resume(kill_on_the_way("planned", short), capsys)
    assert outcome(short) == outcome(made / "whole")


def test_an_unfinished_run_gets_another_end(tmp_path: Path, made: Path, capsys: Capture) -> None:
    out, seen = tmp_path / "run", []
    plan = load_plan(made / "short")
    out.mkdir()

    def stop(record: dict[str, Any]) -> None:
        seen.append(record)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.start_run(with_rounds(plan, 9), runner.prepare_experiment(plan), out, stop)
    for rounds in ("4", "6"):  # shorter than planned, and longer again
        resume(out, capsys, "--rounds", rounds)
        assert load_plan(out).run.rounds == int(rounds)
    assert outcome(out) == outcome(made / "whole")


def test_a_checkpoint_knows_how_many_rounds_its_plan_has(made: Path) -> None:
    _, header = atomic_files.read_tensors(made / "short" / "checkpoint" / "server-3.safetensors")
    assert json.loads(header["plan"])["run.rounds"] == 3
    assert "plan_before" not in header


def test_a_plan_that_was_edited_by_hand_is_still_refused(
    killed: Callable[[str], Path], tmp_path: Path, capsys: Capture
) -> None:
    """Also after an extension that was stopped, where two plans will do."""
    short = Path(shutil.copytree(killed("planned"), tmp_path / "run"))
    plan = short / "plan.toml"
    plan.write_text(plan.read_text().replace("rounds = 6", "rounds = 7"))
    assert "the plan of" in resume(short, capsys, code=2)


def no_checkpoint(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoint")


def damaged_checkpoint(folder: Path) -> None:
    path = folder / "checkpoint" / "server-3.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def damaged_client(folder: Path) -> None:
    path = min((folder / "checkpoint").glob("client-*"))
    path.write_bytes(path.read_bytes()[:-1])


def other_data(folder: Path) -> None:
    (folder / "split.json").unlink()
    path = folder / "checkpoint" / "server-3.safetensors"
    tensors, header = atomic_files.read_tensors(path)
    atomic_files.write_tensors(path, tensors, {**header, "data": "other"})


def deployed(folder: Path) -> None:
    (folder / "deploy.toml").write_text("")


def nothing(folder: Path) -> None:
    pass


@pytest.mark.parametrize(("spoil", "rounds", "words"), [
    (nothing, "2", "has 3 rounds already"),
    (nothing, "0", "--rounds must be at least 1, not 0"),
    (nothing, "-1", "--rounds must be at least 1"),
    (nothing, "many", "invalid int value"),
    (no_checkpoint, "6", "has no sound checkpoint, so it cannot be continued; run its plan from the start with"),
    (damaged_checkpoint, "6", "has no sound checkpoint, so it cannot be continued"),
    (damaged_client, "6", "has no sound checkpoint"),
    (other_data, "6", "the data of"),
    (deployed, "6", "is a deployed run, and keeps its 3 rounds"),
])  # fmt: skip
def test_what_cannot_be_is_refused_and_nothing_is_changed(
    spoil: Callable[[Path], None], rounds: str, words: str, short: Path, capsys: Capture
) -> None:
    spoil(short)
    before = content(short)
    assert words in resume(short, capsys, "--rounds", rounds, code=2)
    assert content(short) == before
    read_finished(short)


def test_an_evaluation_that_only_the_shorter_run_makes_does_not_count(tmp_path: Path, capsys: Capture) -> None:
    """Rounds 3, 6 and the last. The fourth is in rounds.jsonl of the run that first ended there, and nowhere else."""
    every = ["--method", "fedavg", "--set", "run.eval_every=3"]
    whole, part = run(tmp_path / "whole", 8, *every), run(tmp_path / "part", 4, *every)
    resume(part, capsys, "--rounds", "8")
    assert timeless(part) == timeless(whole)
    weights, lines = outcome(part)
    assert {key for key in lines[3] if key.startswith("test_")} == {"test_accuracy", "test_loss"}  # type: ignore[attr-defined]
    lines[3] = {key: value for key, value in lines[3].items() if not key.startswith("test_")}  # type: ignore[attr-defined]
    assert (weights, lines) == outcome(whole)


@pytest.mark.slow
def test_a_run_cannot_end_where_it_was_not_evaluated(tmp_path: Path, capsys: Capture) -> None:
    every = ["--method", "fedavg", "--set", "run.eval_every=3"]
    part = run(tmp_path / "part", 4, *every)
    kill_on_the_way("training", part, 8)
    assert "has 5 rounds already" in resume(part, capsys, "--rounds", "5", code=2)
    resume(part, capsys, "--rounds", "6")
    assert read_finished(part)[0]["rounds"] == 6


def test_a_run_goes_on_computing_as_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """`auto` would compile a run of six rounds, and not one of three."""
    out = run(tmp_path / "run", 3, *SCAFFOLD)
    images = len(runner.prepare_experiment(load_plan(out)).dataset.train_y)
    task = runner.prepare_experiment(load_plan(out)).task
    each = choose.estimate_flops(load_plan(out), task, images) / 3
    monkeypatch.setattr(choose, "LONG", 4.5 * each)
    monkeypatch.setattr(choose, "WORTH_COMPILING", (type(task.model),))
    said = resume(out, capsys, "--rounds", "6")
    assert "continues as it was begun (blocks); a run of 6 rounds from the start would be computed otherwise" in said
    assert load_plan(out).machine.compile == "off"
    whole = run(tmp_path / "whole", 6, *SCAFFOLD, "--compile", "off")
    assert outcome(out) == outcome(whole)
    assert read_finished(out)[0]["computed"] == "blocks"
    assert "continues as it was begun" not in resume(out, capsys, "--rounds", "7"), "the plan says so now"


def test_killed_while_it_goes_on_computing_as_it_began(
    short: Path, made: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(choose, "LONG", 1.0)  # but it was begun when this was more
    monkeypatch.setattr(choose, "WORTH_COMPILING", (MLP,))
    monkeypatch.setattr(runner, "prepare_experiment", lambda plan, real=runner.prepare_experiment: real(eager(plan)))

    with monkeypatch.context() as patch:
        patch.setattr(runner, "run_rounds", stopped)
        assert main(["resume", str(short), "--rounds", "6"]) == 130
    assert load_plan(short).machine.compile == "off"
    resume(short, capsys)
    assert outcome(short) == outcome(made / "whole")


def stopped(*args: Any) -> Any:
    """In place of `runner.run_rounds`."""
    next(arg for arg in args if isinstance(arg, RoundsFile)).close()
    raise KeyboardInterrupt


def eager(plan: Plan) -> Plan:
    return replace(plan, machine=replace(plan.machine, compile="off"))


def test_the_report_of_a_run_that_is_getting_longer(killed: Callable[[str], Path]) -> None:
    (found,), problems = find_runs([killed("training")])
    assert found.state == "unfinished, 5/6 rounds"
    assert not problems


# Comparisons ----------------------------------------------------------------------------------------------------------

COMPARE = ["compare", *TINY, "--methods", "fedavg,scaffold", "--seeds", "2"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("compared")
    for name, rounds in (("short", "2"), ("whole", "4")):
        assert main([*COMPARE, "--rounds", rounds, "--out", str(base / name)]) == 0
    return base


def ends(folder: Path) -> dict[str, object]:
    return {str(path.parent.relative_to(folder)): outcome(path.parent) for path in folder.glob("*/*/summary.json")}


def test_a_comparison_is_continued(compared: Path, tmp_path: Path, capsys: Capture) -> None:
    out = Path(shutil.copytree(compared / "short", tmp_path / "run"))
    resume(out, capsys, "--rounds", "4")
    assert ends(out) == ends(compared / "whole")
    assert len(ends(out)) == 4
    assert (out / ORDER).read_bytes() == (compared / "whole" / ORDER).read_bytes()
    assert {summary["rounds"] for several in json.loads((out / "compare.json").read_text()).values()
            for summary in several} == {4}  # fmt: skip
    stamps = [path.stat().st_mtime_ns for path in out.glob("*/*/weights.safetensors")]
    resume(out, capsys, "--rounds", "4")
    assert [path.stat().st_mtime_ns for path in out.glob("*/*/weights.safetensors")] == stamps, "nothing to do"


def test_a_comparison_that_was_stopped_on_the_way(
    compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    out = Path(shutil.copytree(compared / "short", tmp_path / "run"))
    real, calls = runner.run_rounds, []

    def stop(*args: Any) -> Any:
        calls.append(args)
        return stopped(*args) if len(calls) == 2 else real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "run_rounds", stop)
        assert main(["resume", str(out), "--rounds", "4"]) == 130
    resume(out, capsys)
    assert ends(out) == ends(compared / "whole")


def test_a_comparison_with_a_run_that_cannot_be_continued(compared: Path, tmp_path: Path, capsys: Capture) -> None:
    out = Path(shutil.copytree(compared / "short", tmp_path / "run"))
    no_checkpoint(out / "scaffold" / "seed1")
    before = content(out)
    assert "scaffold/seed1 has no sound checkpoint" in resume(out, capsys, "--rounds", "4", code=2)
    assert "has 2 rounds already" in resume(out, capsys, "--rounds", "1", code=2)
    assert content(out) == before
