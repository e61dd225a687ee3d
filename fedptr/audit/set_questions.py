"""What a set of images gives away of its owner's samples, asked for every owner and class.

    copies    how many of its images are samples of the owner, pixel by pixel?
    closer    is one of its images nearer to the owner's samples than to as many held-out ones of its class?
    members   can the owner's samples be told from held-out ones by their distance to the set?
    starts    can those samples be told that a real-initialised set began as copies of? Of noise, as a control

Half is chance, but for copies. Being nearest is the only attack here: a stronger one may do better.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedptr.audit.metrics import ENOUGH, measure_attack
from fedptr.audit.neighbours import SAME, Distances, OwnedClass, images_of_class, measure_distances
from fedptr.audit.roc import Flags, Floats
from fedptr.audit.shadows import make_generator
from fedptr.audit.target import Target
from fedptr.types import State

FOLDER = "auxiliary"
Result = dict[str, Any]


def ask_questions(
    run: Target, found: list[OwnedClass], began: list[Flags], t: int, state: dict[str, State], seed: int
) -> Result | None:
    """The answers to the four questions after one round; None if no owner of a set can be compared."""
    here = [
        (g, b, measure_distances(run, g, state[g.owner]))
        for g, b in zip(found, began, strict=True)
        if g.owner in state and len(images_of_class(state[g.owner], g.label))
    ]
    if not here:
        return None
    to_any = np.concatenate([n.to_any for _, _, n in here])
    rng = make_generator(seed, FOLDER, t)
    closer = np.concatenate([np.where(n.to_own == n.to_held, 0.5, n.to_own < n.to_held) for _, _, n in here])
    means = [closer[rng.integers(len(closer), size=len(closer))].mean() for _ in range(500)]
    return {
        "round": t,
        "images": len(closer),
        "distance_own": float(np.median(np.concatenate([n.to_own for _, _, n in here]))),
        "distance_held": float(np.median(np.concatenate([n.to_held for _, _, n in here]))),
        "distance_any": float(np.median(to_any)),
        "copies": float((to_any < SAME).mean()),
        "closer": float(closer.mean()),
        "closer_ci95": np.quantile(means, [0.025, 0.975]).tolist(),
        "members": attack_by_distance([(n.of_own[: g.n], n.of_held[: g.n]) for g, _, n in here], rng),
        "starts": attack_by_distance([starts_and_held_out(n, b, g.n) for g, b, n in here], rng),
    }


def starts_and_held_out(found: Distances, began: Flags, n: int) -> tuple[Floats, Floats]:
    """The samples a set began with, and as many held-out ones of the class."""
    few = min(int(began.sum()), n)
    return found.of_own[began][:few], found.of_held[:few]


def attack_by_distance(sides: list[tuple[Floats, Floats]], rng: np.random.Generator) -> Result | None:
    """Tells members from non-members by their distance to the set; None if there are too few."""
    own, held = (np.concatenate(side) for side in zip(*sides, strict=True))
    if len(own) < ENOUGH:
        return None
    member = np.arange(len(own) + len(held)) < len(own)
    found = measure_attack(-np.concatenate([own, held]), member, rng, draws=200)
    del found["roc"]
    return found
