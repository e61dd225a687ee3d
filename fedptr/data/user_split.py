"""Splits a dataset by its natural users: every client has all samples of one user, or of several.

>>> split = deal_users(np.array([0, 0, 1, 2, 2, 2]), ("ann", "bob", "eve"), clients=3, min_size=1)
>>> split.sizes, split.names
((2, 1, 3), ('ann', 'bob', 'eve'))
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import RandomState

from fedptr.data.split import Ints, Split
from fedptr.errors import UserError

NAMED = 3  # users of a client that its name lists


def deal_users(
    users: Ints, user_names: Sequence[str], clients: int = 0, min_size: int = 0, max_draws: int = 1, seed: int = 0
) -> Split:
    """Deals whole users to clients; 0 clients = one for every user, in the order of the users.

    Fewer clients than users get them at random, as many each to within one, until every client is large enough.
    """
    present, number, sizes = np.unique(users, return_inverse=True, return_counts=True)
    clients = clients or len(present)
    if clients > len(present):
        raise UserError(
            f"split.clients is {clients} but the samples are of {len(present)} users; set split.clients to at most "
            f"{len(present)}, or to 0 for a client for every user"
        )
    draw, owner = 1, np.arange(len(present))
    if clients == len(present):
        if sizes.min() < min_size:
            raise UserError(
                f"user {name_user(present[sizes.argmin()], user_names)} has {sizes.min()} samples, fewer than "
                f"split.min_size = {min_size}; lower it, or give every client several users with split.clients"
            )
    else:
        draw, owner = draw_owners(sizes, clients, min_size, max_draws, RandomState(seed))
    mine = owner[number]
    parts = tuple(np.flatnonzero(mine == client) for client in range(clients))
    who = [[name_user(user, user_names) for user in present[owner == client]] for client in range(clients)]
    origin = f"users({len(present)} users, min_size={min_size}" + (f", seed={seed})" if clients < len(present) else ")")
    return Split(parts, len(users), draw, 0, origin, names=tuple(map(join_names, who)))


def draw_owners(sizes: Ints, clients: int, min_size: int, max_draws: int, rng: RandomState) -> tuple[int, Ints]:
    """The client of every user, and how often was drawn until every client was large enough."""
    best = 0
    for draw in range(1, max_draws + 1):
        owner = rng.permutation(np.arange(len(sizes)) % clients)
        smallest = int(np.bincount(owner, weights=sizes).min())
        if smallest >= min_size:
            return draw, owner
        best = max(best, smallest)
    raise UserError(
        f"none of {max_draws} draws of whole users gave every one of {clients} clients split.min_size = {min_size} "
        f"samples (best smallest client: {best}); lower split.min_size or split.clients"
    )


def name_user(user: int, user_names: Sequence[str]) -> str:
    return user_names[user] if 0 <= user < len(user_names) else str(user)


def join_names(names: Sequence[str]) -> str:
    """
    >>> join_names(["ann"]), join_names(["ann", "bob", "eve", "kim", "lee"])
    ('ann', 'ann, bob, eve and 2 more')
    """
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
