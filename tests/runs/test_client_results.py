"""What a run folder says of clients and classes: summary.json, class_scores.json, the tables of a comparison."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fedptr.cli.main import main
from fedptr.core.client_scores import describe_spread
from fedptr.core.early_stopping import STOPPED
from fedptr.runs.comparison_table import column_headings, comparison_rows, terminal_table

SMALL = [
    "--dataset",
    "digits",
    "--subset",
    "200",
    "--clients",
    "4",
    "--alpha",
    "0.3",
    "--min-size",
    "5",
    "--width",
    "4",
    "--batch",
    "16",
    "--rounds",
    "7",
    "--seed",
    "3",
    "--set",
    "model.depth=1",
    "--set",
    "machine.threads=1",
]


def read_rounds(folder: Path) -> list[dict]:  # type: ignore[type-arg]
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def ditto(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("clients") / "ditto"
    assert main(["run", "--method", "ditto", *SMALL, "--out", str(out)]) == 0
    return out


def test_the_summary_has_the_spread_over_clients_of_the_last_five_rounds(ditto: Path) -> None:
    summary, rounds = json.loads((ditto / "summary.json").read_text()), read_rounds(ditto)
    for name, entry in (("clients_global", "accuracy"), ("clients_personal", "personal_accuracy")):
        spreads = [describe_spread(r["client_tests"][entry], r["client_tests"]["tests"]) for r in rounds[-5:]]
        for what, value in summary[name].items():
            assert value == pytest.approx(sum(spread[what] for spread in spreads) / 5), (name, what)
    assert summary["clients_personal"]["weighted"] > summary["clients_global"]["weighted"]
    assert summary["personal_adapts"] is False


def test_every_client_is_tested_on_its_own_classes(ditto: Path) -> None:
    split = json.loads((ditto / "split.json").read_text())
    sizes = [len(part) for part in split["tests"]["clients"]]
    assert read_rounds(ditto)[-1]["client_tests"]["tests"] == sizes
    assert sum(sizes) == 200  # every test image of the subset once


def test_the_confusion_matrix_is_of_the_final_model(ditto: Path) -> None:
    found, last = json.loads((ditto / "class_scores.json").read_text()), read_rounds(ditto)[-1]
    right = sum(row[k] for k, row in enumerate(found["confusion"]))
    total = sum(map(sum, found["confusion"]))
    assert right / total == pytest.approx(last["test_accuracy"])
    assert found["accuracy"] == [row[k] / sum(row) for k, row in enumerate(found["confusion"])]
    assert found["classes"] == [str(k) for k in range(10)]


def test_a_global_method_has_client_scores_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--method", "fedavg", *SMALL, "--out", str(tmp_path / "plain")]) == 0
    assert "clients' own test data" not in capsys.readouterr().out
    more = ["--set", "split.test=holdout", "--out", str(tmp_path / "held")]
    assert main(["run", "--method", "fedavg", *SMALL, *more]) == 0
    assert "on the clients' own test data: the global model" in capsys.readouterr().out
    plain, held = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("plain", "held"))
    assert "clients_global" not in plain
    assert "clients_global" in held
    assert "clients_personal" not in held


def test_a_model_that_is_adapted_for_the_evaluation_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--method", "finetune", *SMALL, "--rounds", "1", "--out", str(tmp_path / "run")]) == 0
    assert "test data: the global model, adapted by each client, " in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["personal_adapts"] is True


def test_a_comparison_has_columns_for_clients_only_where_they_are_tested() -> None:
    plain = {"accuracy": 0.5, "accuracy_best": 0.6, "seconds_per_round": 1.0, "bytes_per_round": 1e6}
    tested = {**plain, "clients_global": {"weighted": 0.4, "worst": 0.1}}
    own = {**tested, "clients_personal": {"weighted": 0.8, "worst": 0.7}}
    assert len(column_headings({"fedavg": [plain]}, 1)) == len(comparison_rows({"fedavg": [plain]}, 1)[0]) == 5
    results = {"fedavg": [tested], "ditto": [own], "moon": []}
    rows = comparison_rows(results, 1)
    assert [row[-3:] for row in rows] == [["40.00", "–", "10.00"], ["40.00", "80.00", "70.00"], ["–", "–", "–"]]
    assert {len(row) for row in rows} == {len(column_headings(results, 1))} == {8}


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("stopped", [{}, {STOPPED: "target"}], ids=["whole", "stopped"])
def test_a_comparison_fits_into_80_columns(seeds: int, stopped: dict[str, str]) -> None:
    """No heading, name or number is cut."""
    run = {"accuracy_best": 0.99, "seconds_per_round": 12.3, "bytes_per_round": 123.4e6, "rounds": 100, **stopped}
    run |= {"clients_global": {"weighted": 0.4, "worst": 0.1}, "clients_personal": {"weighted": 0.8, "worst": 0.7}}
    runs = [{**run, "accuracy": 0.5 + 0.01 * k} for k in range(seeds)]
    results = {"fedptr-linear": runs, "ditto": runs}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(terminal_table(results, seeds, "digits"))
    text = console.export_text()
    assert "…" not in text
    words = text.split()
    for line in (column_headings(results, seeds)[2:], comparison_rows(results, seeds)[0]):
        for cell in line:
            assert all(word in words for word in cell.replace("/", "/ ").split()), cell
    assert ("95 % CI of 3 seeds" in " ".join(words)) == (seeds == 3)
