"""The audited examples: as many members as non-members, with the same classes, and whose each one is.

A pool is the training images followed by the test images. Members are the samples that the run's split gave to clients;
the rest is held out. Of each class as many are drawn from either, so that knowing the class tells nothing. What
a client has that never took part is neither: the model did not see it, and it is not held out from shadows.

Held-out examples have no client. For shadows, and for results by client, they are given to clients in the proportions
in which the split gave them that class, so that a client's members and its non-members have the same classes too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from fedptr.audit.metrics import ENOUGH
from fedptr.audit.roc import Flags
from fedptr.data.partition import apportion
from fedptr.data.split import Ints, Split
from fedptr.errors import UserError


@dataclass(frozen=True, eq=False)
class Examples:
    rows: Ints  # of the pool, ascending
    member: Flags
    client: Ints
    background: tuple[Ints, ...]  # by client, the samples that are not audited: every shadow has them
    samples: int  # in the pool

    @property
    def sha256(self) -> str:
        parts = (self.rows, self.member.astype(np.int64), self.client)
        return hashlib.sha256(b"".join(part.astype("<i8").tobytes() for part in parts)).hexdigest()

    def split(self, inside: Flags, clients: int, origin: str) -> Split:
        """The background and the examples inside, each with its client; or all with one."""
        own = [[background, self.rows[inside & (self.client == i)]] for i, background in enumerate(self.background)]
        parts = [np.concatenate(part) for part in own]
        if clients == 1:
            parts = [np.concatenate(parts)]
        dropped = self.samples - sum(map(len, parts))
        return Split(tuple(parts), self.samples, origin=origin, dropped=dropped)


def choose_examples(
    split: Split, labels: Ints, most: int, rng: np.random.Generator, seen: Collection[int] | None = None
) -> Examples:
    """The examples of a run over a pool with these labels; at most `most` members (0 = as many as there are).

    `seen`: the clients that took part (None = all of them).
    """
    owner = np.full(len(labels), -1, dtype=np.int64)
    for i, indices in enumerate(split.clients):
        owner[indices] = i
    trained = owner >= 0 if seen is None else np.isin(owner, list(seen))
    classes = np.unique(labels)
    if 0 < most < len(classes):
        raise UserError(f"--examples {most} is too few for {len(classes)} classes; ask for {len(classes)} or more")
    cap = most // len(classes) if most else len(labels)
    rows: list[Ints] = []
    for k in classes:
        members, rest = (rng.permutation(np.flatnonzero((labels == k) & side)) for side in (trained, owner < 0))
        n = min(len(members), len(rest), cap)
        if n:
            shares = np.bincount(owner[members], minlength=len(split.clients))
            owner[rest[:n]] = -2 - np.repeat(np.arange(len(shares)), apportion(n, shares))  # held out, and whose
            rows += [members[:n], rest[:n]]
    n = sum(map(len, rows)) // 2
    if n < ENOUGH:
        raise UserError(
            f"{n} training images have held-out ones of their class beside them, and {ENOUGH} are the least to say "
            "anything of membership; audit a run with more test images"
        )
    chosen = np.sort(np.concatenate(rows))
    member = owner[chosen] >= 0
    client = np.where(member, owner[chosen], -2 - owner[chosen])
    background = tuple(np.setdiff1d(indices, chosen) for indices in split.clients)
    return Examples(chosen, member, client, background, len(labels))
