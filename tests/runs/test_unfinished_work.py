"""A run that is killed within a distillation goes on there, and ends with the bits of one that was left alone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from damaged_files import damage
from same_bits import outcome

from fedptr.atomic_files import read_tensors
from fedptr.cli.main import main
from fedptr.methods import dynafed
from fedptr.methods.ptr.soft_labels import soft_meta_gradient
from fedptr.runs.leftovers import UNFINISHED
from fedptr.runs.unfinished_work import UnfinishedWork

H, KILLED = 9, 5
RUN = [
    "run", "--method", "dynafed", "--dataset", "digits", "--clients", "3", "--model", "mlp", "--width", "8",
    "--rounds", "4", "--set", "machine.threads=1", "--set", "data.subset=200", "--set", "method.L=2",
    "--set", f"method.H={H}", "--set", "method.R=2", "--set", "method.ipc=2", "--set", "method.E=2",
]  # fmt: skip
SCRIPT = f"""
import os, signal, sys
from fedptr.cli import main as cli
from fedptr.core import long_work
from fedptr.methods import dynafed
long_work.OFTEN, long_work.PART = 0.0, 1e9
gradient, calls = dynafed.soft_meta_gradient, []
def dying(*args):
    if len(calls) == {KILLED}:
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(1)
    return gradient(*args)
dynafed.soft_meta_gradient = dying
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple]:
    """A DynaFed run that was killed in the middle of its distillation, and what it would have come to."""
    base = tmp_path_factory.mktemp("killed")
    assert main([*RUN, "--out", str(base / "whole")]) == 0
    assert not (base / "whole" / UNFINISHED).exists()
    done = subprocess.run([sys.executable, "-c", SCRIPT, *RUN, "--out", str(base / "part")], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    return base / "part", outcome(base / "whole")


@pytest.fixture
def part(killed: tuple[Path, tuple], tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed[0], tmp_path / "run"))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every outer step of this process."""
    taken: list[int] = []

    def counted(*args):
        taken.append(1)
        return soft_meta_gradient(*args)

    monkeypatch.setattr(dynafed, "soft_meta_gradient", counted)
    return taken


def kept_file(folder: Path) -> Path:
    (file,) = (folder / UNFINISHED).glob("*.safetensors")
    return file


def test_a_killed_distillation_goes_on_where_it_was(part: Path, killed, steps: list[int]) -> None:
    state, _ = read_tensors(kept_file(part))
    assert int(state["done"]) == KILLED == len(state["losses"])
    assert kept_file(part).name.startswith("round-2-server-")
    assert main(["resume", str(part)]) == 0
    assert outcome(part) == killed[1]
    assert len(steps) == H - KILLED
    assert not (part / UNFINISHED).exists(), "removed with the round's checkpoint"


def test_what_is_damaged_is_computed_again(part: Path, killed, steps: list[int]) -> None:
    file = kept_file(part)
    file.write_bytes(damage(file.read_bytes(), random.Random(3)))
    assert main(["resume", str(part)]) == 0
    assert outcome(part) == killed[1]
    assert len(steps) == H


def test_what_another_run_left_is_not_used(part: Path, killed, steps: list[int], monkeypatch) -> None:
    header = UnfinishedWork.header
    monkeypatch.setattr(UnfinishedWork, "header", lambda *args: {**header(*args), "split": "another"})
    assert main(["resume", str(part)]) == 0
    assert outcome(part) == killed[1]
    assert len(steps) == H


def test_force_replaces_a_folder_with_unfinished_work(part: Path, killed) -> None:
    assert main([*RUN, "--out", str(part), "--force"]) == 0
    assert outcome(part) == killed[1]


def test_a_disk_without_room_is_said_and_stops_nothing(tmp_path: Path, capsys) -> None:
    (tmp_path / UNFINISHED).write_text("in the way")
    work = UnfinishedWork(tmp_path, {})
    assert not work.keep("round-1-server-1", None, {"x": torch.ones(2)})
    assert "unfinished work cannot be kept in" in capsys.readouterr().err
    assert work.find("round-1-server-1", None) is None
    work.clear()
    assert (tmp_path / UNFINISHED).read_text() == "in the way"


def test_another_machine_keeps_nothing_in_a_folder_of_the_same_name(tmp_path: Path) -> None:
    assert not UnfinishedWork(tmp_path, {}, host="elsewhere").keep("work", None, {"x": torch.ones(2)})
    assert os.listdir(tmp_path) == []
