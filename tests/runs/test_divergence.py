"""A run that diverged says so, and exits with an error."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedptr import Classification, Samples
from fedptr.cli.main import main
from fedptr.runs.divergence import find_divergence

TASK = Classification(nn.Linear(2, 10), (2,), 10)
TEST = Samples(torch.randn(50, 2, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 10)


def records(accuracy: float, loss: float, n: int = 6, **more: Any) -> list[dict[str, Any]]:
    return [{"round": k, "test_accuracy": accuracy, "test_loss": loss, **more} for k in range(n)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (records(0.1, 50.0), True),
        (records(0.1, 3.2, n=10), True),
        (records(0.1, 3.2), False),  # hardly worse, for a few rounds
        (records(0.5, math.inf), True),
        (records(0.5, math.nan), True),
        (records(0.3, 50.0), False),  # better than guessing
        (records(0.1, 0.1), False),  # no worse than at the start
        (records(0.1, 50.0, n=4), False),  # too short to tell
        ([*records(0.1, 50.0), *records(0.6, 50.0, n=1)], False),
        (records(0.1, 50.0, personal_accuracy=0.9), False),  # clients use other models
        ([{"round": 1}], False),  # never evaluated
    ],
)
def test_what_counts_as_diverged(found: list[dict[str, Any]], expected: bool) -> None:
    assert bool(find_divergence(TASK, TEST, found)) is expected


def test_the_command_says_so_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    options = "--method fedavg --model mlp --width 64 --lr 3 --set local.clip=20 --rounds 11 --set machine.threads=1"
    assert main(["run", "--out", str(out), *options.split()]) == 1
    assert "fedavg diverged: accuracy is" in capsys.readouterr().err
    assert "at the start" in json.loads((out / "summary.json").read_text())["diverged"]
    assert main(["resume", str(out)]) == 1
    assert "fedavg diverged: accuracy is" in capsys.readouterr().err
