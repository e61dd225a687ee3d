"""A recipe's tables, in the terminal and in files: all cells are there, and can be read."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from smoke_recipe import smoke

from fedptr.cli.main import main
from fedptr.cli.reproduce_display import show_progress
from fedptr.jobs.run_queue import QueueState
from fedptr.report.recipe_section import render_cell
from fedptr.reproduce import tables
from fedptr.reproduce.outcome import Outcome, collect_results
from fedptr.reproduce.recipe import SCALES, load_recipe, make_cells, recipe_names
from fedptr.reproduce.verdict import MEANING


@pytest.mark.parametrize("name", ["global-methods", "tuning", "table1"])
def test_every_column_can_be_read_on_80_columns(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of many columns each is a line."""
    assert smoke(name, tmp_path, "--no-runs") == 0
    recipe, said = load_recipe(name), capsys.readouterr().out
    table = said.partition("table:")[0].splitlines()
    assert max(map(len, table)) <= 80
    many = len(recipe.columns) > 8
    if many:
        assert [line.split("·")[0].strip() for line in table if "·" in line] == [c.name for c in recipe.columns]
    else:
        for column in recipe.columns:
            assert all(word in said for word in column.name.replace("-", "- ").split())
        assert all(line.count("·") == len(recipe.columns) for line in table if "·" in line)
    lines = (tmp_path / name / "table.md").read_text().splitlines()
    first = lines.index("| --- |" + " ---: |" * len(recipe.rows if many else recipe.columns))
    assert len(lines[first + 1].split("|")) == len(lines[first].split("|")), "a line has as many cells as the heading"
    tex = (tmp_path / name / "table.tex").read_text()
    assert f"{{l{'r' * len(recipe.rows if many else recipe.columns)}}}" in tex
    assert tex.count(" & ") == (len(recipe.rows) + 1) * (len(recipe.columns) + 1) - (
        len(recipe.columns if many else recipe.rows) + 1
    ), "no cell is lost"


def test_what_is_written(tmp_path: Path) -> None:
    assert smoke("table4", tmp_path, "--seeds", "2", "--only", "cifar10,a001") == 0
    text = (tmp_path / "table4" / "table.md").read_text()
    assert "`local.batch`: 500 → 32" in text
    assert "(62.10)" in text
    assert "(+6.94)" not in text, "digits are not compared with CIFAR-10"
    assert "neither accuracies nor gaps are comparable with the paper's" in text
    assert not any(verdict in text for verdict in MEANING)
    assert "| α = 0.01, digits for CIFAR-10 |" in text
    assert text.startswith("# Table 4: one λ for all layers, or one per layer (4 clients on digits instead)\n")
    rows = list(csv.DictReader((tmp_path / "table4" / "table.csv").read_text().splitlines()))
    assert [row["column"] for row in rows] == ["fixed", "adaptive", "fedavg", "fedptr-linear"]
    assert rows[0]["verdict"] == "reference"
    assert (rows[1]["verdict"], rows[1]["paper_gap"]) == ("not compared", "")
    assert float(rows[1]["gap"]) == pytest.approx(float(rows[1]["accuracy"]) - float(rows[0]["accuracy"]), abs=1e-3)
    page = (tmp_path / "table4" / "report.html").read_text()
    assert "fedptr-linear" in page
    assert "reduced, so neither accuracies nor gaps can be compared with the paper’s" in page
    assert "verdict on the gap" not in page
    again = ["reproduce", "table4", "--scale", "smoke", "--out", str(tmp_path), "--no-runs", "--seeds", "2"]
    there = sorted((tmp_path / "runs").iterdir())
    assert main(again) == 0, "also rows of which nothing was run"
    assert sorted((tmp_path / "runs").iterdir()) == there
    assert rows[0]["accuracy"] in (tmp_path / "table4" / "table.csv").read_text()
    tex = (tmp_path / "table4" / "table.tex").read_text()
    assert tex.count("\\\\") > 2
    assert "$\\alpha$ = 0.01" in tex


def test_a_cell_with_fewer_seeds_than_asked_for_says_so(tmp_path: Path) -> None:
    recipe = load_recipe("table4")
    wanted = [cell for cell in make_cells(recipe, "smoke", 3, tmp_path) if cell.row == recipe.rows[0]]
    summary = {"accuracy": 0.5, "seconds": 1.0, "bytes_per_round": 1e6, "rounds": 5}
    late = [cell for cell in wanted if cell.column.name == "fixed" and cell.plan.run.seed == 2]
    done = {cell.folder: (summary, []) for cell in wanted if cell not in late}
    outcome = collect_results(replace(recipe, rows=recipe.rows[:1]), "smoke", 3, wanted, done, {})
    first = f"| {recipe.rows[0].label} | 50.00 ± 0.00 [2] (62.10) | 50.00 ± 0.00 (69.04) |"
    assert first in tables.format_markdown(outcome)
    assert "[n]: only n of the 3 seeds are finished." in tables.format_markdown(outcome)
    assert "$ [2] &" in tables.format_latex(outcome)


def test_a_gap_of_nothing_has_no_minus() -> None:
    """Neither in a table nor on the page is there a -0.0."""
    recipe = load_recipe("table4")
    wanted = [cell for cell in make_cells(recipe, "cpu", 1, Path()) if cell.row == recipe.rows[0]]
    summary = {"seconds": 1.0, "bytes_per_round": 1e6, "rounds": 150}
    done = {c.folder: ({**summary, "accuracy": 0.5 if c.column.name == "fixed" else 0.49999}, []) for c in wanted}
    outcome = collect_results(replace(recipe, rows=recipe.rows[:1]), "cpu", 1, wanted, done, {})
    assert "| +0.00 (+6.94) one seed |" in tables.format_markdown(outcome)
    cell = {"column": "adaptive", "mean": 40.0, "gap": -0.04, "paper_gap": -0.01, "accuracies": {"0": 1}, "folders": []}
    assert "<span>+0.0 (+0.0)</span>" in render_cell(cell, {"reference": "fixed"})


def test_a_column_may_be_measured_against_another_than_the_reference() -> None:
    recipe = load_recipe("with-ptr").select(["a001", "scaffold+ptr"])
    assert [column.name for column in recipe.columns] == ["fedavg", "scaffold", "scaffold+ptr"], "both come along"
    wanted = list(make_cells(recipe, "smoke", 1, Path()))
    accuracy = {"fedavg": 0.5, "scaffold": 0.3, "scaffold+ptr": 0.4}
    summary = {
        "seconds": 1.0,
        "bytes_per_round": 1e6,
        "rounds": 5,
        "weights_sha256": "",
        "split_sha256": "",
        "versions": {},
    }
    done = {cell.folder: ({**summary, "accuracy": accuracy[cell.column.name]}, []) for cell in wanted}
    outcome = collect_results(recipe, "smoke", 1, wanted, done, {})
    assert "| – | -20.00 | +10.00 to scaffold |" in tables.format_markdown(outcome)
    rows = list(csv.DictReader(tables.format_csv(outcome).splitlines()))
    assert [(row["against"], row["gap"]) for row in rows] == [
        ("fedavg", "0.0"),
        ("fedavg", "-20.0"),
        ("scaffold", "10.0"),
    ]
    data = outcome.to_json(Path())
    assert "<span>+10.0 to scaffold</span>" in render_cell(data["cells"][2], data)
    assert "<span>-20.0</span>" in render_cell(data["cells"][1], data)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [name for name in recipe_names() if load_recipe(name).kind != "splits"])
def test_rows_say_what_is_run(name: str, scale: str) -> None:
    recipe = load_recipe(name).at_scale(scale)
    datasets = {"Fashion-MNIST": "fashion-mnist", "TinyImageNet": "tiny-imagenet"}
    for row in recipe.rows:
        plan = recipe.make_plan(row, recipe.columns[0], scale, 0)
        true = {
            "data": plan.data.name,
            "clients": str(plan.split.clients),
            "%": f"{100 * plan.run.participation:g}",
            "α": f"{plan.split.alpha:g}",
        }
        said: dict[str, str] = {}
        for part in row.label.split(", "):
            value = part.partition(" for ")[0]  # digits for CIFAR-10
            if value.endswith((" clients", " %")):
                said[value.split()[1]] = value.split()[0]
            elif value.startswith("α = "):
                said["α"] = value.removeprefix("α = ")
            elif value in ("digits", *datasets) or value.startswith("CIFAR"):
                said["data"] = datasets.get(value, value.lower().replace("-", ""))
        assert said == {what: true[what] for what in said}, row.label
        assert said or recipe.kind == "audit"
    assert len({row.label for row in recipe.rows}) == len(recipe.rows)


def test_progress_shows_the_recipes_own_score(capsys: pytest.CaptureFixture[str]) -> None:
    """Of `local` the accuracy of the clients' models: it has no global one to speak of."""
    recipe = load_recipe("personalised").select(["local"])
    wanted = [cell for cell in make_cells(recipe, "smoke", 1, Path()) if cell.column.name == "local"][:1]
    ((folder, plan),) = [(cell.folder, cell.plan) for cell in wanted]
    records = [{"client_tests": {"accuracy": [0.1]}, "client_accuracy": 0.1, "personal_accuracy": 0.8}]
    board = QueueState({folder: plan}, done={folder: ({"accuracy": 0.0896, "rounds": plan.run.rounds}, records)})
    with show_progress(recipe, "smoke", 1, wanted) as show:
        show(board)
    said = capsys.readouterr().err
    assert "80.00 %" in said
    assert "8.96" not in said


def test_a_measure_says_how_many_rounds_it_averages() -> None:
    def measure(name: str, rounds: int) -> str:
        return replace(load_recipe(name), rounds=rounds).describe_measure("smoke")

    assert measure("table1", 2) == "Accuracy (%), mean of the last two rounds"
    assert measure("table1", 1) == "Accuracy (%), after the last round"
    assert measure("table1", 60) == "Accuracy (%), mean of the last five rounds"


@pytest.mark.parametrize("name", recipe_names())
def test_what_a_recipe_is_measured_against_is_there(name: str) -> None:
    recipe = load_recipe(name)
    there = {column.name for column in recipe.columns}
    assert {recipe.reference, *(column.against for column in recipe.columns)} <= {*there, ""}


@pytest.mark.parametrize("name", ["natural-table", "natural-text", "natural-sensor"])
def test_a_recipe_that_the_paper_does_not_have_is_no_reduction_of_it(name: str) -> None:
    recipe = load_recipe(name)
    said = "\n".join(tables.describe_scale(Outcome(recipe, "cpu", 3, {})))
    assert "nothing of this is in the paper; all samples" in said
    assert "a fifth of the images" not in said
    assert "comparable" not in said
    assert said in (Path(__file__).parents[2] / "results" / "cpu" / name / "table.md").read_text(encoding="utf-8")
