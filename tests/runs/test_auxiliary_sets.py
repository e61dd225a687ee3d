"""The sets that are kept for audits: after kills they are those of a run left alone, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedptr.cli.main import main
from fedptr.core.client_states import ClientStates
from fedptr.core.federation import Run
from fedptr.runs import auxiliary_sets

SETTINGS = {
    "method.H": 1, "method.R": 2, "method.ipc": 1, "method.m": 1, "output.sets": 2, "machine.threads": 1,
    "run.checkpoint_every": 3,
}  # fmt: skip
WORLD = ["--preset", "paper", "--model", "mlp", "--width", "8", "--batch", "32", "--subset", "200", "--clients", "3"]


def test_what_clients_sent_is_kept_by_client(tmp_path: Path) -> None:
    X, owner = torch.arange(20.0).reshape(5, 1, 2, 2), torch.tensor([0, 0, 3, 3, 3])
    server = {"x": torch.zeros(1), "X": X, "y": torch.arange(5), "owner": owner}
    auxiliary_sets.keep_sets(Run(1, server, ClientStates({0: {}})), tmp_path, every=1, total=2)
    assert [path.name for path in (tmp_path / "auxiliary").iterdir()] == ["round0001.safetensors"], "no start of any"
    kept = auxiliary_sets.load_sets(tmp_path)[1]
    assert sorted(kept) == ["client0", "client3"]
    assert torch.equal(kept["client3"]["X"], X[2:])
    assert kept["client3"]["y"].tolist() == [2, 3, 4]


def run(out: Path, method: str) -> int:
    more = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    asked = ["--method", method, "--participation", "0.7", "--rounds", "5"]
    return main(["run", *WORLD, *asked, *more, "--out", str(out)])


def files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "auxiliary").iterdir()}


@pytest.mark.parametrize("method", [pytest.param("fedptr", marks=pytest.mark.slow), "fedptr-s"])
def test_kills_do_not_change_them(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path / "whole", method) == 0
    expected = files(tmp_path / "whole")
    assert len(expected) > 3
    real, calls = auxiliary_sets.write_sets, []

    def killed(*args: Any) -> None:
        calls.append(args)
        if len(calls) in (1, 4):
            raise KeyboardInterrupt
        real(*args)
        if len(calls) == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(auxiliary_sets, "write_sets", killed)
    code, kills = run(tmp_path / "run", method), 0
    while code == 130:
        kills += 1
        code = main(["resume", str(tmp_path / "run")])
    assert code == 0
    assert kills == 3
    assert files(tmp_path / "run") == expected
