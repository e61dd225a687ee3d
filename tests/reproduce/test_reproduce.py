"""Recipes: they say what the paper says, their cells survive anything, and what comes out is what the runs gave."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from smoke_recipe import smoke
from wait_until import PATIENCE, until

from fedptr import methods
from fedptr.cli.main import main
from fedptr.data.sources import SIZES
from fedptr.jobs.run_queue import count_work
from fedptr.reproduce import recipe as recipes
from fedptr.reproduce.recipe import find_reductions, fingerprint, load_recipe, make_cells, recipe_names
from fedptr.reproduce.scores import SCORES
from fedptr.reproduce.verdict import judge_gap
from fedptr.stats import Interval, compute_gap, compute_interval

TABLES = [f"table{n}" for n in range(1, 13)]
FIGURES = [f"figure{n}" for n in range(1, 7)]
TRAINED = [name for name in recipe_names() if load_recipe(name).columns]
PLAIN = [name for name in TRAINED if load_recipe(name).kind != "audit"]  # test_audit_recipe.py has the others


def test_every_table_and_figure_has_a_recipe() -> None:
    assert set(TABLES + FIGURES) <= set(recipe_names())
    assert recipe_names()[:3] == ["table1", "table2", "table3"]


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("scale", recipes.SCALES)
def test_every_cell_is_a_sound_plan(name: str, scale: str) -> None:
    recipe = load_recipe(name)
    assert recipe.reference in {column.name for column in recipe.columns}
    for row in recipe.rows:
        assert len(row.paper) == len(recipe.columns)
        for column in recipe.columns:
            plan = recipe.make_plan(row, column, scale, seed=3)
            assert plan.run.seed == 3
            assert plan.split.seed == name.startswith("tuning"), "the partition is the same for all seeds"
            if scale == "paper" and not name.startswith(("tuning", "natural")):  # of which the paper knows nothing
                assert (plan.model.width, plan.local.batch, plan.data.subset) == (128, 500, 0)
                assert plan.local.lr == 0.01 or name.startswith("personalised"), "which the paper has no numbers for"
            if plan.data.name in SIZES:
                samples = plan.data.subset or math.prod(SIZES[plan.data.name])
                assert plan.split.clients * plan.split.min_size <= samples, "else it cannot be split"


@pytest.mark.parametrize("name", TRAINED)
def test_wherever_fedptr_is_compared_the_control_without_auxiliary_data_is_too(name: str) -> None:
    recipe = load_recipe(name)
    compared = {recipe.make_plan(recipe.rows[0], column, "cpu", 0).method.name for column in recipe.columns}
    assert "fedptr-linear" in compared or not compared & {"fedptr", "fedptr-s", "naive"} or len(recipe.columns) == 1


def test_the_papers_own_settings() -> None:
    recipe = load_recipe("table1")
    assert [column.name for column in recipe.columns[:7]] == methods.paper_methods()
    assert recipe.columns[7].name == "fedptr-linear"
    assert len(recipe.rows) == 18
    row = next(row for row in recipe.rows if row.tags == ("p30", "a004", "cifar100"))
    plan = recipe.make_plan(row, recipe.columns[5], "paper", 0)
    assert (plan.run.participation, plan.split.alpha, plan.data.name, plan.run.rounds) == (0.3, 0.04, "cifar100", 1000)
    assert (plan.method.H, plan.method.R, plan.method.lam, plan.method.K) == (20, 10, 0.05, 5)  # type: ignore[attr-defined]
    assert row.paper[:7] == (32.95, 32.87, 37.46, 36.82, 37.57, 37.49, 38.21)
    assert not find_reductions(recipe, "paper")
    assert find_reductions(recipe, "cpu")["model.width"] == ([128], [32])
    assert find_reductions(recipes.replace(recipe, rounds=60), "cpu")["run.rounds"] == ([200, 400, 1000], [60])
    assert find_reductions(load_recipe("figure5"), "cpu")["method.name"] == (["fedptr"], ["fedptr-s"]), "it is said"


def test_what_a_column_is_about_is_not_reduced() -> None:
    recipe = load_recipe("table6")
    plans = [recipe.make_plan(recipe.rows[0], column, "cpu", 0) for column in recipe.columns[:4]]
    assert [plan.method.H for plan in plans] == [5, 10, 20, 30]  # type: ignore[attr-defined]


def test_recipes_share_the_runs_they_have_in_common(tmp_path: Path) -> None:
    one, two = (
        {cell.folder for cell in make_cells(load_recipe(name), "cpu", 3, tmp_path)} for name in ("table1", "table12")
    )
    assert len(one & two) == 3 * 4 * 3, "FedAvg, FedPTR, FedPTR-S and the control on three datasets, three seeds"


def test_a_run_is_known_by_its_experiment(tmp_path: Path) -> None:
    recipe = load_recipe("table4")
    first = recipe.make_plan(recipe.rows[0], recipe.columns[0], "cpu", 0)
    other = recipe.make_plan(recipe.rows[0], recipe.columns[0], "cpu", 1)
    assert fingerprint(first) == fingerprint(other)
    assert fingerprint(first) != fingerprint(recipe.make_plan(recipe.rows[0], recipe.columns[1], "cpu", 0))
    assert count_work(first) > 0


def test_only_narrows_rows_and_columns() -> None:
    recipe = load_recipe("table1").select(["cifar10", "cifar100", "a001", "p100"])
    assert [row.tags for row in recipe.rows] == [("p100", "a001", "cifar10"), ("p100", "a001", "cifar100")]
    assert len(recipe.columns) == 10
    recipe = load_recipe("table1").select(["feddyn", "p50", "a004", "fmnist"])
    assert [column.name for column in recipe.columns] == ["fedavg", "feddyn"], "and what it is compared with"
    assert recipe.rows[0].paper == (81.75, 80.71)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["table99"], "did you mean"),
        (["table1", "--only", "cifar11"], "did you mean --only cifar10"),
        (["table1", "--only", "tiny"], "is not a tag or a column of table1"),
        (["table1", "--seeds", "0"], "at least 1"),
        (["table1", "--scale", "huge"], "invalid choice"),
    ],
)
def test_bad_input_is_one_sentence(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *args]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in recipe_names())


@pytest.mark.parametrize("name", [PLAIN[0], *(pytest.param(name, marks=pytest.mark.slow) for name in PLAIN[1:])])
def test_every_recipe_runs(name: str, tmp_path: Path) -> None:
    """Its first row, as all have the same columns; `smoke` takes seconds."""
    recipe = load_recipe(name)
    kinds = recipes.read_common()["tags"]
    only = ",".join(tag for tag in recipe.rows[0].tags if kinds[tag])
    assert smoke(name, tmp_path, "--seeds", "1", "--only", only) == 0
    found = json.loads((tmp_path / name / "reproduce.json").read_text())
    assert found["scale"] == "smoke"
    assert found["reduced"]["run.rounds"]["here"] == [5]
    assert len(found["cells"]) == len(recipe.columns)
    for cell in found["cells"]:
        (folder,) = cell["folders"]
        summary = json.loads((tmp_path / folder / "summary.json").read_text())
        rounds = [json.loads(line) for line in (tmp_path / folder / "rounds.jsonl").read_text().splitlines()]
        assert cell["mean"] == pytest.approx(100 * SCORES[recipe.score].compute(summary, rounds))
        assert cell["weights_sha256"][str(recipe.first_seed)] == summary["weights_sha256"]
        assert cell["seconds"] > 0
        assert len(list((tmp_path / folder / "checkpoint").glob("server-*"))) == 1, "to be continued from"
    assert (tmp_path / name / "curves.png").stat().st_size > 5000


def test_the_splits_of_the_paper_are_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table11", "--out", str(tmp_path)]) == 0
    assert {row["verdict"] for row in json.loads((tmp_path / "table11" / "splits.json").read_text())} == {"exactly"}


def folders(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*/summary.json")}


def test_what_is_finished_is_never_run_again(tmp_path: Path) -> None:
    assert smoke("figure6", tmp_path, "--seeds", "1", "--only", "cifar10,a001") == 0
    before = folders(tmp_path)
    assert len(before) == 4
    assert smoke("figure6", tmp_path, "--seeds", "2", "--only", "cifar10,a001") == 0
    after = folders(tmp_path)
    assert len(after) == 8
    assert all(after[path] == stamp for path, stamp in before.items())


@pytest.mark.slow
def test_a_part_takes_nothing_from_the_table(tmp_path: Path) -> None:
    assert smoke("table7", tmp_path, "--seeds", "1") == 0
    whole = (tmp_path / "table7" / "table.md").read_text()
    assert smoke("table7", tmp_path, "--seeds", "1", "--only", "once") == 0
    assert (tmp_path / "table7" / "table.md").read_text() == whole
    assert smoke("table7", tmp_path, "--seeds", "2", "--only", "once") == 0
    more = (tmp_path / "table7" / "table.md").read_text()
    assert "[n]: only n of the 2 seeds are finished." in more
    assert len(more.splitlines()) > len(whole.splitlines()) - 3


def test_a_damaged_cell_is_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke("table7", tmp_path, "--seeds", "1", "--only", "once") == 0
    first = json.loads((tmp_path / "table7" / "reproduce.json").read_text())
    hit = min(tmp_path.glob("runs/*/seed0"))
    lines = (hit / "rounds.jsonl").read_bytes()
    (hit / "rounds.jsonl").write_bytes(lines[:-20])
    assert smoke("table7", tmp_path, "--seeds", "1", "--only", "once") == 0
    assert "is damaged, and is run again" in capsys.readouterr().err
    again = json.loads((tmp_path / "table7" / "reproduce.json").read_text())
    for a, b in zip(first["cells"], again["cells"], strict=True):
        assert a["weights_sha256"] == b["weights_sha256"]
    assert (hit.parent / "seed0.damaged").exists()


COMMAND = [sys.executable, "-m", "fedptr", "reproduce", "figure5", "--scale", "smoke", "--seeds", "1", "--jobs", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_queue_survives_a_kill(how: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen([*COMMAND, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True)
    until(lambda: folders(tmp_path) or process.poll() is not None, "the first run", every=0.005)
    process.send_signal(how)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == (-9 if how == signal.SIGKILL else 128 + 15), said
    if how == signal.SIGTERM:
        assert "run the same command to continue" in said
    before = folders(tmp_path)
    again = subprocess.run([*COMMAND, "--out", str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE)
    assert again.returncode == 0, again.stderr
    after = folders(tmp_path)
    assert len(after) == 6
    assert all(after[path] == stamp for path, stamp in before.items())
    assert "Traceback" not in again.stderr


@pytest.mark.slow
def test_a_failing_cell_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = recipes.load_recipe

    def broken(name: str) -> Any:
        recipe = known(name)
        columns = list(recipe.columns)
        columns[1] = recipes.Column("K=3", {**columns[1].set, "local.lr": 1e30})
        return recipes.replace(recipe, columns=tuple(columns))

    monkeypatch.setattr("fedptr.reproduce.recipe.load_recipe", broken)
    assert smoke("figure5", tmp_path, "--seeds", "1") == 1
    assert len(folders(tmp_path)) == 5
    assert "not finite" in capsys.readouterr().err
    assert "## Failed" in (tmp_path / "figure5" / "table.md").read_text()


@pytest.mark.slow
def test_a_run_by_another_plan_is_not_taken_for_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke("figure4", tmp_path, "--seeds", "1") == 0
    (folder,) = (path.parent for path in folders(tmp_path))
    plan = folder / "plan.toml"
    plan.write_text(plan.read_text().replace("lam = 0.05", "lam = 0.06"))
    assert smoke("figure4", tmp_path, "--seeds", "1") == 2
    assert "was run by another plan" in capsys.readouterr().err


def test_intervals_and_verdicts() -> None:
    assert compute_interval([3.0]).n == 1
    assert compute_interval([1.0, 1.0, 1.0]).half == 0
    assert compute_gap({0: 5.0, 1: 6.0, 2: 9.0}, {0: 4.0, 1: 5.0, 3: 1.0}) == Interval(1.0, 0.0, 2), "shared seeds only"
    assert judge_gap(Interval(2.0, 1.0, 3), 1.0) == "agrees"
    assert judge_gap(Interval(-2.0, 1.0, 3), 1.0) == "contradicts"
    assert judge_gap(Interval(0.5, 1.0, 3), 1.0) == "open"
    assert judge_gap(Interval(0.5, 1.0, 3), 0.1) == "agrees", "neither sees a gap"
    assert judge_gap(Interval(0.5, 3.0, 3), 0.1) == "open", "too wide to see one"
    assert judge_gap(Interval(2.0, 1.0, 3), 0.1) == "paper sees none"
    assert judge_gap(Interval(2.0, 1.0, 3), None) == "not in the paper"
    assert judge_gap(compute_interval([2.0]), 1.0) == "one seed"
    assert os.path.exists(recipes.FOLDER / "common.toml")
