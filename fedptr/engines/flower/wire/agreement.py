"""What server and nodes agree on before the first round: the classes, the images' shape, and their normalisation.

Where labels are numbers there are no classes, and the labels' normalisation is agreed on like that of the images.

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
from fedptr.data.targets import Target
from fedptr.errors import UserError

OF_LABELS = ("target", "label_mean", "label_std")
LABELS: dict[Target, str] = {"class": "classes", "number": "numbers", "labels": "several labels a sample"}
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
    target: Target = "class"
    label_mean: float = 0.0
    label_std: float = 1.0


@dataclass(frozen=True)
class Agreement:
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    images: int  # of all nodes at the start; fixed, because it decides how a run is computed
    target: Target = "class"
    label_mean: float = 0.0
    label_std: float = 1.0

    def to_words(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if self.target != "class" or name not in OF_LABELS}

    @classmethod
    def from_words(cls, words: dict[str, Any]) -> Agreement:
        classes, shape, mean, std = (tuple(words[name]) for name in ("classes", "shape", "mean", "std"))
        labels = {name: words[name] for name in OF_LABELS if name in words}
        return cls(classes, shape, mean, std, int(words["images"]), **labels)


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
    labels = combine_label_moments(offers)
    found = Agreement(names, first.shape, mean, std, sum(offer.size for offer in offers), first.target, *labels)
    for offer in offers:
        check_offer_fits(offer, found, first.name)
    return found


def check_offer_fits(offer: Offer, agreed: Agreement, whose: str = "the run") -> None:
    """Raises, with the node's name, where an offer does not fit."""
    if offer.target != agreed.target:
        own, others = LABELS[offer.target], LABELS[agreed.target]
        raise UserError(f"node {offer.name} has {own} as labels, and {whose} {others}; make them alike")
    if offer.shape != agreed.shape:
        own, all_ = ("×".join(map(str, shape)) for shape in (offer.shape, agreed.shape))
        raise UserError(f"node {offer.name} has images of {own}, and {whose} of {all_}; make them alike")
    unknown = [name for name in offer.classes if name not in agreed.classes]
    if unknown:
        known = ", ".join(agreed.classes[:20])
        raise UserError(f"node {offer.name} has the class {unknown[0]!r}, which is not among the agreed ones: {known}")


def are_alike(a: Offer, b: Offer) -> bool:
    """Whether two nodes have images of one shape, with pixels of roughly one scale: one normalisation suits both.

    The same goes for their labels.
    """
    if a.shape != b.shape or a.target != b.target:
        return False
    pairs = [*zip(a.mean, b.mean, a.std, b.std, strict=True), (a.label_mean, b.label_mean, a.label_std, b.label_std)]
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
    labels = "" if offer.target == "class" else f" and {LABELS[offer.target]} as labels"
    scale = f" of {offer.label_mean:.3g}±{offer.label_std:.3g}" if offer.target == "number" else ""
    return f"{'×'.join(map(str, offer.shape))} with pixels of {pixels}{labels}{scale}"


def combine_moments(offers: Sequence[Offer]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation per channel of all images together; where all nodes have the same, exactly these."""
    return pool_moments([(offer.size, offer.mean, offer.std) for offer in offers])


def combine_label_moments(offers: Sequence[Offer]) -> tuple[float, float]:
    """The same of the labels, where they are numbers."""
    (mean,), (std,) = pool_moments([(offer.size, (offer.label_mean,), (offer.label_std,)) for offer in offers])
    return mean, std


def pool_moments(
    parts: Sequence[tuple[int, tuple[float, ...], tuple[float, ...]]],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """From the number of samples, the means and the deviations of each part."""
    _, first_mean, first_std = parts[0]
    if all((mean, std) == (first_mean, first_std) for _, mean, std in parts):
        return first_mean, first_std
    total = sum(size for size, _, _ in parts)
    means = [sum(mean[c] * size for size, mean, _ in parts) / total for c in range(len(first_mean))]
    squares = [
        sum((std[c] ** 2 + mean[c] ** 2) * size for size, mean, std in parts) / total for c in range(len(first_mean))
    ]
    stds = [math.sqrt(max(s - m * m, 1e-12)) for s, m in zip(squares, means, strict=True)]
    return tuple(means), tuple(stds)


def translate_dataset(dataset: Dataset, agreed: Agreement) -> Dataset:
    """The dataset with the agreed numbers of its classes, and the agreed normalisation."""
    if dataset.target != agreed.target:
        raise UserError(f"{dataset.name} has {LABELS[dataset.target]} as labels, not {LABELS[agreed.target]}")
    alike = replace(dataset, mean=agreed.mean, std=agreed.std)
    if agreed.target == "number":
        return replace(alike, label_mean=agreed.label_mean, label_std=agreed.label_std)
    unknown = [name for name in dataset.classes if name not in agreed.classes]
    if unknown:
        raise UserError(f"{dataset.name} has the class {unknown[0]!r}, which is not among the agreed ones")
    number = np.array([agreed.classes.index(name) for name in dataset.classes], dtype=np.int64)
    if agreed.target == "labels":
        train_y, test_y = (np.zeros((len(y), len(agreed.classes)), y.dtype) for y in (dataset.train_y, dataset.test_y))
        train_y[:, number], test_y[:, number] = dataset.train_y, dataset.test_y
    else:
        train_y, test_y = number[dataset.train_y], number[dataset.test_y]
    return replace(alike, train_y=train_y, test_y=test_y, classes=agreed.classes)


def make_empty_dataset(agreed: Agreement) -> Dataset:
    """A dataset without images, for a server without data: the model needs only their shape and the classes."""
    text = len(agreed.shape) == 2  # length and vocabulary
    x = np.zeros((0, agreed.shape[0]), np.int64) if text else np.zeros((0, *agreed.shape), np.uint8)
    y, vocabulary = np.zeros(0, np.int64), agreed.shape[1] if text else 0
    moments, source = (agreed.mean, agreed.std), "the nodes' own data"
    empty = Dataset("nodes", x, y, x, y, *moments, agreed.classes, source, vocabulary=vocabulary)
    if agreed.target == "class":
        return empty
    y = np.zeros((0, len(agreed.classes)) if agreed.target == "labels" else 0, np.float32)
    labels = {"target": agreed.target, "label_mean": agreed.label_mean, "label_std": agreed.label_std}
    return replace(empty, train_y=y, test_y=y, **labels)  # type: ignore[arg-type]
