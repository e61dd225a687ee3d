"""Bars on a terminal: several at a time, also in threads, and none of them stays."""

from __future__ import annotations

import sys
import threading

import pytest

from fedptr.messages import BARS, progress_bar
from fedptr.runs.progress import show_progress


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def test_bars_within_a_run_are_lines_of_the_same_display(terminal: None) -> None:
    seen = []
    with show_progress("feddm", 2) as show:
        outer = BARS.shown

        def work(name: str) -> None:
            with progress_bar(name, 2) as advance:
                advance(1)
                assert BARS.shown is outer
                seen.append({task.description: task.completed for task in outer.tasks})

        threads = [threading.Thread(target=work, args=(f"client {i}",)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        show({"round": 1, "test_accuracy": 0.5})
        assert [(task.description, task.completed) for task in outer.tasks] == [("feddm", 1)]
    assert BARS.shown is None
    assert len(seen) == 3
    assert all(one["feddm"] == 0 for one in seen)
    assert {name for one in seen for name in one} == {"feddm", "client 0", "client 1", "client 2"}


def test_a_bar_alone_shows_itself_and_goes(terminal: None) -> None:
    with progress_bar("unpacking", None) as advance:
        advance(3)
        assert [task.completed for task in BARS.shown.tasks] == [3]
    assert BARS.shown is None


def test_a_failure_within_takes_the_bars_away(terminal: None) -> None:
    with pytest.raises(ValueError, match="unplugged"), progress_bar("decoding", 2):
        raise ValueError("unplugged")
    assert BARS.shown is None


def test_without_a_terminal_there_is_none() -> None:
    with progress_bar("unpacking", 2) as advance:
        advance(1)
        assert BARS.shown is None
