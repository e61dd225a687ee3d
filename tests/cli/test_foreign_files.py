"""Devices, FIFOs, unknown home folders and numbers beyond reason at the command line: one sentence, exit code 2."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedptr.atomic_files import DamagedFileError, read_tensors
from fedptr.cli.main import main
from fedptr.core.predictor import ModelCard
from fedptr.data.split import Split
from fedptr.errors import UserError
from fedptr.runs.plan import load_plan
from fedptr.runs.predict_files import read_rows
from fedptr.runs.rounds_file import read_records
from fedptr.runs.run_status import find_expected_runs
from fedptr.runs.summary import read_result

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("elsewhere")
PARTS = ("train_x", "train_y", "test_x", "test_y")


def refused(capsys: Capture, *argv: str) -> str:
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert not Path("out").exists()
    return err


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full"])
def test_a_device_is_no_plan(device: str, capsys: Capture) -> None:
    err = refused(capsys, "run", device, "--out", "out")
    assert f"plan {device} cannot be read (it is a device, not a regular file); check the path" in err


def test_a_plan_has_a_sensible_size(capsys: Capture) -> None:
    with open("plan.toml", "wb") as file:
        file.truncate(1 << 40)
    err = refused(capsys, "run", "plan.toml", "--out", "out")
    assert "plan plan.toml cannot be read (it is longer than 1048576 bytes" in err


@pytest.mark.parametrize("option", ["--split", "PLAN"])
def test_a_fifo_is_refused_and_not_waited_for(option: str, capsys: Capture) -> None:
    os.mkfifo("fifo")
    argv = ["fifo"] if option == "PLAN" else [option, "fifo"]
    assert "cannot be read (it is a FIFO, not a regular file)" in refused(capsys, "run", *argv, "--out", "out")


def test_a_fifo_among_images(capsys: Capture) -> None:
    for part in ("train", "test"):
        for name in ("a", "b"):
            Path(f"own/{part}/{name}").mkdir(parents=True)
            Image.new("L", (8, 8)).save(f"own/{part}/{name}/1.png")
    os.mkfifo("own/train/a/2.png")
    err = refused(capsys, "run", "--dataset", "own", "--out", "out")
    assert "own/train/a/2.png cannot be read as an image (it is a FIFO, not a regular file)" in err


@pytest.mark.parametrize(
    "argv", [["--dataset", "~nouser/x.npz"], ["--dataset", "cifar10", "--data-dir", "~nouser/data"]]
)
def test_the_home_folder_of_nobody(argv: list[str], capsys: Capture) -> None:
    err = refused(capsys, "run", *argv, "--out", "out")
    assert "~nouser" in err
    assert "begins with the home folder of a user who is not known here; correct it" in err


@pytest.mark.parametrize("name", ["FEDPTR_CACHE", "FEDPTR_DATA"])
def test_the_home_folder_of_nobody_in_the_environment(
    name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez("own.npz", **dict.fromkeys(PARTS, np.zeros(3)))
    monkeypatch.setenv(name, "~nouser")
    data = "own.npz" if name == "FEDPTR_CACHE" else "cifar10"
    assert "home folder of a user who is not known here" in refused(capsys, "run", "--dataset", data, "--out", "out")


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("local.epochs=9223372036854775807", "local.epochs must be at most 100000"),
        ("local.epochs=9223372036854775808", "local.epochs must be at most 100000"),
        ("method.R=2147483647", "method.R must be at most 100000"),
        ("local.batch=9223372036854775807", "local.batch must be at most 2147483647"),
        ("run.rounds=99999999999999999999999", "run.rounds must be at most 2147483647"),
        ("run.seed=9223372036854775808", "run.seed must be less than 9223372036854775808"),
        ("local.lr=1e400", "local.lr must be a number, not inf"),
        ("local.lr=-inf", "local.lr must be a number, not -inf"),
        ("local.decay=nan", "local.decay must be a number, not nan"),
        ("local.lr=1" + "0" * 400, "local.lr must be a number, not 1000"),
        ("local.epochs=1" + "0" * 5000, "local.epochs must be a whole number"),
    ],
)
def test_numbers_beyond_what_the_code_can_use(assignment: str, words: str, capsys: Capture) -> None:
    assert words in refused(capsys, "run", "--set", assignment, "--out", "out")
    place, _, value = assignment.partition("=")
    section, key = place.split(".")
    Path("plan.toml").write_text(f"[{section}]\n{key} = {value}\n")
    err = refused(capsys, "run", "plan.toml", "--out", "out")
    assert words in err or "is not valid TOML" in err  # of 5000 digits
    assert len(err) < 400


@pytest.mark.parametrize("seeds", [10**23, 10**12])
def test_more_seeds_than_anybody_can_run(seeds: int, capsys: Capture) -> None:
    assert "at most" in refused(capsys, "compare", "--seeds", str(seeds), "--out", "out")
    Path("old").mkdir()
    Path("old/compare.toml").write_text(f'[compare]\nmethods = ["fedavg"]\nseeds = {min(seeds, 2**63 - 1)}\n')
    assert "old/compare.toml has no sound [compare] section" in refused(capsys, "resume", "old")


def test_seeds_stay_within_what_a_seed_can_be(capsys: Capture) -> None:
    last = str(2**63 - 1)
    err = refused(capsys, "compare", "--seed", last, "--seeds", "2", "--methods", "fedavg", "--out", "out")
    assert "run.seed must be less than" in err


def test_the_status_of_a_comparison_with_endless_seeds() -> None:
    Path("compare.toml").write_text('[compare]\nmethods = ["fedavg"]\nseeds = 1000000000000\n')
    assert len(list(find_expected_runs(Path()))) == 1000


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["reproduce", "figures", "--seeds", str(10**23)], "--seeds must be at most 1000"),
        (["theory", "--seeds", str(10**12)], "--seeds must be at most 1000"),
        (["resume", "runs", "--rounds", str(10**23)], "--rounds must be at most 2147483647"),
        (["deploy", "init", "x", "--nodes", "a", "--port", "65536"], "--port must be at most 65535, not 65536"),
        (["deploy", "init", "x", "--nodes", "a", "--days", str(10**9)], "--days must be at most 36500"),
        (["audit", "runs", "--shadows", str(10**23)], "--shadows must be at most 10000"),
        (["compare", "--seeds", "many"], "argument --seeds: invalid int value: 'many'"),
    ],
)
def test_options_that_count(argv: list[str], words: str, capsys: Capture) -> None:
    assert words in refused(capsys, *argv)


READERS = {
    "plan.toml": lambda folder: load_plan(folder),
    "model.json": ModelCard.load,
    "split.json": lambda folder: Split.load(folder / "split.json"),
    "tensors": lambda folder: read_tensors(folder / "tensors"),
    "rounds.jsonl": read_records,
    "summary.json": lambda folder: read_result(folder, 1),
    "x.npz": lambda folder: list(read_rows(None, folder / "x.npz")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", READERS)
def test_no_reader_of_a_folder_waits_for_a_fifo(name: str) -> None:
    os.mkfifo(name)
    with pytest.raises((UserError, DamagedFileError), match=r"FIFO|holds no plan"):
        READERS[name](Path())
