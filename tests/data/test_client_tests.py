"""Every client's own test set: in its class shares, each image once, apart from what anybody trains on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedptr.data.client_tests import add_client_tests
from fedptr.data.dataset import Dataset
from fedptr.data.partition import SplitPlan, partition
from fedptr.data.split import ClientTests, Split
from fedptr.errors import UserError

LABELS = np.arange(1000) % 10
TEST_LABELS = np.arange(300) % 10
PLAN = SplitPlan(clients=5, alpha=0.3, seed=3, min_size=20)


def make_dataset(labels: Any, test_labels: Any, classes: int) -> Dataset:
    y, test_y = np.asarray(labels, dtype=np.int64), np.asarray(test_labels, dtype=np.int64)
    images = [np.zeros((len(part), 1, 1, 1), dtype=np.uint8) for part in (y, test_y)]
    return Dataset("made", images[0], y, images[1], test_y, (0.0,), (1.0,), tuple(map(str, range(classes))), "here")


def draw(plan: SplitPlan, dataset: Dataset | None = None, **how: bool) -> Split:
    dataset = dataset or make_dataset(LABELS, TEST_LABELS, 10)
    return add_client_tests(partition(dataset.train_y, len(dataset.classes), plan), dataset, plan, **how)


@st.composite
def cases(draw_: st.DrawFn) -> tuple[Dataset, SplitPlan]:
    """Labels with classes that may be missing from either set, and more clients than test images at times."""
    classes = draw_(st.integers(1, 5))
    labels = draw_(st.lists(st.integers(0, classes - 1), min_size=1, max_size=80))
    test_labels = draw_(st.lists(st.integers(0, classes - 1), min_size=1, max_size=40))
    clients = draw_(st.integers(1, min(30, len(labels))))
    kind, alpha = draw_(st.sampled_from(["dirichlet", "iid"])), draw_(st.sampled_from([0.01, 0.3, 10.0]))
    part, seed = draw_(st.sampled_from([0.01, 0.2, 0.5, 0.99])), draw_(st.integers(0, 2**32 - 1))
    plan = SplitPlan(kind=kind, clients=clients, alpha=alpha, min_size=0, policy="repair", test_part=part, seed=seed)
    return make_dataset(labels, test_labels, classes), plan


@given(cases())
@settings(max_examples=300, deadline=None)
def test_shares_use_every_test_image_once_and_leave_nobody_out(case: tuple[Dataset, SplitPlan]) -> None:
    dataset, plan = case
    plain, split = draw(replace(plan, test="none"), dataset), draw(replace(plan, test="shares"), dataset)
    assert split.tests is not None
    assert all(np.array_equal(a, b) for a, b in zip(split.clients, plain.clients, strict=True))
    classes = len(dataset.classes)
    counts, available = split.counts(dataset.train_y, classes), np.bincount(dataset.test_y, minlength=classes)
    used = np.concatenate(split.tests.clients)
    possible = np.flatnonzero(counts.sum(axis=0)[dataset.test_y])  # the images of a class that somebody trains on
    assert np.array_equal(np.unique(used), possible)
    for own, images in zip(counts, split.tests.clients, strict=True):
        assert (len(images) > 0) == bool((own * available).any())
        assert (own[dataset.test_y[images]] > 0).all(), "nobody is tested on a class that it does not have"
    assert (split.tests.shared > 0) == (len(used) > len(possible))
    for i, images in enumerate(split.tests.clients):
        others = [part for j, part in enumerate(split.tests.clients) if j != i and np.isin(images, part).any()]
        assert len(images) <= 1 or all(len(part) == 1 for part in others), "who could spare an image shares none"


@given(cases())
@settings(max_examples=300, deadline=None)
def test_holdout_is_apart_from_training_and_repeatable(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[Dataset, SplitPlan]
) -> None:
    dataset, plan = case
    plan = replace(plan, test="holdout")
    before, split = draw(replace(plan, test="none"), dataset), draw(plan, dataset)
    assert split.tests is not None
    for whole, kept, held in zip(before.clients, split.clients, split.tests.clients, strict=True):
        assert np.array_equal(np.sort(np.concatenate([kept, held])), whole)
        assert len(held) == (
            0 if len(whole) < 2 else min(max(1, int(plan.test_part * len(whole) + 0.5)), len(whole) - 1)
        )
        if len(held):
            labels = dataset.train_y
            for label in range(len(dataset.classes)):
                exact = len(held) * (labels[whole] == label).sum() / len(whole)
                assert abs((labels[held] == label).sum() - exact) < 1
    assert draw(plan, dataset).sha256 == split.sha256
    path = tmp_path_factory.getbasetemp() / "tests.json"
    split.save(path)
    assert Split.load(path, len(dataset.train_y)).sha256 == split.sha256


def test_shares_are_proportional_to_training_counts() -> None:
    split = draw(replace(PLAN, test="shares"))
    assert split.tests is not None
    train = split.counts(LABELS, 10)
    test = np.stack([np.bincount(TEST_LABELS[part], minlength=10) for part in split.tests.clients])
    assert np.abs(test - 30 * train / train.sum(axis=0)).max() < 1
    assert sum(split.tests.sizes) == 300
    assert split.tests.shared == 0


def test_more_clients_than_test_images_share_some() -> None:
    dataset = make_dataset(np.arange(40) % 2, [0, 1, 1], 2)
    split = draw(SplitPlan(kind="iid", clients=20, min_size=1, test="shares"), dataset)
    assert split.tests is not None
    assert set(split.tests.sizes) == {1}
    assert split.tests.shared > 0
    assert np.unique(np.concatenate(split.tests.clients)).tolist() == [0, 1, 2]


def test_equal_clients_are_not_served_in_their_order() -> None:
    """100 clients want a tenth of an image of each class: rounding up must not favour the first ones."""
    dataset = make_dataset(np.arange(1000) % 10, np.arange(100) % 10, 10)
    split = draw(SplitPlan(kind="classes", classes=10, clients=100, min_size=1, test="shares"), dataset)
    assert split.tests is not None
    assert set(split.tests.sizes) == {1}
    assert np.array_equal(np.sort(np.concatenate(split.tests.clients)), np.arange(100))


# Pinned when they were first right: a change here changes everybody's test sets.
PINNED = {"shares": "094b2b4457789e5d", "holdout": "ebfbaf359136a138"}


@pytest.mark.parametrize("kind", PINNED)
def test_test_sets_stay(kind: Any) -> None:
    plain, split = draw(replace(PLAN, test="none")), draw(replace(PLAN, test=kind))
    assert split.sha256[:16] == PINNED[kind]
    assert draw(replace(PLAN, test=kind, seed=4)).sha256 != split.sha256
    assert plain.sha256 == partition(LABELS, 10, PLAN).sha256 != split.sha256


def test_auto_is_shares_for_personalised_methods_unless_test_images_are_trained_on() -> None:
    kinds = [draw(PLAN, personalised=p, pooled=q).tests for p in (False, True) for q in (False, True)]
    assert [tests and tests.kind for tests in kinds] == [None, None, "shares", None]
    with pytest.raises(UserError, match="lets clients train on the test images"):
        draw(replace(PLAN, test="shares"), pooled=True)
    assert draw(replace(PLAN, test="holdout"), pooled=True).tests is not None


def test_a_file_may_carry_test_sets(tmp_path: Path) -> None:
    own = {kind: draw(replace(PLAN, test=kind, seed=9)) for kind in ("shares", "holdout", "none")}  # type: ignore[arg-type]
    for kind, split in own.items():
        split.save(tmp_path / f"{kind}.json")

    def load(kind: str, **plan: Any) -> Split:
        return draw(replace(PLAN, file=str(tmp_path / f"{kind}.json"), **plan))

    for kind, split in own.items():
        assert load(kind).sha256 == split.sha256, "auto takes what is there"
        assert load(kind, test=kind).sha256 == split.sha256
    assert load("shares", test="none").sha256 == own["none"].sha256
    unused = load("holdout", test="none")
    assert (unused.tests, unused.sizes) == (None, own["holdout"].sizes)
    assert unused.dropped == 1000 - sum(unused.sizes)
    tests = load("none", test="holdout").tests
    assert tests is not None
    assert min(tests.sizes) > 0
    with pytest.raises(UserError, match=r'split\.test is "holdout" but .* kind "shares"'):
        load("shares", test="holdout")
    with pytest.raises(UserError, match="for 300 test images but the dataset has 200"):
        draw(replace(PLAN, file=str(tmp_path / "shares.json")), make_dataset(LABELS, TEST_LABELS[:200], 10))


def test_a_file_without_test_sets_has_the_same_content_as_before(tmp_path: Path) -> None:
    draw(PLAN).save(tmp_path / "split.json")
    content = json.loads((tmp_path / "split.json").read_text())
    assert sorted(content) == ["clients", "draws", "format", "moved", "origin", "samples", "sha256"]


def edit_file(path: Path, change: Any) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("kind", ["shares", "holdout"])
@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("changed after it was saved", lambda c: c["tests"]["clients"][0].pop()),
        ("changed after it was saved", lambda c: c.pop("tests")),
        ("entry 'tests'", lambda c: c["tests"].pop("kind")),
        ("entry 'tests'", lambda c: c["tests"].update(kind="all")),
        ("entry 'tests'", lambda c: c["tests"].update(kind=["shares"])),
        ("entry 'tests'", lambda c: c["tests"].update(more=1)),
        ("entry 'tests'", lambda c: c["tests"].update(samples=-1)),
        ("entry 'tests'", lambda c: c["tests"]["clients"].append([0.5])),
        ("entry 'tests'", lambda c: c.update(tests=None)),
        ("test sets of 4", lambda c: c["tests"]["clients"].pop()),
        ("is tested on sample 100000", lambda c: c["tests"]["clients"][0].append(100000)),
        ("is tested on sample -1", lambda c: c["tests"]["clients"][0].append(-1)),
        ("tested twice", lambda c: c["tests"]["clients"][0].append(c["tests"]["clients"][0][0])),
    ],
)
def test_damaged_test_sets_are_refused_in_a_sentence(tmp_path: Path, kind: Any, words: str, change: Any) -> None:
    draw(replace(PLAN, test=kind)).save(tmp_path / "split.json")
    edit_file(tmp_path / "split.json", change)
    # Without its held-out samples a split is not whole, which is noticed before its checksum.
    incomplete = kind == "holdout" and words.startswith("changed")
    with pytest.raises(UserError, match="give every sample" if incomplete else words):
        Split.load(tmp_path / "split.json")


def test_nobody_is_tested_on_what_somebody_trains_on() -> None:
    with pytest.raises(UserError, match="sample 1 is trained on and tested on"):
        Split((np.array([0, 1]), np.array([2])), 4, tests=ClientTests("holdout", (np.array([3]), np.array([1])), 4))
    with pytest.raises(UserError, match="its held-out parts are of 5"):
        Split((np.array([0, 1]), np.array([2])), 4, tests=ClientTests("holdout", (np.array([3]), np.array([])), 5))
    with pytest.raises(UserError, match="to more than one client"):
        Split((np.array([0]), np.array([1])), 3, tests=ClientTests("holdout", (np.array([2]), np.array([2])), 3))
