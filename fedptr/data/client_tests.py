"""Gives every client a test set: test images in its own class shares, or a part of its own data.

>>> labels = np.repeat(np.arange(2), 50)
>>> split = Split((np.arange(0, 60), np.arange(60, 100)), samples=100)
>>> draw_shares(split.counts(labels, 2), np.repeat(np.arange(2), 10), RandomState(0))[1].size  # 40 of class 1's 50
8
>>> [len(part) for part in draw_holdout(split, labels, 2, 0.2, RandomState(0))]
[12, 8]
"""

from __future__ import annotations

import collections
import math
from dataclasses import replace

import numpy as np
from numpy.random import RandomState

from fedptr.data.dataset import Dataset
from fedptr.data.partition import SplitPlan, apportion, deal_samples
from fedptr.data.split import ClientTests, Ints, Split
from fedptr.errors import UserError

STREAMS = {"shares": 1, "holdout": 2}  # beside the seed: apart from the training split's stream, and from each other


def add_client_tests(
    split: Split, dataset: Dataset, plan: SplitPlan, personalised: bool = False, pooled: bool = False
) -> Split:
    """The split with the test sets that the plan asks for; the same plan gives the same ones.

    Test sets from a file stay as they are. `personalised`: what `auto` stands for depends on it. `pooled`: the test
    images are among those that clients train on.
    """
    by_user = plan.kind == "users" and not plan.file and all(len(part) for part in find_user_tests(split, dataset))
    usual = split.tests.kind if split.tests else ("users" if by_user else "shares") if personalised else "none"
    kind = usual if plan.test == "auto" else plan.test
    if plan.test == "auto" and pooled and not split.tests:
        kind = "none"
    if kind == "none":
        return remove_tests(split)
    if kind in ("shares", "users") and pooled:
        raise UserError(
            'data.pool = "all" lets clients train on the test images, so they cannot be tested on them; set split.test '
            'to "holdout" or "none"'
        )
    if split.tests:
        check_tests(split.tests, "shares" if kind == "users" else kind, len(dataset.test_y), plan.file)
        return split
    if kind == "users":
        return replace(split, tests=ClientTests("shares", take_user_tests(split, dataset), len(dataset.test_y)))
    groups, rng = dataset.label_groups(), RandomState([plan.seed, STREAMS[kind]])
    classes = len(groups.names)
    if kind == "shares":
        parts = draw_shares(split.counts(groups.train, classes), np.asarray(groups.test), rng)
        return replace(split, tests=ClientTests("shares", parts, len(dataset.test_y)))
    parts = draw_holdout(split, np.asarray(groups.train), classes, plan.test_part, rng)
    kept = tuple(np.setdiff1d(own, part) for own, part in zip(split.clients, parts, strict=True))
    origin = f"{split.origin}, {plan.test_part:g} of each client held out"
    return replace(split, clients=kept, origin=origin, tests=ClientTests("holdout", parts, split.samples))


def find_user_tests(split: Split, dataset: Dataset) -> tuple[Ints, ...]:
    """Of every client the test samples of its own users; none where the dataset does not know them."""
    if dataset.users is None or dataset.test_users is None:
        return (np.zeros(0, dtype=np.int64),) * len(split.clients)
    whose = [np.unique(dataset.users[own]) for own in split.clients]
    return tuple(np.flatnonzero(np.isin(dataset.test_users, users)) for users in whose)


def take_user_tests(split: Split, dataset: Dataset) -> tuple[Ints, ...]:
    parts = find_user_tests(split, dataset)
    if not any(len(part) for part in parts):
        raise UserError(
            f'split.test = "users" needs test samples of the clients\' own users, and {dataset.name} has none; set '
            'split.test to "shares" or "holdout"'
        )
    return parts


def remove_tests(split: Split) -> Split:
    """The split without test sets; what was held out for them stays unused."""
    if split.tests is None:
        return split
    held_out = sum(split.tests.sizes) if split.tests.kind == "holdout" else 0
    return replace(split, tests=None, dropped=split.dropped + held_out)


def check_tests(tests: ClientTests, kind: str, test_images: int, path: str) -> None:
    """Whether the test sets of a file are what the plan asks for."""
    if tests.kind != kind:
        raise UserError(
            f'split.test is "{kind}" but {path} has test sets of the kind "{tests.kind}"; set split.test = "auto" to '
            "use them"
        )
    if kind == "shares" and tests.samples != test_images:
        raise UserError(
            f"the test sets of {path} are for {tests.samples} test images but the dataset has {test_images}; use the "
            'dataset they were made for, or set split.test = "none"'
        )


def draw_shares(counts: Ints, test_labels: Ints, rng: RandomState) -> tuple[Ints, ...]:
    """Every class's test images, dealt to clients in proportion to their training samples of it (clients × classes).

    A client that gets nothing is given an image of its largest class by the client that has most of them, or of the
    next class that has one to spare. If no other client has more than one test image of its classes, it shares one.
    """
    clients, classes = counts.shape
    available = np.bincount(test_labels, minlength=classes)
    table = np.zeros((classes, clients), dtype=np.int64)
    trained = counts.sum(axis=0) > 0
    for label in np.flatnonzero(trained):
        order = rng.permutation(clients)  # of equal fractions, not always the first clients' are rounded up
        table[label, order] = apportion(int(available[label]), counts[order, label])
    shared = _give_everyone_one(table, counts, available)
    shuffled = rng.permutation(len(test_labels))
    known = shuffled[trained[test_labels[shuffled]]]  # a class that nobody trains on tests nobody
    parts = list(deal_samples(test_labels, known, table))
    uses: collections.Counter[int] = collections.Counter()
    for client, largest in shared.items():
        images = np.flatnonzero(test_labels == largest)
        parts[client] = images[[uses[largest] % len(images)]]
        uses[largest] += 1
    return tuple(parts)


def _give_everyone_one(table: Ints, counts: Ints, available: Ints) -> dict[int, int]:
    """Moves test images to clients that have none; returns who must share one instead, and of which class."""
    sizes, shared = table.sum(axis=0), dict[int, int]()
    for needy in np.flatnonzero((sizes == 0) & (counts.sum(axis=1) > 0)):
        own = np.flatnonzero((available > 0) & (counts[needy] > 0))
        if not len(own):  # there are no test images of its classes
            continue
        largest_first = own[np.argsort(-counts[needy, own], kind="stable")]
        spare = np.where(sizes > 1, table[largest_first], 0)
        if not spare.any():
            shared[int(needy)] = int(largest_first[0])
            continue
        row = spare.any(axis=1).argmax()
        for client, change in ((spare[row].argmax(), -1), (needy, 1)):
            table[largest_first[row], client] += change
            sizes[client] += change
    return shared


def draw_holdout(split: Split, labels: Ints, classes: int, part: float, rng: RandomState) -> tuple[Ints, ...]:
    """A part of every client's samples, of each class in proportion; a client keeps at least one to train on."""
    found = []
    for indices in split.clients:
        n = min(max(1, math.floor(part * len(indices) + 0.5)), len(indices) - 1)
        shuffled = indices[rng.permutation(len(indices))]
        by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
        sizes = np.bincount(labels[indices], minlength=classes)
        take = apportion(n, sizes) if n > 0 else np.zeros_like(sizes)
        rank = np.arange(len(indices)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within its class
        found.append(by_class[rank < np.repeat(take, sizes)])
    return tuple(found)
