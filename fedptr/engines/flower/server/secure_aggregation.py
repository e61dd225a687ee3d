"""Secure aggregation on the server: by Flower's SecAgg+ over our courier it learns the mean of the replies alone.

Every node's numbers arrive masked. Nodes may drop out on the way while a majority of those asked stays; with fewer,
nothing is learnt and the round does not count. What arrives is checked before Flower's part reads it. Masked numbers
cannot be checked, so the bounds hold for the mean.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Message

from fedptr.engines.flower.patches.secagg_node import RECORD
from fedptr.engines.flower.patches.secagg_workflow import UnmaskableError, average_masked
from fedptr.engines.flower.wire.courier import Courier
from fedptr.engines.flower.wire.parcel import Parcel, parse_words
from fedptr.engines.flower.wire.records import to_records
from fedptr.errors import ReplyError

LEVELS = 1 << 22  # a number within ±range is rounded to one of these at random, so that it is right on average
MODULUS = 1 << 32
MOST = MODULUS // LEVELS - 1  # nodes, whose sum must not reach the modulus
KEYS = 120.0  # seconds for the messages that take no training


def rounding_step(bound: float) -> float:
    """The distance between two levels.

    >>> rounding_step(8.0) < 4e-6
    True
    """
    return 2 * bound / LEVELS


@dataclass
class Collected:
    mean: list[Any]  # one array per entry, by their sorted names
    words: dict[int, dict[str, Any]]  # by node, of those that are in the mean
    failures: dict[int, str]


def collect_mean(
    courier: Courier, orders: Mapping[int, Parcel], shapes: list[tuple[int, ...]], timeout: float
) -> Collected:
    """Lets the nodes carry out their orders, each of which has its `weight`, and returns the weighted mean."""
    if not 2 <= len(orders) <= MOST:
        raise UnmaskableError(f"secure aggregation takes 2 to {MOST} nodes, not {len(orders)}")
    first = next(iter(orders.values())).words
    carrier = CheckedGrid(courier, dict(orders), [(1,), *shapes], timeout)
    mean = average_masked(
        carrier,
        {node: to_records(order) for node, order in orders.items()},
        int(first["round"]) + 1,
        threshold=len(orders) // 2 + 1,
        max_weight=float(first["largest"]),
        clipping_range=float(first["range"]),
        quantization_range=LEVELS,
        modulus_range=MODULUS,
    )
    if mean is None:
        reasons = "; ".join(carrier.failures.values()) or "no node failed"
        raise UnmaskableError(f"too few nodes for secure aggregation ({reasons})")
    return Collected(mean, carrier.words, carrier.failures)


@dataclass
class CheckedGrid:
    """The grid that Flower's workflow sees. A reply that is not what it must be never reaches it."""

    courier: Courier
    orders: dict[int, Parcel]
    shapes: list[tuple[int, ...]]
    timeout: float
    words: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        to = {message.metadata.dst_node_id: message for message in messages}
        stage = str(next(iter(to.values())).content.config_records[RECORD]["stage"])
        training = stage == "collect_masked_vectors"
        replies, failures = self.courier.exchange_messages(to, self.timeout if training else min(KEYS, self.timeout))
        self.failures |= failures
        good = []
        for node, reply in replies.items():
            try:
                if reply.metadata.src_node_id != node:
                    raise ReplyError("answered as another node")
                CHECKS[stage](self, reply)
                if training:
                    record = reply.content.config_records.get("words")
                    self.words[node] = parse_words(record.get("json") if record else None)
                good.append(reply)
            except ReplyError as error:
                self.failures[node] = str(error)
        return good

    def check_keys(self, reply: Message) -> None:
        read_entries(reply, {"pk1": bytes, "pk2": bytes})

    def check_shares(self, reply: Message) -> None:
        found = read_entries(reply, {"dsts": int, "ctxts": bytes})
        if len(found["dsts"]) != len(found["ctxts"]) or not set(found["dsts"]) <= set(self.orders):
            raise ReplyError("sent shares for nodes that were not asked")

    def check_vectors(self, reply: Message) -> None:
        arrays = [
            read_whole_numbers(content) for content in read_entries(reply, {"masked_params": bytes})["masked_params"]
        ]
        if [None if array is None else array.shape for array in arrays] != self.shapes:
            raise ReplyError("sent masked numbers of another shape")

    def check_unmasking(self, reply: Message) -> None:
        found = read_entries(reply, {"nids": int, "shares": bytes})
        if len(found["nids"]) != len(found["shares"]) or not set(found["nids"]) <= set(self.orders):
            raise ReplyError("sent shares of nodes that were not asked")


CHECKS: dict[str, Callable[[CheckedGrid, Message], None]] = {
    "setup": CheckedGrid.check_keys,
    "share_keys": CheckedGrid.check_shares,
    "collect_masked_vectors": CheckedGrid.check_vectors,
    "unmask": CheckedGrid.check_unmasking,
}


def read_entries(reply: Message, kinds: Mapping[str, type]) -> dict[str, list[Any]]:
    """The entries of a reply of the protocol, each as a list; raises where one is not of its kind."""
    record = reply.content.config_records.get(RECORD)
    found = {}
    for name, kind in kinds.items():
        value = None if record is None else record.get(name)
        values = value if isinstance(value, list) else [value]
        if not all(type(entry) is kind for entry in values):
            raise ReplyError(f"sent no valid {name!r} for secure aggregation")
        found[name] = values
    return found


def read_whole_numbers(content: bytes) -> Any:
    """An array of whole numbers below the modulus, or None."""
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except Exception:  # a damaged header can raise anything, and ask for any amount of memory
        return None
    sound = isinstance(array, np.ndarray) and array.dtype == np.int64
    return array if sound and bool(((array >= 0) & (array < MODULUS)).all()) else None
