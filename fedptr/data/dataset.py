"""A dataset in memory (or memory-mapped): images, labels, and the constants that normalise them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedptr.data.targets import LabelGroups, Target, group_label_sets, group_numbers
from fedptr.errors import UserError

Array = npt.NDArray[Any]
HASHED = 4096  # samples at a time
PARTS = ("train_x", "train_y", "test_x", "test_y")
USER_PARTS = ("users", "test_users")  # which not every dataset has


@dataclass(frozen=True)
class Dataset:
    """Images are [n, C, H, W] in uint8 (own data may be float32); labels are int64, and label k is `classes[k]`.

    Where the target is a number, labels are float32 in their own units, and there are no classes; where it is several
    labels, they are rows of zeros and ones, a column for each of `classes`.
    Texts are [n, length] token numbers in int64, below `vocabulary`, and are not normalised.
    """

    name: str
    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    mean: tuple[float, ...]  # per channel, in the units of the stored pixels: 0..255 for photographs
    std: tuple[float, ...]
    classes: tuple[str, ...]
    source: str  # where it was found and in which form, in words
    left_out_tests: int = 0  # test images that are not in the subset
    held_out: Array | None = None  # the training samples that are the test part, as positions among all of them
    target: Target = "class"
    label_mean: float = 0.0  # of the numbers in the training part
    label_std: float = 1.0
    vocabulary: int = 0  # of texts: how many token numbers there are; 0 = these are no texts
    users: Array | None = None  # int64: whose training sample it is; user k is `user_names[k]`
    user_names: tuple[str, ...] = ()
    test_users: Array | None = None

    @property
    def outputs(self) -> int:
        """The outputs of a model for it."""
        return 1 if self.target == "number" else len(self.classes)

    def label_groups(self) -> LabelGroups:
        """The classes; of numbers the tenth that each is in, and of several labels the rarest."""
        if self.target == "number":
            return group_numbers(np.asarray(self.train_y), np.asarray(self.test_y))
        if self.target == "labels":
            return group_label_sets(np.asarray(self.train_y), np.asarray(self.test_y), self.classes)
        return LabelGroups(self.train_y, self.test_y, self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image: channels, height, width; of one text: length, vocabulary."""
        shape = tuple(int(n) for n in self.train_x.shape[1:])
        return (*shape, self.vocabulary) if self.vocabulary else shape

    def describe_test_part(self) -> str:
        """Which part of the test images is used; empty if all are."""
        return describe_test_part(len(self.test_y), self.left_out_tests)


def describe_test_part(used: int, left_out: int) -> str:
    """
    >>> describe_test_part(2000, 8000), describe_test_part(10000, 0)
    ('tested on 2,000 of 10,000 test images', '')
    """
    return f"tested on {used:,} of {used + left_out:,} test images" if left_out else ""


def array_sha256(array: Array) -> str:
    """Checksum of the little-endian, C-ordered bytes, the same for every on-disk form."""
    little = array.dtype.newbyteorder("<")
    return hashlib.sha256(np.ascontiguousarray(array, dtype=little).data).hexdigest()


def dataset_digest(dataset: Dataset) -> str:
    """Checksum of every label and every image, of the training and the test part."""
    found = hashlib.sha256()
    for array in (dataset.train_y, dataset.test_y, dataset.train_x, dataset.test_x):
        found.update(f"{array.dtype.str} {array.shape} ".encode())
        for start in range(0, len(array), HASHED):
            found.update(np.ascontiguousarray(array[start : start + HASHED]).data)
    return found.hexdigest()


def sampled_digest(dataset: Dataset) -> str:
    """What runs of earlier versions know their data by: all labels and a sample of the images."""
    found = hashlib.sha256(dataset.train_y.tobytes() + dataset.test_y.tobytes())
    for images in (dataset.train_x, dataset.test_x):
        found.update(images[:: max(1, len(images) // 256)].tobytes())
    return found.hexdigest()


def take_subset(dataset: Dataset, n: int, n_test: int, seed: int, number: int = 0) -> Dataset:
    """`n` training and `n_test` test images, with classes as balanced as possible; 0 keeps all.

    Subsets of the same size and seed but different `number` share no image.
    """
    groups = dataset.label_groups() if n or n_test else None
    train = groups and _choose_balanced(dataset, groups.names, "training", groups.train, n, (seed, 0), number)
    test = groups and _choose_balanced(dataset, groups.names, "test", groups.test, n_test, (seed, 1), number)
    kept = [
        f"{len(keep)} of {len(labels)} {part} images"
        for part, keep, labels in (("training", train, dataset.train_y), ("test", test, dataset.test_y))
        if keep is not None
    ]
    if train is not None:
        dataset = keep_training_samples(dataset, train)
    if test is not None:
        left_out = len(dataset.test_y) - len(test)
        users = None if dataset.test_users is None else dataset.test_users[test]
        x, y = dataset.test_x[test], dataset.test_y[test]
        dataset = replace(dataset, test_x=x, test_y=y, left_out_tests=left_out, test_users=users)
    which = [f"seed {seed}", *([f"subset {number}"] if number else [])] if kept else []
    return replace(dataset, source=", ".join([dataset.source, *kept, *which]))


def keep_training_samples(dataset: Dataset, rows: Array) -> Dataset:
    """The dataset with these of its training samples; the test part stays as it is."""
    users = None if dataset.users is None else dataset.users[rows]
    return replace(dataset, train_x=dataset.train_x[rows], train_y=dataset.train_y[rows], users=users)


def pool_parts(dataset: Dataset) -> Dataset:
    """Appends the test images to the training images, so that a split can give clients images of both."""
    x, y = (np.concatenate([getattr(dataset, part + axis) for part in ("train_", "test_")]) for axis in "xy")
    users, test_users = dataset.users, dataset.test_users
    if users is not None:  # unknown of one part, unknown of all
        users = None if test_users is None else np.concatenate([users, test_users])
    source = f"{dataset.source}, training and test images pooled"
    return replace(dataset, train_x=x, train_y=y, users=users, held_out=None, source=source)


def _choose_balanced(
    dataset: Dataset, names: Sequence[str], part: str, labels: Array, n: int, seed: tuple[int, int], number: int
) -> Array | None:
    """Positions to keep, in file order; None means all of them."""
    total, classes, rng = len(labels), len(names), np.random.default_rng(seed)
    if n == 0:
        return None
    if n > total:
        raise UserError(f"{dataset.name} has {total} {part} images, not {n}; ask for at most {total}, or 0 for all")
    if n < classes:
        kind = "classes" if dataset.target == "class" else "groups of labels"
        raise UserError(
            f"{n} {part} images are too few for the {classes} {kind} of {dataset.name}; ask for {classes} or more"
        )
    if (number + 1) * n > total:
        raise UserError(
            f"{dataset.name} has {total} {part} images: {total // n} subsets of {n}, so there is no number {number}"
        )
    shuffled = rng.permutation(total)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    sizes = np.bincount(labels, minlength=classes)
    rank = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # The first of every class, then the second of every class, and so on; other classes make up for those that run out.
    return np.sort(by_class[np.argsort(rank, kind="stable")[number * n : (number + 1) * n]])
