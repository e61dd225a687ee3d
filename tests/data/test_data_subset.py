"""Class-balanced subsets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedptr.data.dataset import Dataset, take_subset
from fedptr.errors import UserError
from fedptr.reproduce.recipe import load_recipe
from fedptr.runs.experiment import load_data
from fedptr.runs.plan import DataPlan


def dataset(labels, classes=10):
    y = np.array(labels, np.int64)
    x = np.arange(len(y), dtype=np.float32)[:, None, None, None]
    return Dataset("toy", x, y, x, y, (0.0,), (1.0,), tuple(map(str, range(classes))), "made up")


@given(st.lists(st.integers(0, 3), min_size=4, max_size=60), st.integers(0, 9), st.data())
def test_a_subset_is_as_balanced_as_can_be(labels, seed, data):
    n = data.draw(st.integers(min(4, len(labels)), len(labels)))
    part = take_subset(dataset(labels, 4), n, 0, seed)
    kept = part.train_x.ravel().astype(int)
    assert len(kept) == n
    assert (np.diff(kept) > 0).all()  # in file order, nothing twice
    assert (part.train_y == np.array(labels)[kept]).all()
    got, there = np.bincount(part.train_y, minlength=4), np.bincount(labels, minlength=4)
    short = got < there  # classes with images left over get all but equally many, and as many as any other
    assert got[short].min(initial=n) >= got.max() - 1
    assert len(part.test_y) == len(labels)


def test_subset_depends_on_the_seed_alone():
    whole = dataset(list(range(10)) * 20)
    one, same, other = (take_subset(whole, 50, 20, seed) for seed in (1, 1, 2))
    assert (one.train_x == same.train_x).all()
    assert (one.train_x != other.train_x).any()
    assert one.source == "made up, 50 of 200 training images, 20 of 200 test images, seed 1"
    assert (take_subset(whole, 0, 20, 1).test_x == one.test_x).all()
    assert take_subset(whole, 0, 0, 1) == whole


def test_numbered_subsets_share_no_image() -> None:
    labels = [0] * 90 + [1] * 60 + [2] * 60
    whole = dataset(labels, 3)
    parts = [take_subset(whole, 60, 60, 3, number) for number in range(3)]
    for side in ("train_x", "test_x"):
        kept = np.concatenate([getattr(part, side) for part in parts])
        assert len(np.unique(kept.reshape(len(kept), -1), axis=0)) == 180
    assert [np.bincount(part.train_y).tolist() for part in parts] == [[20, 20, 20]] * 3
    assert (take_subset(whole, 60, 60, 3).train_x == parts[0].train_x).all()
    with pytest.raises(UserError, match=r"has 210 training images: 3 subsets of 60, so there is no number 3"):
        take_subset(whole, 60, 60, 3, 3)
    with pytest.raises(UserError, match=r"data.number needs a size"):
        load_data(DataPlan(number=1))


def test_tuning_is_on_other_images_than_the_reported() -> None:
    recipes = [load_recipe("tuning"), load_recipe("global-methods")]
    tuning, reported = (one.make_plan(one.rows[0], one.columns[0], "cpu", 0).data for one in recipes)
    assert (tuning.subset, tuning.subset_test, tuning.seed) == (reported.subset, reported.subset_test, reported.seed)
    assert (tuning.number, reported.number) == (1, 0)


@pytest.mark.parametrize(("n", "words"), [(201, "has 200 training"), (9, "too few for the 10 classes"), (-1, "few")])
def test_impossible_subsets(n, words):
    with pytest.raises(UserError, match=words):
        take_subset(dataset(list(range(10)) * 20), n, 0, 0)
