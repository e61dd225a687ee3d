"""A folder at which somebody looks is not in use, however long a busy machine lets the look take."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from fedptr.errors import UserError
from fedptr.runs import lock


def test_a_slow_look_does_not_keep_a_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / lock.NAME).touch()
    pauses: list[float] = []
    with open(tmp_path / lock.NAME) as looks:
        fcntl.flock(looks, fcntl.LOCK_SH)

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 10 * lock.TRIES:
                fcntl.flock(looks, fcntl.LOCK_UN)

        monkeypatch.setattr(lock.time, "sleep", pause)
        with lock.locked(tmp_path):
            assert lock.is_folder_in_use(tmp_path)
    assert len(pauses) == 10 * lock.TRIES
    assert not lock.is_folder_in_use(tmp_path)


def test_a_run_keeps_others_out_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(lock.time, "sleep", pauses.append)
    with lock.locked(tmp_path), pytest.raises(UserError, match="is in use by process"), lock.locked(tmp_path):
        pass
    assert len(pauses) < lock.TRIES
    with lock.locked(tmp_path):
        pass
