"""What is started on a busy machine gets the time it needs; where it does not come, the message says what it said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import wait_until
from wait_until import until

from fedptr.engines.flower.setup import launch_run, simulate_run
from fedptr.engines.ray import pool
from fedptr.errors import UserError


class SlowRay:
    """Starts at the last attempt."""

    def __init__(self, attempts: int, words: str = f"The current node {pool.TOO_SLOW}.") -> None:
        self.left, self.words, self.stopped = attempts, words, 0

    def init(self, where: str, **settings: Any) -> None:
        self.left -= 1
        if self.left:
            raise Exception(self.words)  # as Ray does

    def shutdown(self) -> None:
        self.stopped += 1


def test_ray_is_started_again_where_the_machine_was_too_busy(capsys: pytest.CaptureFixture[str]) -> None:
    ray = SlowRay(3)
    pool.start_ray(ray, {})
    assert (ray.left, ray.stopped) == (0, 2)
    assert capsys.readouterr().err.count("as the machine is busy; trying again") == 2


def test_it_is_not_tried_for_ever_nor_after_another_error() -> None:
    with pytest.raises(Exception, match=pool.TOO_SLOW):
        pool.start_ray(SlowRay(pool.STARTS + 1), {})
    broken = SlowRay(3, "no room")
    with pytest.raises(Exception, match="no room"):
        pool.start_ray(broken, {})
    assert broken.left == 2


@pytest.mark.parametrize("said", ["", "the port is taken\n"])
def test_a_superlink_that_does_not_start_says_why(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.write_text(said)
    words = "it said last: the port is taken" if said else "it has said nothing"
    monkeypatch.setattr(simulate_run, "is_listening", lambda port: False)
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    ended.wait(wait_until.PATIENCE)
    with pytest.raises(UserError, match=f"ended with exit code 3 before it listened on port 7; {words}"):
        simulate_run.wait_for_superlink(ended, 7, log)
    monkeypatch.setattr(simulate_run, "START", -1.0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as waits:
        with pytest.raises(UserError, match=f"did not listen on port 7 within -1 s; {words}"):
            simulate_run.wait_for_superlink(waits, 7, log)
        waits.kill()


def test_a_superlink_that_does_not_answer_yet_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the run itself."""
    answers = [(1, "Connection to the SuperLink is unavailable."), (0, '{"success": true, "run-id": 5}')]
    calls: list[list[str]] = []

    def run(command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        code, said = answers[len(calls) - 1]
        return subprocess.CompletedProcess(command, code, said if not code else "", said if code else "")

    monkeypatch.setattr(launch_run.subprocess, "run", run)
    monkeypatch.setattr(launch_run.time, "sleep", lambda seconds: None)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "deploy.toml").write_text(f'[flower]\napp = "{tmp_path}/app"\nhome = "{tmp_path}/flower"\n')
    monkeypatch.setattr(launch_run, "write_flower_config", lambda server, home: None)
    launch_run.submit_run(tmp_path / "run")
    assert [command[1] for command in calls] == ["run", "run"]


def test_what_did_not_happen_is_told_with_the_ends_of_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_until, "PATIENCE", 0.0)
    (tmp_path / "a.log").write_text("\n".join(map(str, range(100))))
    (tmp_path / "b.log").write_text("")
    logs = [tmp_path / name for name in ("a.log", "b.log", "c.log")]
    with pytest.raises(AssertionError) as told:
        until(lambda: False, "the moon", logs=logs)
    words = str(told.value)
    assert words.startswith("the moon did not happen within 0 s\n--- the end of ")
    assert words.count("\n") == 1 + wait_until.LINES + 2 + 2
    assert "\n99\n" in words
    assert "\n(empty)\n" in words
    assert "No such file" in words
