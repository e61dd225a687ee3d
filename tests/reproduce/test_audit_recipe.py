"""Table 10: its runs are audited, seeds share shadows, and its numbers are the audits'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import smoke_recipe

from fedptr.audit.options import SCALES
from fedptr.cli.main import main
from fedptr.reproduce.recipe import load_recipe, read_common


def stamps(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}


def smoke(out: Path, *more: str) -> int:
    return smoke_recipe.smoke("table10", out, "--jobs", "1", *more)


def test_the_papers_numbers() -> None:
    recipe = load_recipe("table10")
    assert [column.name for column in recipe.columns] == ["fedavg", "feddyn", "fedptr", "fedptr-s", "fedptr-linear"]
    assert [row.paper for row in recipe.rows] == [
        (56.37, 61.67, 57.46, None, None),
        (61.06, 68.29, 65.59, None, None),
        (None, None, None, None, None),
    ]
    plan = recipe.make_plan(recipe.rows[0], recipe.columns[0], "paper", 0)
    assert (plan.data.name, plan.split.alpha, plan.run.participation) == ("cifar100", 0.04, 1.0)
    assert set(SCALES) == set(read_common()["scales"]) | {"paper"}


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke(tmp_path, "--seeds", "2", "--only", "feddyn") == 0
    assert len(stamps(tmp_path)) == 2 * 2 + 2 * 2, "two seeds of two methods, which share two shadows a method"
    found = json.loads((tmp_path / "table10" / "reproduce.json").read_text())
    assert found["measure"].startswith("Accuracy of the attack")
    assert len(found["cells"]) == 6
    attack = {row.label: row.attack for row in load_recipe("table10").rows}
    for cell in found["cells"]:
        for seed, folder in enumerate(cell["folders"]):
            audit = json.loads((tmp_path / folder / "audit" / "audit.json").read_text())
            numbers = audit["attacks"][attack[cell["row"]]]
            assert cell["accuracies"][str(seed)] == pytest.approx(100 * numbers["accuracy"])
            assert numbers.get("shadows", 2) == 2
    text = (tmp_path / "table10" / "table.md").read_text()
    assert "Accuracy of the attack (%)" in text
    assert "(61.67)" in text
    assert "(+5.30)" not in text, "digits are not compared with CIFAR-100"
    assert "Every audit" in text
    assert (
        text.count("| lira online (2 shadows) |")
        == text.count("| lira offline (2 shadows) |")
        == text.count("| loss |")
        == 4
    )
    assert "feddyn 2 in" in text, "what its shadows cost"
    assert (tmp_path / "table10" / "curves.png").stat().st_size > 10_000
    page = (tmp_path / "table10" / "report.html").read_text()
    assert "Accuracy of the attack" in page
    before = stamps(tmp_path)
    assert smoke(tmp_path, "--seeds", "2", "--only", "feddyn", "--no-runs") == 0
    assert json.loads((tmp_path / "table10" / "reproduce.json").read_text()) == found
    assert smoke(tmp_path, "--seeds", "2", "--only", "feddyn") == 0
    assert stamps(tmp_path) == before
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_an_audit_that_is_there_is_not_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results that were committed have no models: only their audits."""
    assert smoke(tmp_path, "--seeds", "1", "--only", "fedavg") == 0
    (run,) = tmp_path.glob("runs/*/seed0")
    (run / "weights.safetensors").unlink()
    first, before = (tmp_path / "table10" / "table.csv").read_text(), (run / "audit" / "audit.json").stat()
    capsys.readouterr()
    assert smoke(tmp_path, "--seeds", "1", "--only", "fedavg") == 0
    assert "audit 1 of" not in capsys.readouterr().err
    assert (run / "audit" / "audit.json").stat().st_mtime_ns == before.st_mtime_ns
    assert (tmp_path / "table10" / "table.csv").read_text() == first
    (run / "audit" / "audit.json").unlink()
    assert smoke(tmp_path, "--seeds", "1", "--only", "fedavg") == 1
    assert "weights.safetensors cannot be read" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_not_audited_does_not_count(tmp_path: Path) -> None:
    assert smoke(tmp_path, "--seeds", "1", "--only", "fedavg") == 0
    (place,) = tmp_path.glob("runs/*/seed0/audit/audit.json")
    place.unlink()
    assert smoke(tmp_path, "--seeds", "1", "--only", "fedavg", "--no-runs") == 0
    found = json.loads((tmp_path / "table10" / "reproduce.json").read_text())
    assert all("mean" not in cell for cell in found["cells"])


@pytest.mark.slow
def test_what_is_audited_otherwise_does_not_count(tmp_path: Path) -> None:
    assert smoke(tmp_path, "--seeds", "1", "--only", "fedavg") == 0
    (run,) = tmp_path.glob("runs/*/seed0")
    first = (tmp_path / "table10" / "table.csv").read_text()
    for more in (["--target", "half"], ["--seed", "9"], ["--examples", "60"]):
        assert main(["audit", str(run), "--attack", "loss", "--scale", "smoke", "--force", *more]) == 0
        assert smoke(tmp_path, "--seeds", "1", "--only", "fedavg", "--no-runs") == 0
        found = json.loads((tmp_path / "table10" / "reproduce.json").read_text())
        assert all("mean" not in cell for cell in found["cells"]), more
    assert smoke(tmp_path, "--seeds", "1", "--only", "fedavg") == 0
    assert (tmp_path / "table10" / "table.csv").read_text() == first
    assert main(["audit", str(run), "--attack", "lira", "--shadows", "4", "--examples", "200"]) == 0
    better = (run / "audit" / "audit.json").read_text()
    assert smoke(tmp_path, "--seeds", "1", "--only", "fedavg") == 0
    assert (tmp_path / "table10" / "table.csv").read_text() == first, "all cells are audited alike"
    assert better in [path.read_text() for path in (run / "audit").glob("audit-whole-*.json")], "but it is not lost"
