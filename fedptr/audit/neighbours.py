"""Distances between an owner's auxiliary images and real ones, class by class.

    X̃    the owner's auxiliary images of a class          own, held   as many of its own and of held-out samples

A distance is the root mean square difference of two images' normalised pixels. The nearest of few is farther than the
nearest of many, so own and held-out samples are compared in equal numbers, and the same ones in all rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedptr.audit.roc import Flags, Floats
from fedptr.audit.target import Target
from fedptr.data.split import Ints
from fedptr.runs.set_owners import SERVER, client_number
from fedptr.types import State

SAME = 1e-5  # below this distance two images are one: a set begins with exact copies


class OwnedClass(NamedTuple):
    """One class of one owner: rows of the pool."""

    owner: str
    label: int
    own: Ints  # all the owner's samples of the class
    held: Ints  # all held-out ones
    n: int  # the first n of either are compared


class Distances(NamedTuple):
    """What an owner's images of one class are near to."""

    to_own: Floats  # of every auxiliary image, the distance to the nearest of n own samples
    to_held: Floats
    to_any: Floats  # the same to the nearest of all own samples: an exact copy may not be among the n
    of_own: Floats  # of every own sample, the distance to the nearest auxiliary image
    of_held: Floats


def list_owned_classes(run: Target, owners: list[str], rng: np.random.Generator) -> list[OwnedClass]:
    """Every class of which an owner has samples and some are held out. A server is compared with all clients' data."""
    taken = np.concatenate(run.split.clients)
    labels, held = run.labels, np.setdiff1d(np.arange(len(run.labels)), taken)
    found = []
    for owner in owners:
        rows = taken if owner == SERVER else run.split.clients[client_number(owner)]
        for label in np.unique(labels[rows]):
            own, other = (rng.permutation(part[labels[part] == label]) for part in (rows, held))
            if n := min(len(own), len(other)):
                found.append(OwnedClass(owner, int(label), own, other, n))
    return found


def compute_distances(a: Tensor, b: Tensor) -> Tensor:
    """The distance of every image in `a` to every image in `b`."""
    one, two = (images.reshape(len(images), -1).double() for images in (a, b))
    # Not by products of matrices, whose rounding is larger than the distance of equal images.
    found: Tensor = torch.cdist(one, two, compute_mode="donot_use_mm_for_euclid_dist") / math.sqrt(one.shape[1])
    return found


def select_images(run: Target, rows: Ints) -> Tensor:
    x, _ = run.pool.take(torch.tensor(rows))
    return x.cpu()


def images_of_class(state: State, label: int) -> Tensor:
    return state["X"][state["y"] == label].cpu()


def measure_distances(run: Target, group: OwnedClass, state: State) -> Distances:
    X = images_of_class(state, group.label)
    own, held = (compute_distances(X, select_images(run, rows)) for rows in (group.own, group.held))
    nearest = [(d[:, : group.n].min(1).values, d.min(0).values) for d in (own, held)]
    (to_own, of_own), (to_held, of_held) = ((np.asarray(a), np.asarray(b)) for a, b in nearest)
    return Distances(to_own, to_held, np.asarray(own.min(1).values), of_own, of_held)


def find_start_samples(run: Target, group: OwnedClass, first: State) -> Flags:
    """Which of an owner's samples its set began as copies of."""
    return measure_distances(run, group, first).of_own < SAME


def find_closest_pairs(
    run: Target, found: list[OwnedClass], sets: dict[str, State]
) -> Iterator[tuple[float, float, OwnedClass, Tensor]]:
    """Every auxiliary image: the distance to the nearest own and held-out sample, and those three as pictures."""
    for group in found:
        X = images_of_class(sets[group.owner], group.label)
        sides = [select_images(run, rows) for rows in (group.own, group.held)]
        tables = [compute_distances(X, side) for side in sides]
        for i, x in enumerate(X):
            places = [int(table[i].argmin()) for table in tables]
            triple = torch.stack([x, *(side[place] for side, place in zip(sides, places, strict=True))])
            yield float(tables[0][i, places[0]]), float(tables[1][i, places[1]]), group, triple
