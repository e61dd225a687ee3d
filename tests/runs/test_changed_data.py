"""A run whose data changed is not resumed, however little of it changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedptr.cli.main import main
from fedptr.data.dataset import dataset_digest, sampled_digest
from fedptr.data.load import load_dataset

rng = np.random.default_rng(0)
ARRAYS = {
    "train_x": rng.integers(1, 255, (1000, 1, 4, 4), dtype=np.uint8),
    "train_y": np.arange(1000) % 2,
    "test_x": rng.integers(1, 255, (600, 1, 4, 4), dtype=np.uint8),
    "test_y": np.arange(600) % 2,
    "mean": np.array([128.0]),
    "std": np.array([70.0]),
}
OPTIONS = ["--method", "fedavg", "--model", "linear", "--batch", "100", "--clients", "2", "--partition", "iid"]


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ("train_x", [i for i in range(1000) if i % 3]),  # none of those that the earlier checksum looked at
        ("test_x", [i for i in range(600) if i % 2]),
        ("train_x", [1]),
        ("train_y", [0, 1]),
    ],
)
def test_a_changed_dataset_is_not_resumed(
    part: str, rows: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "mine.npz", tmp_path / "run"
    np.savez(data, **ARRAYS)
    assert main(["run", "--dataset", str(data), *OPTIONS, "--rounds", "1", "--out", str(out)]) == 0
    before = load_dataset(str(data))
    changed = ARRAYS[part].copy()
    changed[rows] = 1 - changed[rows] if part == "train_y" else 0
    np.savez(data, **{**ARRAYS, part: changed})
    after = load_dataset(str(data))
    assert dataset_digest(before) != dataset_digest(after)
    assert part == "train_y" or sampled_digest(before) == sampled_digest(after), "so the whole of it is hashed"
    capsys.readouterr()
    assert main(["resume", str(out), "--rounds", "2"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(("fedptr: the data of ", "fedptr: the split of "))  # labels decide both
    assert f"{out} changed since the run was started" in said
    np.savez(data, **ARRAYS)
    assert main(["resume", str(out), "--rounds", "2"]) == 0
