"""Splits a dataset over clients.

Every kind of split draws a table, classes × clients: how many samples of a class each client gets. Tables are cheap, so
they are redrawn until every client is large enough; only the accepted one is turned into sample indices.

>>> labels = np.repeat(np.arange(10), 100)
>>> split = partition(labels, 10, SplitPlan(clients=4, alpha=0.1, min_size=50))
>>> split.sizes, split.draws
((251, 397, 211, 141), 1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.random import RandomState  # the legacy generator, whose streams never change, nor do splits

from fedptr.data.split import Ints, Split
from fedptr.data.user_split import deal_users
from fedptr.errors import UserError
from fedptr.settings import build_settings, setting


@dataclass(frozen=True)
class SplitPlan:
    """How to split a dataset over clients; `partition` does it.

    >>> SplitPlan(clients=4, alpha=0.1).kind
    'dirichlet'
    """

    kind: Literal["dirichlet", "dirichlet-by-client", "shards", "classes", "quantity", "iid", "users"] = setting(
        "dirichlet",
        "dirichlet draws the clients' shares of each class; dirichlet-by-client, each client's class mix; users gives "
        "each client all samples of one user, or of several",
    )
    clients: int = setting(10, "number of clients; 0 = one for every user, for kind users", ge=0, le=100_000)
    alpha: float = setting(0.04, "Dirichlet concentration: small is heterogeneous", example=0.5, gt=0, le=1e6)
    min_size: int = setting(10, "smallest allowed client, in samples; 0 allows empty clients", ge=0)
    policy: Literal["redraw", "repair"] = setting(
        "redraw", "for clients below min_size: draw again, or move samples to them from the largest clients"
    )
    max_draws: int = setting(20_000, "redraws before giving up", ge=1)
    shards: int = setting(2, "shards per client, for kind shards", ge=1)
    classes: int = setting(2, "classes per client, for kind classes", ge=1)
    sigma: float = setting(1.0, "spread of the log-normal client sizes, for kind quantity", ge=0, le=10)
    seed: int = setting(0, "separate from run.seed, so that runs can share a split", ge=0, lt=2**32)
    file: str = setting("", "use this saved split instead of drawing one", example="split.json")
    test: Literal["auto", "shares", "users", "holdout", "none"] = setting(
        "auto",
        "a test set for every client: shares = test images in its own class shares, users = those of its own users, "
        "holdout = a part of its own data; auto = users or else shares for methods that give clients models of their "
        "own, else none",
    )
    test_part: float = setting(0.2, "the part of its data that a client holds out, for test holdout", gt=0, lt=1)


def partition(
    labels: npt.ArrayLike,
    classes: int,
    plan: SplitPlan,
    users: npt.ArrayLike | None = None,
    user_names: Sequence[str] = (),
) -> Split:
    """Split the samples with these labels (0 to `classes` - 1) over clients; the same plan gives the same split.

    `users`: whose sample it is, for kind users, and what they are called.
    """
    plan = build_settings(SplitPlan, asdict(plan), "split")  # the ranges of a plan made in Python are not checked yet
    check_clients(plan)
    known = _check_labels(labels, classes)
    if plan.file:
        return load_split(plan, len(known))
    if plan.kind == "users":
        whose = _check_users(users, len(known), plan)
        return deal_users(whose, user_names, plan.clients, plan.min_size, plan.max_draws, plan.seed)
    if plan.clients * plan.min_size > len(known):
        raise UserError(
            f"split.min_size = {plan.min_size} for {plan.clients} clients needs {plan.clients * plan.min_size} samples "
            f"and the dataset has {len(known)}; lower split.min_size or split.clients"
        )
    rng = RandomState(plan.seed)
    tables = KINDS[plan.kind].draw(np.bincount(known, minlength=classes), plan, rng)
    draws, table = (1, next(tables)) if plan.policy == "repair" else _draw_until_large_enough(tables, plan)
    moved = _repair_sizes(table, plan.min_size)  # none after redrawing
    # the published Dirichlet splits deal each class in file order; other kinds must not depend on that order
    order = np.arange(len(known)) if plan.kind == "dirichlet" else rng.permutation(len(known))
    return Split(deal_samples(known, order, table), len(known), draws, moved, _describe_origin(plan))


def check_clients(plan: SplitPlan) -> None:
    """Whether the plan says how many clients there are."""
    if not plan.clients and plan.kind != "users" and not plan.file:
        raise UserError('split.clients must be at least 1, not 0, unless split.kind is "users"')


def _check_labels(labels: npt.ArrayLike, classes: int) -> Ints:
    known = np.asarray(labels)
    if known.ndim != 1 or known.dtype.kind not in "iu" or len(known) == 0:
        raise UserError(
            f"labels to split must be a list of class numbers, one for each sample, not {known.dtype} of shape "
            f"{known.shape}; check the dataset"
        )
    wrong = np.flatnonzero((known < 0) | (known >= classes))
    if len(wrong):
        raise UserError(
            f"sample {wrong[0]} has label {known[wrong[0]]} but the {classes} classes are 0 to {classes - 1}; "
            "check the dataset"
        )
    return known.astype(np.int64)


def _check_users(users: npt.ArrayLike | None, samples: int, plan: SplitPlan) -> Ints:
    if users is None:
        raise UserError(
            'split.kind = "users" needs to know whose sample each is, and this dataset does not say; add a column '
            "`user` to the table or `train_user` to the .npz file, or choose another kind"
        )
    known = np.asarray(users)
    if known.shape != (samples,) or known.dtype.kind not in "iu":
        raise UserError(f"users must be {samples} numbers, one a sample, not {known.dtype} of shape {known.shape}")
    if plan.policy == "repair":
        raise UserError('split.policy = "repair" would move samples from user to user; leave it at "redraw"')
    return known.astype(np.int64)


def load_split(plan: SplitPlan, samples: int) -> Split:
    """The saved split of a plan, which must be of this many samples."""
    split = Split.load(plan.file, samples)
    if plan.clients and len(split.clients) != plan.clients:
        raise UserError(
            f"split.clients is {plan.clients} but {plan.file} has {len(split.clients)} clients; "
            f"set split.clients = {len(split.clients)}"
        )
    return split


def _draw_until_large_enough(tables: Iterator[Ints], plan: SplitPlan) -> tuple[int, Ints]:
    best = 0
    for draw, table in enumerate(islice(tables, plan.max_draws), start=1):
        smallest = int(table.sum(axis=0).min())
        if smallest >= plan.min_size:
            return draw, table
        best = max(best, smallest)
    ways = ["lower split.min_size", *KINDS[plan.kind].easier, 'set split.policy = "repair"']
    raise UserError(
        f"none of {plan.max_draws} draws gave every one of {plan.clients} clients split.min_size = {plan.min_size} "
        f"samples (best smallest client: {best}); {', '.join(ways[:-1])} or {ways[-1]}"
    )


def _repair_sizes(table: Ints, min_size: int) -> int:
    """Moves samples, one at a time, from the largest client's largest class to clients that are too small.

    Clients have at least `min_size` on average, so while one has less, the largest has more.
    """
    sizes, moved = table.sum(axis=0), 0
    for needy in np.flatnonzero(sizes < min_size):
        while sizes[needy] < min_size:
            giver = sizes.argmax()
            label = table[:, giver].argmax()
            table[label, giver] -= 1
            table[label, needy] += 1
            sizes[giver] -= 1
            sizes[needy] += 1
            moved += 1
    return moved


def deal_samples(labels: Ints, order: Ints, table: Ints) -> tuple[Ints, ...]:
    """Deals the samples of each class, in the given order, to the clients in slices of the table's lengths."""
    by_class = order[np.argsort(labels[order], kind="stable")]
    owners = np.repeat(np.tile(np.arange(table.shape[1]), len(table)), table.ravel())
    by_client = by_class[np.argsort(owners, kind="stable")]
    return tuple(np.split(by_client, np.cumsum(table.sum(axis=0))[:-1]))


def _draw_dirichlet(pool: Ints, plan: SplitPlan, rng: RandomState) -> Iterator[Ints]:
    """The clients' shares of each class; one client gets the remainder. Draws in the order of the published code."""
    concentration = np.full(plan.clients, plan.alpha)
    while True:
        table = np.empty((len(pool), plan.clients), dtype=np.int64)
        for label, available in enumerate(pool):
            table[label] = (_draw_shares(rng, concentration) * available).astype(np.int64)
            left = available - table[label].sum()
            if left > 0:
                table[label, rng.randint(0, plan.clients)] += left
        yield table


def _draw_shares(rng: RandomState, concentration: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A Dirichlet draw; if a tiny alpha underflows to NaN, its limit: everything to one client."""
    shares = rng.dirichlet(concentration)
    return shares if np.isfinite(shares).all() else np.eye(1, len(shares), rng.randint(0, len(shares)))[0]


def _draw_dirichlet_by_client(pool: Ints, plan: SplitPlan, rng: RandomState) -> Iterator[Ints]:
    """The class mix of each client, around the mix of the dataset; clients of equal size choose in random order.

    A client whose classes run out is filled with another mix, of the classes that still have samples.
    """
    sizes = apportion(int(pool.sum()), np.ones(plan.clients))
    concentration = plan.alpha * pool / pool.mean()  # alpha for every class where classes are balanced
    while True:
        left, table = pool.copy(), np.zeros((len(pool), plan.clients), dtype=np.int64)
        for client in rng.permutation(plan.clients):
            while (need := sizes[client] - table[:, client].sum()) > 0:  # a pass that is not the last empties a class
                open_ = np.flatnonzero(left)
                take = np.minimum(apportion(need, _draw_shares(rng, concentration[open_])), left[open_])
                table[open_, client] += take
                left[open_] -= take
        yield table


def _draw_shards(pool: Ints, plan: SplitPlan, rng: RandomState) -> Iterator[Ints]:
    """Samples sorted by label and cut into equal shards, which are dealt at random."""
    samples, shards = int(pool.sum()), plan.clients * plan.shards
    if shards > samples:
        raise UserError(
            f"split.shards = {plan.shards} for {plan.clients} clients cuts {shards} shards and the dataset has "
            f"{samples} samples; lower split.shards or split.clients"
        )
    lengths = apportion(samples, np.ones(shards))
    while True:
        owners = rng.permutation(shards) // plan.shards
        yield _count_labels(np.repeat(np.arange(len(pool)), pool), np.repeat(owners, lengths), len(pool), plan.clients)


def _draw_classes(pool: Ints, plan: SplitPlan, rng: RandomState) -> Iterator[Ints]:
    """Each client, in random order, takes the classes with the fewest owners so far: balanced to within one."""
    if plan.classes > len(pool) or plan.clients * plan.classes < len(pool):
        raise UserError(
            f"split.classes = {plan.classes} with {plan.clients} clients cannot share out {len(pool)} classes so that "
            f"each has an owner; choose split.classes from {-(-len(pool) // plan.clients)} to {len(pool)}"
        )
    while True:
        owns = np.zeros((len(pool), plan.clients), dtype=np.int64)
        for client in rng.permutation(plan.clients):
            fewest_first = np.lexsort((rng.random_sample(len(pool)), owns.sum(axis=1)))
            owns[fewest_first[: plan.classes], client] = 1
        yield np.stack([apportion(available, owners) for available, owners in zip(pool, owns, strict=True)])


def _draw_quantity(pool: Ints, plan: SplitPlan, rng: RandomState) -> Iterator[Ints]:
    """Log-normal client sizes; every client has the same label distribution."""
    mixed = rng.permutation(np.repeat(np.arange(len(pool)), pool))
    while True:
        sizes = apportion(len(mixed), rng.lognormal(0.0, plan.sigma, plan.clients))
        yield _count_labels(mixed, np.repeat(np.arange(plan.clients), sizes), len(pool), plan.clients)


def _draw_iid(pool: Ints, plan: SplitPlan, rng: RandomState) -> Iterator[Ints]:
    return _draw_quantity(pool, replace(plan, sigma=0.0), rng)


def _count_labels(labels: Ints, owners: Ints, classes: int, clients: int) -> Ints:
    return np.bincount(labels * clients + owners, minlength=classes * clients).reshape(classes, clients)


def apportion(total: int, weights: npt.NDArray[np.float64] | Ints) -> Ints:
    """Integers in proportion to the weights that add up to the total; the largest fractions are rounded up."""
    exact = total * (weights / weights.sum())
    parts: Ints = exact.astype(np.int64)
    parts[np.argsort(parts - exact, kind="stable")[: total - parts.sum()]] += 1
    return parts


class Kind(NamedTuple):
    draw: Callable[[Ints, SplitPlan, RandomState], Iterator[Ints]]
    own: tuple[str, ...] = ()  # the settings that only this kind uses
    easier: tuple[str, ...] = ()  # what makes its clients more equal in size


KINDS = {
    "dirichlet": Kind(_draw_dirichlet, ("alpha",), ("raise split.alpha",)),
    "dirichlet-by-client": Kind(_draw_dirichlet_by_client, ("alpha",)),
    "shards": Kind(_draw_shards, ("shards",)),
    "classes": Kind(_draw_classes, ("classes",), ("raise split.classes",)),
    "quantity": Kind(_draw_quantity, ("sigma",), ("lower split.sigma",)),
    "iid": Kind(_draw_iid),
}


def _describe_origin(plan: SplitPlan) -> str:
    names = [*KINDS[plan.kind].own, "min_size", *(["policy"] if plan.policy == "repair" else []), "seed"]
    return f"{plan.kind}({', '.join(f'{name}={getattr(plan, name)}' for name in names)})"
