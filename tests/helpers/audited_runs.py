"""Small runs to audit, and what tests of audits share."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedptr.cli.main import main

Capture = pytest.CaptureFixture[str]
QUICK = ["--model", "mlp", "--width", "32", "--clients", "3", "--set", "machine.threads=1", "--batch", "32"]


def noise(path: Path) -> Path:
    """Images and labels that have nothing to do with each other: whatever is learned is learned by heart."""
    rng = np.random.default_rng(0)
    return saved(path, rng.integers(0, 255, (400, 1, 6, 6)), np.tile(np.arange(4), 100))


def mislabelled(path: Path) -> Path:
    """The class is the brightness; in the test set half of the labels are another class's."""
    rng, y = np.random.default_rng(0), np.tile(np.arange(4), 100)
    x = 60 * y.reshape(-1, 1, 1, 1) + rng.integers(0, 60, (400, 1, 6, 6))
    y[200:300] = (y[200:300] + 1) % 4
    return saved(path, x, y)


def saved(path: Path, x: np.ndarray, y: np.ndarray) -> Path:
    x = x.astype(np.uint8)
    np.savez(path, train_x=x[:200], train_y=y[:200], test_x=x[200:], test_y=y[200:])
    return path


def run(out: Path, data: Path, *more: str) -> Path:
    settings = ["run", "--method", "fedavg", "--dataset", str(data), "--alpha", "1", *QUICK, "--out", str(out), *more]
    assert main(settings) == 0
    return out


def audit(folder: Path, *more: str) -> dict[str, Any]:
    assert main(["audit", str(folder), "--jobs", "1", *more]) == 0
    found: dict[str, Any] = json.loads((folder / "audit" / "audit.json").read_text())
    return found


def copied(folder: Path, tmp_path: Path, name: str = "run") -> Path:
    return shutil.copytree(folder, tmp_path / name, ignore=shutil.ignore_patterns("audit"))


def stamps(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("audit/**/summary.json")}


def refused(capsys: Capture, *argv: str) -> str:
    capsys.readouterr()
    assert main(["audit", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    told = ("fedptr: note: ", "shadows are to be trained")
    (words,) = [line for line in err.splitlines() if not any(one in line for one in told)]
    assert words.startswith("fedptr: ")
    assert "Traceback" not in err
    return words
