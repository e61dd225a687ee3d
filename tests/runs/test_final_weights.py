"""The final weights: plain safetensors, checked by whoever reads them, and made again from the last checkpoint."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from fedptr import atomic_files
from fedptr.cli.main import main
from fedptr.core.federation import federate
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.errors import UserError
from fedptr.methods import FedAvg
from fedptr.report.find_runs import find_runs
from fedptr.runs.summary import read_finished
from fedptr.runs.trained_model import load_model

Capture = pytest.CaptureFixture[str]
WEIGHTS, BEST = "weights.safetensors", "best.safetensors"
WORLD = ["--preset", "paper", "--model", "mlp", "--width", "8", "--batch", "32", "--subset", "200", "--clients", "3"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "run"
    more = ["--threads", "1", "--method", "fedavg", "--rounds", "3", "--set", "output.best=true"]
    assert main(["run", *WORLD, *more, "--out", str(out)]) == 0
    return out


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def break_file(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink() if how == "lost" else path.write_bytes({"cut": content[:-5], "empty": b"", "flipped": content}[how])


def resume(folder: Path, capsys: Capture) -> str:
    capsys.readouterr()
    assert main(["resume", str(folder)]) == 0
    return capsys.readouterr().err


def test_they_are_plain_safetensors_with_a_checksum(run: Path) -> None:
    tensors = safetensors.torch.load_file(run / WEIGHTS)
    assert all(isinstance(value, torch.Tensor) for value in tensors.values())
    with safe_open(run / WEIGHTS, "pt") as file:
        told = file.metadata()
    assert told["weights_sha256"] == read_finished(run)[0]["weights_sha256"]
    assert atomic_files.read_tensors(run / WEIGHTS)[0].keys() == tensors.keys()
    assert (run / WEIGHTS).stat().st_mode & 0o777 == (run / "plan.toml").stat().st_mode & 0o777


@pytest.mark.parametrize("how", ["lost", "cut", "empty", "flipped"])
def test_resume_makes_them_again(how: str, run: Path, capsys: Capture) -> None:
    whole = (run / WEIGHTS).read_bytes()
    others = {path: path.read_bytes() for path in run.glob("*.json*")}
    break_file(run / WEIGHTS, how)
    with pytest.raises(UserError, match=f"make it again with `fedptr resume {run}`"):
        load_model(run)
    assert f"{run / WEIGHTS} was made again from the last checkpoint" in resume(run, capsys)
    assert (run / WEIGHTS).read_bytes() == whole
    assert others == {path: path.read_bytes() for path in others}, "and nothing else was touched"
    assert "was made again" not in resume(run, capsys)


def test_weights_of_another_run_are_noticed(run: Path, tmp_path: Path, capsys: Capture) -> None:
    whole = (run / WEIGHTS).read_bytes()
    tensors = {name: value + 1 for name, value in safetensors.torch.load_file(run / WEIGHTS).items()}
    atomic_files.write_tensors(run / WEIGHTS, tensors, {"weights_sha256": "of another"})
    assert "holds another model" in resume(run, capsys)
    assert (run / WEIGHTS).read_bytes() == whole


def test_without_a_checkpoint_it_is_said(run: Path, capsys: Capture) -> None:
    shutil.rmtree(run / "checkpoint")
    break_file(run / WEIGHTS, "flipped")
    assert "does not hold it; run its plan again" in resume(run, capsys)
    with pytest.raises(UserError, match=r"damaged or lost .* run its plan again"):
        load_model(run)


def test_a_run_from_an_archive_has_not_lost_them(run: Path, capsys: Capture) -> None:
    """An archive may hold checkpoints, but neither weights nor model.json."""
    for name in (WEIGHTS, BEST, "model.json"):
        (run / name).unlink()
    said = resume(run, capsys)
    assert "damaged" not in said
    assert "made again" not in said
    assert find_runs([run])[1] == []


def test_the_report_names_them_and_shows_the_run(run: Path, tmp_path: Path, capsys: Capture) -> None:
    assert find_runs([run])[1] == []
    break_file(run / WEIGHTS, "flipped")
    (found,), (problem,) = find_runs([run])
    assert found.state == "finished"
    assert problem.startswith(f"{run / WEIGHTS} is damaged or lost (weights.safetensors does not match its checksum);")
    capsys.readouterr()
    assert main(["report", str(run), "-o", str(tmp_path / "report.html")]) == 0
    assert f"`fedptr resume {run}`" in capsys.readouterr().err
    (run / WEIGHTS).unlink()
    assert len(find_runs([run])[1]) == 1, "model.json shows that they are lost"


@pytest.mark.parametrize("command", ["audit", "predict", "export"])
def test_commands_that_read_them_refuse_what_is_damaged(
    command: str, run: Path, tmp_path: Path, capsys: Capture
) -> None:
    break_file(run / WEIGHTS, "flipped")
    more = {"audit": [], "predict": [str(tmp_path / "x.png")], "export": ["--format", "torch"]}[command]
    assert main([command, str(run), *more]) == 2
    assert f"make it again with `fedptr resume {run}`" in capsys.readouterr().err


def test_a_comparison_makes_them_again(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "compared"
    assert main(["compare", *WORLD, "--threads", "1", "--methods", "fedavg", "--rounds", "1", "--out", str(out)]) == 0
    path = out / "fedavg" / "seed0" / WEIGHTS
    whole = path.read_bytes()
    path.unlink()
    resume(out, capsys)
    assert path.read_bytes() == whole


def test_files_of_earlier_versions_have_no_checksum(run: Path, capsys: Capture) -> None:
    expected = load_model(run).state_dict()
    tensors = safetensors.torch.load_file(run / WEIGHTS)
    (run / WEIGHTS).write_bytes(safetensors.torch.save(tensors))
    assert all(torch.equal(value, expected[name]) for name, value in load_model(run).state_dict().items())
    assert "was made again" not in resume(run, capsys)
    assert find_runs([run])[1] == []
    break_file(run / WEIGHTS, "flipped")
    with pytest.raises(UserError, match="sha256 does not fit"):
        load_model(run)


def test_the_best_round_is_made_again_if_it_was_the_last(run: Path, capsys: Capture) -> None:
    whole, best = (run / BEST).read_bytes(), read_finished(run)[0]["best"]
    break_file(run / BEST, "flipped")
    said = resume(run, capsys)
    if best["rounds"] == 3:
        assert (run / BEST).read_bytes() == whole
    else:
        assert f"{run / BEST} is damaged or lost" in said


def test_the_best_round_of_a_run_that_goes_on(run: Path, capsys: Capture) -> None:
    accuracies = [json.loads(line)["test_accuracy"] for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert accuracies[2] > max(accuracies[:2]), "or the test tests nothing"
    (run / BEST).unlink()
    assert main(["resume", str(run), "--rounds", "4"]) == 0
    assert "was made again from the checkpoint" in capsys.readouterr().err
    assert load_model(run, best=True)


def test_a_saved_model_is_checked_too(world: Any, tmp_path: Path) -> None:
    """`run.save` writes no summary: only the file's own checksum can tell."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    task = Classification(network, (4,), 2)
    x, y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    *_, last = federate(FedAvg(), task, [Samples(x, y)], Samples(x, y))
    last.save(tmp_path / "model")
    load_model(tmp_path / "model", network=network)
    break_file(tmp_path / "model" / WEIGHTS, "flipped")
    with pytest.raises(UserError, match="does not match its checksum"):
        load_model(tmp_path / "model", network=network)


def test_every_file_is_flushed_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename may reach the disk before the content does."""
    seen: list[tuple[str, Any]] = []
    sync, rename = os.fsync, os.replace

    def flush(descriptor: int) -> None:
        seen.append(("flush", os.fstat(descriptor).st_ino))
        sync(descriptor)

    def move(source: Path, target: Path) -> None:
        seen.append(("rename", os.stat(source).st_ino))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", move)
    with atomic_files.replace_atomically(tmp_path / "file") as scratch:
        scratch.write_bytes(b"content")
    number, folder = (tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino
    assert seen == [("flush", number), ("rename", number), ("flush", folder)]
