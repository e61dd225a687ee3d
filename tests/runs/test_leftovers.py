"""What killed processes leave behind is removed by the next one that holds the folder; nothing of a living one is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedptr.errors import UserError
from fedptr.runs.leftovers import is_process_alive
from fedptr.runs.lock import NAME, is_folder_in_use, locked, read_holder

LONG_AGO = 10**9  # seconds after 1970: in 2001

CONTENT = "precious"


@pytest.fixture
def dead() -> int:
    """The number of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not is_process_alive(process.pid)
    return process.pid


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CONTENT)
    return path


def test_leftovers_of_dead_processes_are_removed(tmp_path: Path, dead: int) -> None:
    left = [
        write(tmp_path / f".plan.toml.{dead}.tmp"),
        write(tmp_path / "checkpoint" / f".server-3.safetensors.{dead}.tmp"),
        write(tmp_path / "checkpoint" / f".server-3.safetensors.{os.getpid()}.tmp"),  # containers have few numbers
        write(tmp_path / "auxiliary" / f".round0001.png.{dead}.tmp"),
        write(tmp_path / "checkpoint" / "states-x" / "3.safetensors"),
    ]
    old = write(tmp_path / f".model.onnx.{dead}.tmp")
    os.utime(old, (LONG_AGO, LONG_AGO))
    kept = [
        write(tmp_path / f".plan.toml.{os.getppid()}.tmp"),  # a living process
        write(tmp_path / f".model.pt2.{dead}.tmp"),  # perhaps of an export on another machine
        write(tmp_path / f".notes.{dead}.tmp.txt"),
        write(tmp_path / ".mine.tmp"),
        write(tmp_path / "states-x" / "mine"),
        write(tmp_path / "other" / f".plan.toml.{dead}.tmp"),
        write(tmp_path / "checkpoint" / "client-3-1.safetensors"),
    ]
    with locked(tmp_path):
        pass
    assert not [path for path in [*left, old] if path.exists()]
    assert not (tmp_path / "checkpoint" / "states-x").exists()
    assert all(path.read_text() == CONTENT for path in kept)


def test_nothing_is_removed_while_another_process_holds_the_folder(tmp_path: Path, dead: int) -> None:
    with locked(tmp_path):
        path = write(tmp_path / f".plan.toml.{dead}.tmp")
        with pytest.raises(UserError, match="is in use by"), locked(tmp_path):
            pass
        assert path.exists()


def test_links_are_not_followed_when_something_is_removed(tmp_path: Path, dead: int) -> None:
    there = write(tmp_path / "elsewhere" / f".x.{dead}.tmp")
    states = write(tmp_path / "elsewhere" / "states-x" / "mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoint").symlink_to(tmp_path / "elsewhere")
    (run / f".plan.toml.{dead}.tmp").symlink_to(there)
    with locked(run):
        pass
    assert there.exists()
    assert states.exists()
    assert not (run / f".plan.toml.{dead}.tmp").is_symlink(), "the link itself is a leftover"


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    target = write(tmp_path / "target")
    run = tmp_path / "run"
    run.mkdir()
    (run / NAME).symlink_to(target)
    with pytest.raises(UserError, match="is not a plain file; remove it"), locked(run):
        pass
    assert target.read_text() == CONTENT
    assert not is_folder_in_use(run)
    assert read_holder(run) is None
    (run / NAME).unlink()
    (run / NAME).symlink_to(tmp_path / "new")
    with pytest.raises(UserError, match="is not a plain file"), locked(run):
        pass
    assert not (tmp_path / "new").exists()


def test_a_pipe_or_a_folder_in_its_place(tmp_path: Path) -> None:
    for make in (os.mkfifo, os.mkdir):
        make(tmp_path / NAME)
        with pytest.raises(UserError, match="is not a plain file; remove it"), locked(tmp_path):
            pass
        assert not is_folder_in_use(tmp_path)
        assert read_holder(tmp_path) is None, "and nobody waits"
        os.unlink(tmp_path / NAME) if make is os.mkfifo else os.rmdir(tmp_path / NAME)


def test_who_waits_does_not_empty_the_lock(tmp_path: Path) -> None:
    with locked(tmp_path):
        before = (tmp_path / NAME).read_text()
        with pytest.raises(UserError, match=f"process {os.getpid()} on"), locked(tmp_path):
            pass
        assert (tmp_path / NAME).read_text() == before
