"""Class-balanced subsets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedptr.data.dataset import Dataset, subset
from fedptr.errors import UserError


def dataset(labels, classes=10):
    y = np.array(labels, np.int64)
    x = np.arange(len(y), dtype=np.float32)[:, None, None, None]
    return Dataset("toy", x, y, x, y, (0.0,), (1.0,), tuple(map(str, range(classes))), "made up")


@given(st.lists(st.integers(0, 3), min_size=4, max_size=60), st.integers(0, 9), st.data())
def test_a_subset_is_as_balanced_as_can_be(labels, seed, data):
    n = data.draw(st.integers(min(4, len(labels)), len(labels)))
    part = subset(dataset(labels, 4), n, 0, seed)
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
    one, same, other = (subset(whole, 50, 20, seed) for seed in (1, 1, 2))
    assert (one.train_x == same.train_x).all()
    assert (one.train_x != other.train_x).any()
    assert one.source == "made up, 50 of 200 training images, 20 of 200 test images, seed 1"
    assert (subset(whole, 0, 20, 1).test_x == one.test_x).all()
    assert subset(whole, 0, 0, 1) == whole


@pytest.mark.parametrize(("n", "words"), [(201, "has 200 training"), (9, "too few for the 10 classes"), (-1, "few")])
def test_impossible_subsets(n, words):
    with pytest.raises(UserError, match=words):
        subset(dataset(list(range(10)) * 20), n, 0, 0)
