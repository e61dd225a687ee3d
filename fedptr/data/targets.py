"""What a dataset's labels are: classes, numbers to predict, or several labels a sample.

Numbers are kept as they were given, and standardised when they are used, with mean and deviation of the training part.
Subsets, splits and clients' test sets are drawn by class; numbers are grouped for that by quantiles, and a sample with
several labels counts as the rarest of them.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fedptr.errors import UserError

Array = npt.NDArray[Any]
Target = Literal["class", "number", "labels"]
Task = Literal["auto", "classification", "regression", "multi-label"]
TARGETS: dict[str, Target] = {"classification": "class", "regression": "number", "multi-label": "labels"}
GROUPS = 10  # of numbers, of about the same size


class LabelGroups(NamedTuple):
    """A class for every sample, also where labels are none."""

    train: Array
    test: Array
    names: tuple[str, ...]


def group_numbers(train: Array, test: Array) -> LabelGroups:
    """
    >>> group_numbers(np.arange(6.0), np.array([-3.0, 9.0])).names
    ('0 to 1', '1 to 2', '2 to 3', '3 to 4', '4 to 5', '5')
    """
    parts = np.arange(1, GROUPS) / GROUPS
    edges = np.unique(np.quantile(train, parts, method="inverted_cdf"))  # numbers that are there: no group is empty
    edges = edges[edges > train.min()]
    bounds = [f"{bound:.4g}" for bound in (train.min(), *edges, train.max())]
    names = [low if low == high else f"{low} to {high}" for low, high in itertools.pairwise(bounds)]
    own, tested = (np.searchsorted(edges, part, side="right").astype(np.int64) for part in (train, test))
    return LabelGroups(own, tested, tuple(names))


def group_label_sets(train: Array, test: Array, names: tuple[str, ...]) -> LabelGroups:
    """
    >>> train = np.array([[1, 1], [1, 0], [0, 0]])
    >>> group_label_sets(train, train, ("a", "b")).train.tolist()  # b is the rarer one
    [1, 0, 2]
    """
    order = np.argsort(train.sum(axis=0), kind="stable")  # the rarest first

    def group(labels: Array) -> Array:
        own = labels[:, order] > 0
        return np.where(own.any(axis=1), order[own.argmax(axis=1)], len(names)).astype(np.int64)

    found = group(train), group(test)
    none = ("none",) if max(int(part.max(initial=0)) for part in found) == len(names) else ()
    return LabelGroups(*found, names + none)


def label_moments(labels: Array) -> tuple[float, float]:
    """The mean and the deviation of the training labels."""
    return float(labels.mean(dtype=np.float64)), float(labels.std(dtype=np.float64))


def standardise(labels: Array, mean: float, std: float) -> Array:
    """Numbers as they are trained on: with mean 0 and deviation 1 over the training part."""
    return ((np.asarray(labels, dtype=np.float64) - mean) / std).astype(np.float32)


def check_number_labels(train: Array, test: Array, path: Path) -> tuple[Array, Array]:
    """Numbers to predict as float32, or a UserError that says why they are none."""
    found = []
    for part, labels in (("train", train), ("test", test)):
        if labels.ndim != 1 or labels.dtype.kind not in "iuf":
            there = f"{labels.dtype} of shape {list(labels.shape)}"
            raise UserError(f"{part}_y in {path} is {there}; data.task = regression needs one number for each sample")
        with np.errstate(over="ignore"):
            numbers = labels.astype(np.float32)
        if not np.isfinite(numbers).all():
            raise UserError(f"{part}_y in {path} has values that are NaN or infinite; replace them")
        found.append(numbers)
    if len(found[0]) and found[0].min() == found[0].max():
        raise UserError(f"the train part of {path} holds one number only as label; there is nothing to learn")
    return found[0], found[1]


def check_label_sets(train: Array, test: Array, path: Path) -> tuple[Array, Array]:
    """Rows of zeros and ones as float32, or a UserError that says why they are none."""
    found = []
    for part, labels in (("train", train), ("test", test)):
        if labels.ndim != 2 or labels.dtype.kind not in "iufb" or ((labels != 0) & (labels != 1)).any():
            there = f"{labels.dtype} of shape {list(labels.shape)}"
            raise UserError(f"{part}_y in {path} is {there}; data.task = multi-label needs rows of zeros and ones")
        found.append(labels.astype(np.float32))
    if found[0].shape[1] != found[1].shape[1] or not found[0].shape[1]:
        raise UserError(f"train_y and test_y in {path} have different labels; give both the same columns")
    return found[0], found[1]
