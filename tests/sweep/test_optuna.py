"""`fedptr sweep --optuna`: reproducible, and it resumes."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tiny_sweeps import TINY, results, sweep

from fedptr.jobs import run_queue
from fedptr.runs.rounds_file import Record
from fedptr.sweep.optuna_search import LOG

SEARCH = [*TINY, "--lr", "0.001..1", "--epochs", "1..3", "--set", "local.momentum=0,0.5"]


def test_without_optuna_it_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert sweep(*SEARCH, "--optuna", "2", out=tmp_path / "s") == 2
    error = capsys.readouterr().err
    assert "install 'fedptr[optuna]'" in error
    assert error.count("\n") == 1


def test_a_search_is_reproducible_and_keeps_to_its_ranges(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="fedptr[optuna] is not installed")
    for name in ("a", "b"):
        assert sweep(*SEARCH, "--optuna", "3", out=tmp_path / name) == 0
    assert sweep(*SEARCH, "--optuna", "3", "--draw-seed", "1", out=tmp_path / "c") == 0
    assert results(tmp_path / "a") == results(tmp_path / "b")
    assert results(tmp_path / "a")["settings"] != results(tmp_path / "c")["settings"]
    for entry in results(tmp_path / "a")["settings"]:
        there = entry["settings"]
        assert 0.001 <= there["local.lr"] <= 1
        assert there["local.epochs"] in (1, 2, 3)
        assert there["local.momentum"] in (0, 0.5)


@pytest.mark.slow
def test_a_search_that_is_stopped_ends_as_one_that_was_not(
    tmp_path: Path, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve trials, so that TPE has learned from ten; it is stopped in the middle of the eleventh's run."""
    pytest.importorskip("optuna", reason="fedptr[optuna] is not installed")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert sweep(*SEARCH, "--optuna", "12", out=whole) == 0
    assert len(results(whole)["settings"]) == 12
    counted.clear()
    counting = run_queue.resume_run

    def end_in_eleventh(plan: Any, folder: Path, show: Any, *rest: Any) -> Any:
        def look(record: Record) -> None:
            if len(counted) == 11 and record["round"] == 2:
                raise KeyboardInterrupt
            show(record)

        return counting(plan, folder, look, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(run_queue, "resume_run", end_in_eleventh)
        assert sweep(*SEARCH, "--optuna", "12", out=stopped) == 130
    with open(stopped / LOG, "ab") as log:
        log.write(b'{"op_code": 4, "wor')  # as a kill may leave it
    assert sweep(*SEARCH, "--optuna", "12", out=stopped) == 0
    assert sorted(counted.values()) == [1] * 11 + [2]
    assert results(stopped) == results(whole)
    counted.clear()
    assert sweep(*SEARCH, "--optuna", "5", out=stopped) == 0
    assert not counted, "a smaller search is a part of the larger one"
    assert len(results(stopped)["settings"]) == 5


def test_a_trial_that_fails_is_told_so(tmp_path: Path, counted: Counter[str]) -> None:
    pytest.importorskip("optuna", reason="fedptr[optuna] is not installed")
    hot = [*TINY, "--lr", "1e28..1e30", "--optuna", "2"]
    for _ in range(2):
        assert sweep(*hot, out=tmp_path / "s") == 1
        assert [entry["state"] for entry in results(tmp_path / "s")["settings"]] == ["failed", "failed"]
    assert set(counted.values()) == {1}, "Optuna knows that they failed"
