"""What server and nodes agree on before the first round: the classes, the images' shape, and their normalisation.

Every node sends the names of its classes and the moments of its images. The agreed classes are all of them, and each
node translates its labels to the agreed numbers. A node that joins later must fit the agreement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedptr.data.dataset import Dataset
from fedptr.data.image_folders import natural_order
from fedptr.errors import UserError


@dataclass(frozen=True)
class Offer:
    """What a node (or the server's test data) has."""

    name: str
    size: int
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Agreement:
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    images: int  # of all nodes at the start; fixed, because it decides how a run is computed

    def to_words(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_words(cls, words: dict[str, Any]) -> Agreement:
        classes, shape, mean, std = (tuple(words[name]) for name in ("classes", "shape", "mean", "std"))
        return cls(classes, shape, mean, std, int(words["images"]))


def make_agreement(offers: Sequence[Offer], classes: Sequence[str] = ()) -> Agreement:
    """All their classes (or the given ones), one shape, and the moments of all their images together.

    >>> a = Offer("a", 1, ("cat", "dog"), (1, 8, 8), (0.0,), (1.0,))
    >>> b = Offer("b", 3, ("cow", "dog"), (1, 8, 8), (4.0,), (1.0,))
    >>> make_agreement([a, b]).classes, make_agreement([a, b]).mean
    (('cat', 'cow', 'dog'), (3.0,))
    """
    first = offers[0]
    names = tuple(classes)
    if not names and all(offer.classes == first.classes for offer in offers):
        names = first.classes  # as the dataset has them
    if not names:
        names = tuple(sorted({name for offer in offers for name in offer.classes}, key=natural_order))
    mean, std = combine_moments(offers)
    found = Agreement(names, first.shape, mean, std, sum(offer.size for offer in offers))
    for offer in offers:
        check_offer_fits(offer, found, first.name)
    return found


def check_offer_fits(offer: Offer, agreed: Agreement, whose: str = "the run") -> None:
    """Raises, with the node's name, where an offer does not fit."""
    if offer.shape != agreed.shape:
        own, all_ = ("×".join(map(str, shape)) for shape in (offer.shape, agreed.shape))
        raise UserError(f"node {offer.name} has images of {own}, and {whose} of {all_}; make them alike")
    unknown = [name for name in offer.classes if name not in agreed.classes]
    if unknown:
        known = ", ".join(agreed.classes[:20])
        raise UserError(f"node {offer.name} has the class {unknown[0]!r}, which is not among the agreed ones: {known}")


def combine_moments(offers: Sequence[Offer]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation per channel of all images together; where all nodes have the same, exactly these."""
    first = offers[0]
    if all((offer.mean, offer.std) == (first.mean, first.std) for offer in offers):
        return first.mean, first.std
    total = sum(offer.size for offer in offers)
    mean = [sum(offer.mean[c] * offer.size for offer in offers) / total for c in range(len(first.mean))]
    square = [
        sum((offer.std[c] ** 2 + offer.mean[c] ** 2) * offer.size for offer in offers) / total
        for c in range(len(first.mean))
    ]
    std = [math.sqrt(max(s - m * m, 1e-12)) for s, m in zip(square, mean, strict=True)]
    return tuple(mean), tuple(std)


def translate_dataset(dataset: Dataset, agreed: Agreement) -> Dataset:
    """The dataset with the agreed numbers of its classes, and the agreed normalisation."""
    unknown = [name for name in dataset.classes if name not in agreed.classes]
    if unknown:
        raise UserError(f"{dataset.name} has the class {unknown[0]!r}, which is not among the agreed ones")
    number = np.array([agreed.classes.index(name) for name in dataset.classes], dtype=np.int64)
    train_y, test_y = number[dataset.train_y], number[dataset.test_y]
    return replace(dataset, train_y=train_y, test_y=test_y, classes=agreed.classes, mean=agreed.mean, std=agreed.std)


def make_empty_dataset(agreed: Agreement) -> Dataset:
    """A dataset without images, for a server without data: the model needs only their shape and the classes."""
    x, y = np.zeros((0, *agreed.shape), np.uint8), np.zeros(0, np.int64)
    return Dataset("nodes", x, y, x, y, agreed.mean, agreed.std, agreed.classes, "the nodes' own data")
