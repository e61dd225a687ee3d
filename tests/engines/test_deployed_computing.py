"""How the server of a deployed run computes is part of the run, as on one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

from simulated_nodes import Lab
from small_plans import plan_for

from fedptr.atomic_files import read_tensors, write_tensors
from fedptr.cli.main import main
from fedptr.errors import UserError

pytestmark = pytest.mark.real


def stop_after_a_round(lab: Lab) -> None:
    def die(node: int, message: Any) -> Any:
        if (lab.folder / "rounds.jsonl").read_bytes() if (lab.folder / "rounds.jsonl").exists() else b"":
            raise MemoryError
        return message

    with pytest.raises(MemoryError):
        lab.serve(lab.grid(die))


def test_a_server_that_computes_another_way_is_refused_or_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Lab(tmp_path, plan_for("fedavg"))
    stop_after_a_round(lab)
    (newest,) = (tmp_path / "checkpoint").glob("server-*")
    tensors, header = read_tensors(newest)
    before = {**json.loads(header["computed"]), "torch": "1.0"}
    write_tensors(newest, tensors, {**header, "computed": json.dumps(before)})
    lines = (tmp_path / "rounds.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"torch was 1\.0 and is .* accept it with deploy\.recompute = true in "):
        lab.serve()
    assert (tmp_path / "rounds.jsonl").read_bytes() == lines
    assert main(["resume", str(tmp_path), "--recompute"]) == 2
    assert "set deploy.recompute = true" in capsys.readouterr().err
    with open(tmp_path / "deploy.toml", "a") as rules:
        rules.write("recompute = true\n")
    summary = lab.serve()
    assert [change["from"] for change in summary["recomputed"]] == [{"torch": "1.0"}]
    assert [record["round"] for record in lab.records()] == [1, 2, 3, 4]
