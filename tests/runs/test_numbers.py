"""Runs that predict numbers, or several labels a sample: data, scores, methods, resume, prediction, the page."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.metrics import f1_score, mean_absolute_error, mean_squared_error, r2_score

from fedptr import load_model, methods
from fedptr.cli.main import main
from fedptr.core.federation import federate
from fedptr.data.load import load_dataset
from fedptr.data.targets import group_numbers
from fedptr.errors import UserError
from fedptr.runs import plan as planning
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.lock import StoppedError
from fedptr.runs.runner import resume_run, start_run

QUICK = ["--rounds", "3", "--clients", "3", "--partition", "iid", "--threads", "1"]


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPTR_CACHE", str(tmp_path / "cache"))


def make_numbers(path: Path, n: int = 60) -> Path:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(n, 3)).astype(np.float32)
    y = (500 + 30 * x[:, 0] - 10 * x[:, 1] + draw.normal(size=n)).astype(np.float32)
    np.savez(path, train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:])
    return path


def make_labels(path: Path, n: int = 60) -> Path:
    x = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    y = (x[:, :2] > 0).astype(np.int64)
    np.savez(path, train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:], classes=["high", "low"])
    return path


def plan_for(path: Path, method: str = "fedavg", **tables: Any) -> planning.Plan:
    settings = {"dsa": False, "H": 1, "R": 1, "m": 1}  # of those that learn auxiliary data
    known = methods.find_method(method).__dataclass_fields__
    return planning.check_plan({
        "run": {"rounds": 2},
        "data": {"name": str(path)},
        "split": {"clients": 3, "min_size": 2, "alpha": 10.0},
        "model": {"name": "mlp", "width": 4, "depth": 1},
        "local": {"batch": 8, "lr": 0.05},
        "machine": {"threads": 1},
        "method": {"name": method, **{key: value for key, value in settings.items() if key in known}},
        **tables,
    })  # fmt: skip


def run_plan(plan: planning.Plan, out: Path, show: Any = lambda _: None) -> dict[str, Any]:
    out.mkdir()
    return start_run(plan, prepare_experiment(plan), out, show)[0]


def test_diabetes_is_learned_from_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It explains a good part of the variance: least squares on all rows in one place has an R² of about 0.5."""
    known = load_diabetes()
    with open(tmp_path / "diabetes.csv", "w", newline="") as file:
        rows = ([*map(float, x), float(y)] for x, y in zip(known.data, known.target, strict=True))
        csv.writer(file).writerows([[*known.feature_names, "target"], *rows])
    command = ["run", "--dataset", str(tmp_path / "diabetes.csv"), "--method", "fedavg", "--out", str(tmp_path / "run")]
    assert main([*command, *QUICK]) == 2  # whole numbers are taken for classes
    assert "to predict numbers use --task regression" in capsys.readouterr().err
    assert main([*command, "--task", "regression", "--partition", "iid", "--clients", "5", "--rounds", "30"]) == 0
    assert "fedavg: R² 0." in capsys.readouterr().out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["r2"] > 0.4
    assert "accuracy" not in summary
    assert not (tmp_path / "run" / "class_scores.json").exists()

    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "diabetes.csv"), "--out", str(tmp_path / "p")]) == 0
    found = [float(line.split(",")[1]) for line in (tmp_path / "p").read_text().splitlines()[1:]]
    assert len(found) == 442
    assert r2_score(known.target, found) > 0.4
    assert main(["export", str(tmp_path / "run")]) == 0
    assert "returns numbers in the labels' units" in capsys.readouterr().out
    assert main(["status", str(tmp_path / "run")]) == 0
    assert f"R² {summary['r2_final']:.3f}" in capsys.readouterr().out


def test_scores_are_those_of_scikit_learn(tmp_path: Path) -> None:
    plan = plan_for(make_numbers(tmp_path / "n.npz"))
    summary = run_plan(plan, tmp_path / "run")
    data = load_dataset(str(tmp_path / "n.npz"))
    found = load_model(tmp_path / "run").predict(torch.from_numpy(np.array(data.test_x)))
    assert summary["r2_final"] == pytest.approx(r2_score(data.test_y, found), abs=1e-5)
    assert summary["mse_final"] == pytest.approx(mean_squared_error(data.test_y, found), rel=1e-4)
    assert summary["mae_final"] == pytest.approx(mean_absolute_error(data.test_y, found), rel=1e-4)
    assert summary["label_mean"] == pytest.approx(float(np.mean(data.train_y)), rel=1e-6)


def test_f1_is_that_of_scikit_learn(tmp_path: Path) -> None:
    plan = plan_for(make_labels(tmp_path / "l.npz"), run={"rounds": 20})
    summary = run_plan(plan, tmp_path / "run")
    data, model = load_dataset(str(tmp_path / "l.npz")), load_model(tmp_path / "run")
    named = model.predict(torch.from_numpy(np.array(data.test_x)))
    found = np.array([[name in names for name in ("high", "low")] for names in named])
    assert summary["f1_final"] == pytest.approx(f1_score(data.test_y, found, average="micro"))
    assert summary["f1"] > 0.6


@pytest.mark.parametrize("method", sorted(methods.all_methods()))
@pytest.mark.parametrize("make", [make_numbers, make_labels])
def test_every_method_runs_or_refuses(tmp_path: Path, method: str, make: Any) -> None:
    plan = plan_for(make(tmp_path / "data.npz"), method, split={"clients": 3, "min_size": 2, "kind": "iid"})
    refused = ""
    try:
        e = prepare_experiment(plan)
        runs = list(federate(plan.method, e.task, e.clients, e.test, plan.run, plan.local, client_tests=e.client_tests))
    except UserError as error:
        refused = str(error)
    if methods.all_methods()[method].needs_classes:
        assert refused == f"{method} trains classifiers, and this task has no classes; choose another method"
        return
    assert not refused
    assert math.isfinite(runs[-1].record["test_loss"])
    assert bool(runs[-1].w.isfinite().all())


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedptr", "ditto"])
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, method: str) -> None:
    plan = plan_for(make_numbers(tmp_path / "n.npz"), method, run={"rounds": 4})
    whole = run_plan(plan, tmp_path / "whole")

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise StoppedError(tmp_path / "part", 2, 2)

    with pytest.raises(StoppedError):
        run_plan(plan, tmp_path / "part", stop)
    part, _ = resume_run(plan, tmp_path / "part", lambda _: None)
    assert part["weights_sha256"] == whole["weights_sha256"]
    assert part["r2"] == whole["r2"]


@pytest.mark.parametrize("kind", ["dirichlet", "dirichlet-by-client", "shards", "classes", "quantity", "iid"])
@pytest.mark.parametrize("test", ["shares", "holdout"])
def test_every_kind_of_split_works(tmp_path: Path, kind: str, test: str) -> None:
    split = {"kind": kind, "test": test, "clients": 3, "min_size": 2, "classes": 5, "alpha": 10.0}
    e = prepare_experiment(plan_for(make_numbers(tmp_path / "n.npz"), split=split))
    assert sum(e.split.sizes) + (sum(e.split.tests.sizes) if test == "holdout" and e.split.tests else 0) == 40
    assert len(e.client_tests) == 3


def test_groups_are_tenths_that_are_never_empty() -> None:
    groups = group_numbers(np.random.default_rng(0).normal(size=1000), np.zeros(3))
    assert np.bincount(groups.train).tolist() == pytest.approx([100] * 10, abs=1)
    few = group_numbers(np.repeat([1.0, 2.0], 50), np.array([0.0, 3.0]))
    assert (np.bincount(few.train).tolist(), few.test.tolist(), few.names) == ([50, 50], [0, 1], ("1 to 2", "2"))


def test_a_subset_has_numbers_of_every_group(tmp_path: Path) -> None:
    plan = plan_for(make_numbers(tmp_path / "n.npz"), data={"name": str(tmp_path / "n.npz"), "subset": 20})
    assert len(prepare_experiment(plan).dataset.train_y) == 20
    with pytest.raises(UserError, match="5 training images are too few for the 10 groups of labels of n"):
        prepare_experiment(plan_for(tmp_path / "n.npz", data={"name": str(tmp_path / "n.npz"), "subset": 5}))


@pytest.mark.parametrize(
    ("labels", "task", "words"),
    [
        ([1.5, math.nan], "auto", "train_y in .* has values that are NaN or infinite; replace them"),
        ([2.5, 2.5], "auto", "holds one number only as label; there is nothing to learn"),
        ([[1, 2], [0, 1]], "auto", "data.task = multi-label needs rows of zeros and ones"),
        ([[1, 0], [0, 1]], "regression", "data.task = regression needs one number for each sample"),
        (["a", "b"], "regression", "data.task = regression needs one number for each sample"),
        ([0.5, 1.5], "classification", "must be whole numbers"),
    ],
)
def test_bad_labels_are_refused(tmp_path: Path, labels: Any, task: Any, words: str) -> None:
    x, y = np.zeros((2, 3), np.float32), np.array(labels)
    np.savez(tmp_path / "bad.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    with pytest.raises(UserError, match=words):
        load_dataset(str(tmp_path / "bad.npz"), task=task)


def test_whole_numbers_may_be_predicted_and_are_cached_apart(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32), np.arange(30) % 3
    np.savez(tmp_path / "w.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    for _ in range(2):  # the second from the cache
        numbers = load_dataset(str(tmp_path / "w.npz"), task="regression")
        assert (numbers.target, numbers.train_y.dtype, numbers.label_mean) == ("number", np.float32, 1.0)
        assert load_dataset(str(tmp_path / "w.npz")).target == "class"
    with pytest.raises(UserError, match=r"digits has classes, so data.task cannot be regression; leave it out"):
        load_dataset("digits", task="regression")


def test_a_comparison_and_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = str(make_numbers(tmp_path / "n.npz")), str(tmp_path / "c")
    options = ["--methods", "fedavg,ditto", "--model", "mlp", "--width", "4", "--min-size", "2", "--out", out]
    assert main(["compare", "--dataset", data, *QUICK, *options]) == 0
    table = (tmp_path / "c" / "table.md").read_text()
    assert table.startswith("| method | R² (last 3 rounds) | best | s/round | MB/round | clients' loss: global |")
    assert "%" not in table
    assert (tmp_path / "c" / "curves.png").stat().st_size > 5000
    pytest.importorskip("plotly")
    assert main(["report", out, "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "R², mean of at most five rounds" in page or "R², mean of the last three rounds" in page
    assert "Loss on each client’s own test data" in page
    assert '"score":{"words":"R\\u00b2"' in page


def test_numbers_are_not_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_for(make_numbers(tmp_path / "n.npz"))
    run_plan(plan, tmp_path / "run")
    assert main(["audit", str(tmp_path / "run")]) == 2
    assert "only classifiers are audited so far" in capsys.readouterr().err
