"""data.validation: a part of the training samples in place of the test set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_plans import TABLES

from fedptr.data.load import load_dataset
from fedptr.data.validation import choose_held_out, hold_out_validation
from fedptr.errors import UserError
from fedptr.runs.experiment import draw_split, load_data, prepare_experiment
from fedptr.runs.plan import DataPlan, Plan, check_plan
from fedptr.runs.same_run import identity


def plan_with(**data: object) -> Plan:
    return check_plan({**TABLES, "data": {"subset": 300, **data}, "method": {"name": "fedavg"}})


def test_the_parts_are_disjoint_and_complete() -> None:
    whole, held = load_data(DataPlan()), load_data(DataPlan(validation=0.2))
    assert held.held_out is not None
    kept = np.setdiff1d(np.arange(len(whole.train_y)), held.held_out)
    assert len(held.held_out) == round(0.2 * len(whole.train_y))
    for part in "xy":
        all_of_it = getattr(whole, f"train_{part}")
        assert (getattr(held, f"test_{part}") == all_of_it[held.held_out]).all()
        assert (getattr(held, f"train_{part}") == all_of_it[kept]).all()


def test_every_class_loses_the_same_part_and_keeps_a_sample() -> None:
    labels = np.repeat(np.arange(4), [100, 50, 10, 1])
    held = choose_held_out(labels, 0.2, seed=3)
    assert np.bincount(labels[held], minlength=4).tolist() == [20, 10, 2, 0]
    assert np.bincount(labels[choose_held_out(labels, 0.9, seed=3)], minlength=4).tolist() == [90, 45, 9, 0]


def test_it_depends_on_the_seed_alone() -> None:
    labels = np.arange(1000) % 7
    assert (choose_held_out(labels, 0.1, 5) == choose_held_out(labels, 0.1, 5)).all()
    assert (choose_held_out(labels, 0.1, 5) != choose_held_out(labels, 0.1, 6)).any()


def test_labels_that_are_no_classes_are_drawn_too() -> None:
    numbers = np.linspace(0, 1, 50)
    assert len(choose_held_out(numbers, 0.2, 0)) == 10
    assert len(choose_held_out(np.zeros((50, 3)), 0.2, 0)) == 10


def test_nothing_depends_on_the_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a subset, which otherwise comes with one of the test images."""
    whole = load_dataset("digits")
    other = replace(whole, test_x=whole.test_x[:5] * 0, test_y=whole.test_y[:5] * 0)
    plan = DataPlan(subset=300, subset_test=200, validation=0.2)
    found = []
    for dataset in (whole, other):
        monkeypatch.setattr("fedptr.runs.experiment.load_dataset", lambda *_, d=dataset: d)
        found.append(load_data(plan))
    first, second = found
    assert first.source == second.source
    for part in ("train_x", "train_y", "test_x", "test_y"):
        assert (getattr(first, part) == getattr(second, part)).all()


def test_at_its_baseline_a_run_is_what_it_was() -> None:
    assert "data.validation" not in identity(plan_with(validation=0.0))
    assert identity(plan_with(validation=0.2))["data.validation"] == 0.2


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"validation": 1.0}, "data.validation must be less than 1"),
        ({"validation": -0.1}, "data.validation must be at least 0"),
        ({"validation": 0.2, "pool": "all"}, "gives back to the clients"),
    ],
)
def test_what_makes_no_sense_is_refused(data: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        plan_with(**data)


def test_a_part_of_no_sample_is_refused() -> None:
    with pytest.raises(UserError, match="leaves none to test on"):
        hold_out_validation(load_dataset("digits"), 1e-6, 0)


@pytest.mark.parametrize("test", ["none", "holdout", "shares"])
def test_a_split_of_all_training_samples_can_be_used(test: str, tmp_path: Path) -> None:
    """Its clients lose what is held out; test images of clients are of the validation part then."""
    tables = {**TABLES, "split": {**TABLES["split"], "test": test}, "method": {"name": "fedavg"}}
    plan = check_plan(tables)
    before = draw_split(plan, load_data(plan.data))
    before.save(tmp_path / "split.json")
    given = {**tables["split"], "file": str(tmp_path / "split.json")}
    with_part = {**tables, "data": {**TABLES["data"], "validation": 0.25}}
    experiment = prepare_experiment(check_plan({**with_part, "split": given}))
    held = experiment.dataset.held_out
    assert held is not None
    kept = np.setdiff1d(np.arange(120), held)
    for own, now in zip(before.clients, experiment.split.clients, strict=True):
        assert kept[now].tolist() == np.setdiff1d(own, held).tolist()
    assert len(experiment.client_tests) == (0 if test == "none" else 3)
    experiment.split.save(tmp_path / "own.json")  # as a run keeps it
    again = prepare_experiment(check_plan({**with_part, "split": {**given, "file": str(tmp_path / "own.json")}}))
    assert again.split.sha256 == experiment.split.sha256
