"""`fedptr status`: every kind of folder, every state of a run, and one sentence where there is nothing to show."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_runs import made_run
from tiny_runs import HALF, rounds_written
from wait_until import PATIENCE, until

from fedptr.cli.main import main
from fedptr.core.federation import Run
from fedptr.errors import ClientError
from fedptr.runs import lock, runner
from fedptr.runs.archive import pack_runs
from fedptr.runs.lock import locked
from fedptr.runs.run_status import RunStatus, read_statuses

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def tables(method: str = "fedavg", seed: int = 0, rounds: int = 6) -> dict[str, Any]:
    return {"run": {"rounds": rounds, "seed": seed}, "method": {"name": method}, "split": {"clients": 2}}


def make(folder: str, done: int | None = None, **how: Any) -> Path:
    """A finished run, or one with `done` of its six rounds."""
    made_run(Path(folder), tables(**how), finished=done is None, rounds=done)
    return Path(folder)


def shown(capsys: Capture, folder: str, *more: str) -> str:
    assert main(["status", folder, *more]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert max(map(len, out.splitlines())) <= 80
    return out


def only(folder: str) -> RunStatus:
    (status,) = read_statuses(Path(folder))
    return status


# The states of a run


def test_a_finished_run(capsys: Capture) -> None:
    make("a")
    accuracy = json.loads(Path("a/rounds.jsonl").read_text().splitlines()[-1])["test_accuracy"]
    assert shown(capsys, "a") == f"finished · fedavg · round 6 of 6 · accuracy {accuracy:.2%}\n"


def test_a_stopped_run_and_a_running_one(capsys: Capture) -> None:
    make("a", done=2)
    text = shown(capsys, "a")
    assert text.startswith("stopped · fedavg · round 2 of 6 · accuracy ")
    assert " s left\ncontinue with `fedptr resume a`" in text
    with locked(Path("a")):
        text = shown(capsys, "a")
        assert text.startswith("running · fedavg · round 2 of 6 · accuracy ")
        assert f"\nprocess {os.getpid()} on " in text
        assert "resume" not in text
    assert only("a").state == "stopped", "its process is gone, and its lock file is not"


def test_the_time_left_is_by_the_last_rounds() -> None:
    made_run(
        Path("a"), tables(rounds=50), finished=False, rounds=30,
        extra=lambda plan, t: {"seconds": {"total": 1.0 if t <= 20 else 3.0}},
    )  # fmt: skip
    assert only("a").seconds_left == pytest.approx(60)


def test_a_run_that_is_to_become_longer_is_not_finished() -> None:
    out = make("a")
    (out / "plan.toml").write_text((out / "plan.toml").read_text().replace("rounds = 6", "rounds = 9"))
    assert (only("a").state, only("a").round, only("a").rounds) == ("stopped", 6, 9)


def test_accuracy_is_the_last_that_was_measured() -> None:
    out = make("a", done=3)
    *first, last = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    del last["test_accuracy"]
    (out / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (*first, last)))
    assert only("a").accuracy == first[-1]["test_accuracy"]


@pytest.mark.parametrize("name", ["plan.toml", "rounds.jsonl", "summary.json", "lock"])
def test_damaged_files_do_no_harm(name: str, capsys: Capture) -> None:
    out = make("a")
    (out / name).write_bytes(b"\xff\0{]")
    shown(capsys, "a")
    shown_json(capsys, "a")


# How a run fails, and what is left of it

RUN = ["run", *HALF, "--method", "fedavg", "--rounds", "3"]


def test_a_failed_run_says_why_until_it_is_resumed(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    with monkeypatch.context() as patch:

        def fail(*_: object) -> Iterator[Run]:
            raise ClientError("fedavg, round 1, client 0: its 'w'\nis not finite")
            yield

        patch.setattr(runner, "federate", fail)
        assert main([*RUN, "--out", "a"]) == 1
    capsys.readouterr()
    text = shown(capsys, "a")
    assert text.startswith("failed · fedavg · round 0 of 3 · accuracy –\n")
    assert "problem: fedavg, round 1, client 0: its 'w' is not finite\n" in text
    assert main(["resume", "a"]) == 0
    assert only("a").state == "finished"
    assert not Path("a/failure.txt").exists()
    assert main([*RUN, "--out", "a", "--force"]) == 0, "the file is one of ours"


def test_a_resume_that_cannot_start_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    make("a", done=2)
    Path("a/plan.toml").write_text(Path("a/plan.toml").read_text().replace('"digits"', '"none-such"'))
    assert main(["resume", "a"]) == 2
    assert only("a").state == "failed"
    assert "none-such is not a known dataset" in only("a").problem


@pytest.mark.slow
def test_a_process_that_lives_is_told_from_one_that_was_stopped() -> None:
    command = [sys.executable, "-m", "fedptr", *RUN[:-1], "100000", "--out", "a"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        until(lambda: rounds_written(Path("a")) > 0, "the first round")
        found = only("a")
        assert found.state == "running"
        assert found.process is not None
        assert found.process["pid"] == process.pid
        assert found.seconds_left is not None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 130
    finally:
        process.kill()
    assert only("a").state == "stopped"


# Folders with several runs


def test_a_comparison(capsys: Capture) -> None:
    for name, done in (("fedavg", None), ("fedprox", 2)):
        make(f"both/{name}/seed3", done, method=name, seed=3)
    Path("both/compare.toml").write_text(
        '[run]\nseed = 3\n[compare]\nmethods = ["fedavg", "fedprox", "scaffold"]\nseeds = 1\n'
    )
    with locked(Path("both")), locked(Path("both/fedprox/seed3")):
        text = shown(capsys, "both")
    assert text.startswith("3 runs: 1 finished, 1 running, 1 waiting\nboth: process ")
    rows = [line.split() for line in text.splitlines() if "seed3" in line]
    assert [row[:3] for row in rows] == [
        ["fedavg/seed3", "finished", "6/6"],
        ["fedprox/seed3", "running", "2/6"],
        ["scaffold/seed3", "waiting", "0/?"],
    ]


def test_a_run_with_its_audit(capsys: Capture) -> None:
    make("a")
    make("a/audit/shadows/federated-0123456789ab/shadow0", seed=1)
    make("a/audit/shadows/federated-0123456789ab/shadow1", 3, seed=2)
    with locked(Path("a/audit")):
        text = shown(capsys, "a")
    assert text.startswith("3 runs: 2 finished, 1 stopped\naudit: process ")
    assert "2 runs: 1 finished, 1 stopped" in shown(capsys, "a/audit")


def test_a_reproduction_with_packed_runs(capsys: Capture) -> None:
    cell = "out/runs/fedavg-digits-0123456789ab"
    make(f"{cell}/seed0")
    make(f"{cell}/seed1", seed=1)
    pack_runs(Path("out/runs"), remove=True)
    assert not Path(cell).exists()
    make("out/runs/fedprox-digits-0123456789ab/seed0", 3, method="fedprox")
    make("out/runs/fedprox-digits-0123456789ab/seed0.damaged", 2, method="fedprox")
    assert "3 runs: 2 finished, 1 stopped" in shown(capsys, "out")
    assert shown(capsys, f"{cell}/seed1").startswith("finished · fedavg · round 6 of 6")
    assert "2 runs: 2 finished" in shown(capsys, cell)
    with locked(Path("out/runs")):
        pass
    Path("out/table1").mkdir()
    with locked(Path("out/table1")):  # as while it runs
        text = shown(capsys, "out/table1")
    assert text.startswith("3 runs: 2 finished, 1 stopped\nout/table1: process ")
    names = [f"runs/fedavg-digits-0123456789ab/seed{k}" for k in range(2)]
    Path("out/table1/reproduce.json").write_text(json.dumps({"cells": [{"folders": names}]}))
    assert "2 runs: 2 finished" in shown(capsys, "out/table1")


def test_of_many_runs_the_finished_are_counted(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedptr.cli.status.MANY", 2)
    for k in range(3):
        make(f"runs/{k}", 2 if k == 1 else None, seed=k)
    text = shown(capsys, "runs")
    assert "3 runs: 2 finished, 1 stopped" in text
    assert sum("finished" in line for line in text.splitlines()[1:]) == 0
    assert "--all lists them" in text
    assert sum("finished" in line for line in shown(capsys, "runs", "--all").splitlines()[1:]) == 2


def test_programs_read_json(capsys: Capture) -> None:
    make("runs/a")
    make("runs/b", 2, seed=1)
    with locked(Path("runs/b")):
        found = json.loads(shown_json(capsys, "runs"))
    assert found["counts"] == {"finished": 1, "running": 1, "failed": 0, "stopped": 0, "waiting": 0}
    first, second = found["runs"]
    assert (first["folder"], first["state"], first["round"], first["rounds"]) == ("runs/a", "finished", 6, 6)
    assert second["process"]["pid"] == os.getpid()
    assert second["seconds_left"] > 0
    Path("runs/b/deploy.toml").touch()
    Path("runs/b/status.json").write_text('{"phase": "round 2"}')
    assert json.loads(shown_json(capsys, "runs/b"))["deployed"] == {"phase": "round 2"}


def shown_json(capsys: Capture, folder: str) -> str:
    assert main(["status", folder, "--json"]) == 0
    return capsys.readouterr().out


# Nothing to show, and nothing that is needed


@pytest.mark.parametrize(
    ("folder", "words"),
    [("none", "none does not exist"), ("empty", "empty holds no run"), ("plans", "plans holds no run")],
)
def test_one_sentence_where_there_is_no_run(folder: str, words: str, capsys: Capture) -> None:
    Path("empty").mkdir()
    Path("plans").mkdir()
    Path("plans/plan.toml").touch()  # as `fedptr init` writes it
    assert main(["status", folder]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"fedptr: {words}; name the folder of a run, a comparison, an audit or a reproduction\n"


def test_it_needs_neither_flower_nor_torch() -> None:
    make("runs/a")
    make("runs/b", 2, seed=1)
    script = """
import sys
sys.modules["flwr"] = sys.modules["torch"] = None  # an import fails
from fedptr.cli.main import main
sys.exit(main(["status", "runs"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "2 runs: 1 finished, 1 stopped" in done.stdout


def test_watching_ends_when_nothing_runs(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    make("a", done=2)
    held = locked(Path("a"))
    held.__enter__()
    monkeypatch.setattr("fedptr.cli.status.time.sleep", lambda _: held.__exit__(None, None, None))
    text = shown(capsys, "a", "--watch")
    assert [line.split()[0] for line in text.splitlines() if " · " in line] == ["running", "stopped"]


def test_a_look_does_not_keep_a_run_from_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks holds the lock for an instant."""
    Path("a").mkdir()
    pauses = []
    with open("a/lock", "w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(lock.time, "sleep", lambda s: (pauses.append(s), fcntl.flock(looking, fcntl.LOCK_UN)))
        with locked(Path("a")):
            pass
    assert len(pauses) == 1


def test_names_cannot_move_the_cursor_or_be_markup(tmp_path: Path, capsys: Capture) -> None:
    """Of folders, of methods and in the reason of a failure; also those that are not UTF-8."""
    make("all/[red]a\x1b[2J", done=2)
    hostile = make("all/b\udcff", done=2)
    (hostile / "failure.txt").write_text("[link=file:///etc]it\x1b]0;title\x07 failed")
    plan = (hostile / "plan.toml").read_text().replace('"fedavg"', '"\\u001b[31m[bold]fedavg"')
    (hostile / "plan.toml").write_text(plan)
    for folder in ("all", "all/b\udcff"):
        out = shown(capsys, folder)
        assert all(line.isprintable() for line in out.splitlines())
        assert "[link=file:///etc]it\\x1b]0;title\\x07 failed" in " ".join(out.split())
    assert "[red]a\\x1b[2J" in shown(capsys, "all")
    assert "[bold]fedavg" in shown(capsys, "all/b\udcff")
