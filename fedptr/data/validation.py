"""Holds out a part of the training samples to test on, so that nobody has to look at the test set.

Every class loses the same part, as nearly as whole samples allow, and keeps at least one sample. Where labels are not
class numbers, samples are drawn without regard to them. The draw depends on the labels, the part and the seed alone.

>>> choose_held_out(np.repeat([0, 1], [10, 5]), 0.2, seed=0).tolist()
[0, 2, 14]
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedptr.data.dataset import Array, Dataset, keep_training_samples
from fedptr.data.partition import SplitPlan, apportion, load_split, partition
from fedptr.data.split import ClientTests, Ints, Split
from fedptr.errors import UserError

STREAM = 2  # beside the seed: 0 and 1 draw the subsets


def hold_out_validation(dataset: Dataset, part: float, seed: int) -> Dataset:
    """The dataset with a part of its training samples as its test part; its own test part is dropped."""
    total = len(dataset.train_y)
    held_out = choose_held_out(np.asarray(dataset.train_y), part, seed)
    if len(held_out) in (0, total):
        raise UserError(
            f"data.validation = {part:g} of the {total} training samples of {dataset.name} leaves "
            f"{'none to test on' if not len(held_out) else 'none to train on'}; choose another part"
        )
    kept = keep_training_samples(dataset, np.setdiff1d(np.arange(total), held_out))
    return replace(
        kept,
        test_x=dataset.train_x[held_out],
        test_y=dataset.train_y[held_out],
        test_users=None if dataset.users is None else dataset.users[held_out],
        left_out_tests=0,
        held_out=held_out,
        source=f"{dataset.source}, {len(held_out)} of {total} training samples held out for validation, seed {seed}",
    )


def choose_held_out(labels: Array, part: float, seed: int) -> Ints:
    """Positions of the samples to hold out, ascending."""
    total, rng = len(labels), np.random.default_rng((seed, STREAM))
    classes = labels if labels.ndim == 1 and labels.dtype.kind in "iu" else np.zeros(total, dtype=np.int64)
    _, kinds, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    take = np.minimum(apportion(round(part * total), sizes), sizes - 1)
    shuffled = rng.permutation(total)
    by_class = shuffled[np.argsort(kinds[shuffled], kind="stable")]
    rank = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within its class
    found: Ints = np.sort(by_class[rank < np.repeat(take, sizes)])
    return found


def read_split_file(plan: SplitPlan, dataset: Dataset) -> Split:
    """The saved split of a plan, for a dataset with held-out samples.

    It may have been made for the whole training part, and then its clients lose the samples that are held out.
    """
    assert dataset.held_out is not None
    whole = len(dataset.train_y) + len(dataset.held_out)
    if Split.load(plan.file).samples != whole:
        groups = dataset.label_groups()
        return partition(groups.train, len(groups.names), plan, dataset.users, dataset.user_names)
    return remove_samples(load_split(plan, whole), dataset.held_out)


def remove_samples(split: Split, removed: Ints) -> Split:
    """The split of the samples that remain, which are numbered from 0 again. Test images of the clients are forgotten.

    >>> split = Split((np.array([0, 3]), np.array([1, 2, 4])), samples=5)
    >>> [part.tolist() for part in remove_samples(split, np.array([1, 3])).clients]
    [[0], [1, 2]]
    """
    kept = np.setdiff1d(np.arange(split.samples), removed)

    def renumber(parts: tuple[Ints, ...]) -> tuple[Ints, ...]:
        return tuple(np.searchsorted(kept, np.setdiff1d(part, removed)) for part in parts)

    clients, tests = renumber(split.clients), None
    if split.tests and split.tests.kind == "holdout":
        tests = ClientTests("holdout", renumber(split.tests.clients), len(kept))
    used = sum(map(len, clients)) + (sum(tests.sizes) if tests else 0)
    origin = f"{split.origin}, without {len(removed)} held-out samples"
    return Split(clients, len(kept), split.draws, split.moved, origin, len(kept) - used, tests)
