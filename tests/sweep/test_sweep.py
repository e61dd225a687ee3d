"""`fedptr sweep`: it resumes, grows, chooses by held-out samples alone, and writes a plan that runs."""

from __future__ import annotations

import csv
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_sweeps import GRID, TINY, results, sweep

from fedptr.cli.main import main
from fedptr.jobs import run_queue
from fedptr.runs.plan import check_plan, load_plan, read_plan
from fedptr.runs.rounds_file import Record
from fedptr.runs.summary import read_finished


def test_the_best_is_the_one_with_the_highest_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "s"
    assert sweep(*GRID, out=out) == 0
    said = capsys.readouterr().out
    found = results(out)
    means = {entry["settings"]["local.lr"]: entry["mean"] for entry in found["settings"]}
    best = max(means, key=lambda lr: means[lr])
    assert found["best"]["settings"] == {"local.lr": best}
    assert f"best: fedavg, local.lr = {best:g}: {means[best]:.2f} ±" in said
    assert "on 60 held-out training samples" in said
    assert ("within noise" in said) == found["settings"][1]["within_noise"]
    assert "try larger" in said if best == 0.3 else "try smaller" in said
    with open(out / "table.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    for row in rows:
        summary, _ = read_finished(out / row["folder"])
        assert float(row["score"]) == 100 * summary["accuracy"]
        assert summary["validation"] == 0.2
        assert load_plan(out / row["folder"]).data.validation == 0.2
    assert (out / "table.md").read_text().count("| fedavg |") == 2
    assert (out / "scores.png").stat().st_size > 1000


def test_best_toml_is_the_winner_with_validation_back_at_zero(tmp_path: Path) -> None:
    out = tmp_path / "s"
    assert sweep(*GRID, out=out) == 0
    plan = check_plan(read_plan(out / "best.toml"))
    assert plan.data.validation == 0
    assert plan.local.lr == results(out)["best"]["settings"]["local.lr"]
    there = load_plan(out / results(out)["best"]["folders"][0]).tables()
    there["data"]["validation"] = 0.0
    assert tomllib.loads((out / "best.toml").read_text()) == there
    assert main(["run", str(out / "best.toml"), "--out", str(tmp_path / "final")]) == 0
    summary, _ = read_finished(tmp_path / "final")
    assert "validation" not in summary
    assert summary["test_images"] == 300


def test_runs_are_ordinary_and_the_report_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "s"
    assert sweep(*GRID, out=out) == 0
    assert main(["report", str(out), "-o", str(tmp_path / "page.html")]) == 0
    assert "(4 runs" in capsys.readouterr().out
    assert "held out, stand in for the test set" in (tmp_path / "page.html").read_text()
    assert main(["resume", str(out)]) == 2
    assert "continue it with the same `fedptr sweep` command" in capsys.readouterr().err


def test_a_sweep_that_is_stopped_continues_and_runs_nothing_twice(
    tmp_path: Path, counted: Counter[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped in the middle of the third run; it continues after its first round, and the others stay."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert sweep(*GRID, out=whole) == 0
    counted.clear()
    counting = run_queue.resume_run

    def end_in_third(plan: Any, folder: Path, show: Any, *rest: Any) -> Any:
        def look(record: Record) -> None:
            if len(counted) == 3 and record["round"] == 2:
                raise KeyboardInterrupt  # at once, as a second Ctrl-C: round 2 is not saved
            show(record)

        return counting(plan, folder, look, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(run_queue, "resume_run", end_in_third)
        assert sweep(*GRID, out=stopped) == 130
    assert "run the same command to continue" in capsys.readouterr().err
    assert len(counted) == 3
    assert not (stopped / "best.toml").exists()
    assert sweep(*GRID, out=stopped) == 0
    assert sorted(counted.values()) == [1, 1, 1, 2], "only the run that was stopped was taken up a second time"
    assert results(stopped) == results(whole)
    assert (stopped / "best.toml").read_text() == (whole / "best.toml").read_text().replace(str(whole), str(stopped))
    counted.clear()
    assert sweep(*GRID, out=stopped) == 0
    assert not counted


def test_a_sweep_that_grows_takes_over_what_is_finished(tmp_path: Path, counted: Counter[str]) -> None:
    out = tmp_path / "s"
    assert sweep(*TINY, "--lr", "0.3,0.01", out=out) == 0
    assert len(counted) == 2
    assert sweep(*TINY, "--lr", "0.3,0.1,0.01", "--seeds", "2", out=out) == 0
    assert len(counted) == 6
    assert set(counted.values()) == {1}
    assert sweep(*TINY, "--lr", "0.01,0.3", "--batch", "32,64", out=out) == 0
    assert len(counted) == 8
    assert set(counted.values()) == {1}
    assert len(results(out)["settings"]) == 4
    before = counted.copy()
    longer = ["4" if option == "3" and TINY[k - 1] == "--rounds" else option for k, option in enumerate(TINY)]
    assert sweep(*longer, "--lr", "0.3,0.01", out=out) == 0
    assert sum((counted - before).values()) == 2, "finished runs are made longer"


def make_table(path: Path, test_labels: np.ndarray[Any, Any]) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = (rng.normal(size=(200, 1, 4, 4)) + y[:, None, None, None]).astype(np.float32)
    test = rng.normal(size=(len(test_labels), 1, 4, 4)).astype(np.float32)
    np.savez(path, train_x=x, train_y=y, test_x=test, test_y=test_labels)


def test_the_test_set_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other test labels, and with tests that would be wrong by construction, the sweep is the same to the bit."""
    monkeypatch.setenv("FEDPTR_CACHE", str(tmp_path / "cache"))
    found, hashes = [], []
    for name, labels in (("a", np.arange(60) % 2), ("b", 1 - np.arange(60) % 2)):
        make_table(tmp_path / "own.npz", labels)
        out = tmp_path / name
        own = [*TINY[2:], "--set", "data.subset=0", "--dataset", str(tmp_path / "own.npz"), "--lr", "0.1,0.01"]
        assert sweep("--method", "fedavg", *own, out=out) == 0
        found.append(results(out))
        folders = [out / folder for entry in found[-1]["settings"] for folder in entry["folders"]]
        hashes.append([
            [read_finished(folder)[0][key] for key in ("weights_sha256", "data_sha256", "accuracy", "loss_final")]
            for folder in folders
        ])  # fmt: skip
    assert found[0] == found[1]
    assert hashes[0] == hashes[1]


def test_what_fails_or_diverges_never_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "s"
    assert sweep(*TINY, "--lr", "1e30,0.1", out=out) == 0
    found = results(out)
    assert [entry["state"] for entry in found["settings"]] == ["finished", "failed"]
    assert found["best"]["settings"] == {"local.lr": 0.1}
    assert "1 of 2 settings failed or diverged" in capsys.readouterr().err
    assert "not finite" in (out / "table.md").read_text()
    alone = tmp_path / "alone"
    assert sweep(*TINY, "--lr", "1e30", out=alone) == 1
    assert "there is no best one" in capsys.readouterr().out
    assert not (alone / "best.toml").exists()


def test_a_diverged_run_is_last_however_good_its_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = tmp_path / "s"
    assert sweep(*TINY, "--lr", "0.3,0.01", out=best) == 0
    winner = results(best)["best"]["settings"]["local.lr"]
    monkeypatch.setattr(
        "fedptr.runs.runner.find_divergence", lambda task, test, records: "so we say" if sys.argv == ["d"] else ""
    )
    found = run_queue.resume_run

    def diverge(plan: Any, *rest: Any) -> Any:
        monkeypatch.setattr(sys, "argv", ["d"] if plan.local.lr == winner else [])
        return found(plan, *rest)

    monkeypatch.setattr(run_queue, "resume_run", diverge)
    assert sweep(*TINY, "--lr", "0.3,0.01", out=tmp_path / "other") == 0
    told = results(tmp_path / "other")
    assert [entry["state"] for entry in told["settings"]] == ["finished", "diverged"]
    assert told["best"]["settings"]["local.lr"] != winner


def test_methods_have_a_best_plan_each(tmp_path: Path) -> None:
    out = tmp_path / "s"
    both = ["--methods", "fedavg,fedprox", *TINY[2:]]
    assert sweep(*both, "--set", "method.mu=0.1,1", out=out) == 0
    assert len(results(out)["settings"]) == 3
    assert check_plan(read_plan(out / "best-fedprox.toml")).method.name == "fedprox"
    assert check_plan(read_plan(out / "best-fedavg.toml")).method.name == "fedavg"


def test_a_plan_may_hold_the_lists(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text('[local]\nlr = [0.3, 0.1]\n[method]\nname = ["fedavg"]\n')
    assert sweep(str(tmp_path / "plan.toml"), *TINY[2:], out=tmp_path / "s") == 0
    assert len(results(tmp_path / "s")["settings"]) == 2


def test_personalised_methods_are_chosen_by_the_models_that_clients_use(tmp_path: Path) -> None:
    out = tmp_path / "s"
    assert sweep("--methods", "fedavg,local", *TINY[2:], "--lr", "0.1", out=out) == 0
    found = results(out)
    assert found["score"] == "validation accuracy % of the models that clients use"
    for entry in found["settings"]:
        summary, _ = read_finished(out / entry["folders"][0])
        used = summary.get("clients_personal", summary["clients_global"])
        assert entry["mean"] == pytest.approx(100 * used["weighted"], abs=1e-9)


def test_a_split_file_can_be_used(tmp_path: Path) -> None:
    drawn = ["--subset", "300", "--clients", "3", "--alpha", "1", "--min-size", "5"]
    assert main(["partition", *drawn, "--out", str(tmp_path / "split.json")]) == 0
    assert sweep(*TINY, "--split", str(tmp_path / "split.json"), "--lr", "0.1,0.2", out=tmp_path / "s") == 0
    assert all(entry["state"] == "finished" for entry in results(tmp_path / "s")["settings"])


@pytest.mark.slow
def test_jobs_are_processes_and_the_results_the_same(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert sweep(*TINY, "--lr", "0.3,1e30", out=one) == 0
    assert sweep(*TINY, "--lr", "0.3,1e30", "--jobs", "2", out=two) == 0
    first, second = results(one), results(two)
    assert [(e["settings"], e["scores"], e["state"]) for e in first["settings"]] == [
        (e["settings"], e["scores"], e["state"]) for e in second["settings"]
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--lr", "0.1..1"], "say how many settings to draw with --random N"),
        (["--lr", "0.1,"], "has an empty value"),
        (["--random", "0"], "--random must be at least 1"),
        (["--random", "2", "--optuna", "2"], "two ways to choose settings"),
        (["--methods", "fedprox"], "--methods and --method both name methods"),
        (["--set", "data.validation=0"], "never by the test set"),
        (["--seed", "x"], "run.seed must be a whole number"),
        (["--method", "fedavg,fedavg"], "a method is named twice"),
        (["--method", "fedavg,fedag"], "fedag is not a method; did you mean"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(*TINY, *options, out=tmp_path / "s") == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert sweep(*TINY, out=tmp_path) == 2
    assert "holds something that is not a sweep" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
