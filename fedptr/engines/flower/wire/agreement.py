"""What server and nodes agree on before the first round: the classes, the images' shape, and their normalisation.

Every node sends the names of its classes and the moments of its images. The agreed classes are all of them, and each
node translates its labels to the agreed numbers. A node that joins later must fit the agreement. What the plan leaves
open is decided by more than half of the first nodes; no single node decides it for the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedptr.data.dataset import Dataset
from fedptr.data.image_folders import natural_order
from fedptr.errors import UserError

TIMES = 100  # how far the pixels of two nodes may be apart, in deviations of the smaller


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


def are_alike(a: Offer, b: Offer) -> bool:
    """Whether two nodes have images of one shape, with pixels of roughly one scale: one normalisation suits both."""
    if a.shape != b.shape:
        return False
    pairs = zip(a.mean, b.mean, a.std, b.std, strict=True)
    return all(abs(m - n) <= TIMES * min(s, t) and max(s, t) <= TIMES * min(s, t) for m, n, s, t in pairs)


def find_majority(offers: Sequence[Offer]) -> Offer | None:
    """The offer that most are like; None where that is not more than half of all.

    >>> a, b = (Offer(name, 9, ("cat", "dog"), (1, 8, 8), (120.0,), (60.0,)) for name in "ab")
    >>> odd = Offer("c", 9, ("cat", "dog"), (1, 8, 8), (120.0,), (1e6,))
    >>> find_majority([odd, a, b]).name, find_majority([odd, a])
    ('a', None)
    """
    likes = [sum(are_alike(offer, other) for other in offers) for offer in offers]
    most = max(likes, default=0)
    return offers[likes.index(most)] if 2 * most > len(offers) else None


def find_most_classes(offers: Sequence[Offer], limit: int) -> int | None:
    """Which offer has most classes that nobody else has, where all classes together are more than the limit."""
    counts = Counter(name for offer in offers for name in offer.classes)
    if len(counts) <= limit:
        return None
    own = [(sum(counts[name] == 1 for name in offer.classes), len(offer.classes)) for offer in offers]
    return own.index(max(own))


def describe_images(offer: Offer) -> str:
    """
    >>> describe_images(Offer("a", 9, (), (1, 8, 8), (120.0,), (60.0,)))
    '1×8×8 with pixels of 120±60'
    """
    pixels = ", ".join(f"{mean:.3g}±{std:.3g}" for mean, std in zip(offer.mean[:3], offer.std[:3], strict=True))
    return f"{'×'.join(map(str, offer.shape))} with pixels of {pixels}"


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
