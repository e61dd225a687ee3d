"""Secure aggregation on the server: by Flower's SecAgg+ over our courier it learns the mean of the replies alone.

Every node's numbers arrive masked. Nodes may drop out on the way while a majority of those asked stays; with fewer,
nothing is learnt and the round does not count. What arrives is checked before Flower's part reads it, and a node whose
keys, shares or words are wrong is left out by name. Where that is found too late for this sum, the others start again
without it. Masked numbers cannot be checked, so the bounds hold for the mean.
"""

from __future__ import annotations

import io
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from fedptr.engines.flower.patches.secagg_checks import combine_to_secret, is_public_key, share_lengths
from fedptr.engines.flower.patches.secagg_node import ACCUSED, NONCE, RECORD
from fedptr.engines.flower.patches.secagg_workflow import UnmaskableError, average_masked, make_plain_reply
from fedptr.engines.flower.server.blame import find_blamed
from fedptr.engines.flower.wire.courier import Courier
from fedptr.engines.flower.wire.parcel import Parcel, parse_words
from fedptr.engines.flower.wire.records import to_records
from fedptr.engines.flower.wire.schema import reading_message
from fedptr.errors import ReplyError
from fedptr.messages import make_printable

LEVELS = 1 << 22  # a number within ±range is rounded to one of these at random, so that it is right on average
MODULUS = 1 << 32
MOST = MODULUS // LEVELS - 1  # nodes, whose sum must not reach the modulus
KEYS = 120.0  # seconds for the messages that take no training
STARTS = 4  # of one sum; each time somebody else is left out
ReadWords = Callable[[int, dict[str, Any]], Any]


def rounding_step(bound: float) -> float:
    """The distance between two levels.

    >>> rounding_step(8.0) < 4e-6
    True
    """
    return 2 * bound / LEVELS


@dataclass
class Collected:
    mean: list[Any]  # one array per entry, by their sorted names
    words: dict[int, Any]  # by node, of those that are in the mean: what `read_words` made of them
    failures: dict[int, str]


class DistrustError(Exception):
    """Nodes that keep the others from a sum; it can be had without them."""

    def __init__(self, doubts: Iterable[tuple[int, int]] = (), certain: Mapping[int, str] | None = None) -> None:
        self.doubts, self.certain = set(doubts), dict(certain or {})  # accuser and accused; node -> why


def collect_mean(
    courier: Courier,
    orders: Mapping[int, Parcel],
    shapes: list[tuple[int, ...]],
    timeout: float,
    read_words: ReadWords,
) -> Collected:
    """Lets the nodes carry out their orders, each of which has its `weight`, and returns the weighted mean.

    A node whose words `read_words` refuses is left out before its numbers are summed.
    """
    least, doubts, out = len(orders) // 2 + 1, set[tuple[int, int]](), dict[int, str]()
    for _ in range(STARTS):
        blamed = dict.fromkeys(find_blamed(doubts), "sent shares that another node cannot open") | out
        left = {node: order for node, order in orders.items() if node not in blamed}
        if not max(2, least) <= len(left) <= MOST:
            words = f"secure aggregation takes {max(2, least)} to {MOST} nodes, not {len(left)}"
            raise UnmaskableError("; ".join([words, *name_nodes(blamed)]))
        try:
            got = try_to_collect(courier, left, least, shapes, timeout, read_words)
        except DistrustError as error:
            doubts |= error.doubts
            out |= error.certain
            continue
        return Collected(got.mean, got.words, blamed | got.failures)
    raise UnmaskableError("; ".join(["secure aggregation failed again and again", *name_nodes(blamed)]))


def name_nodes(reasons: Mapping[int, str]) -> list[str]:
    return [f"node {node} {why}" for node, why in reasons.items()]


def try_to_collect(
    courier: Courier,
    orders: Mapping[int, Parcel],
    threshold: int,
    shapes: list[tuple[int, ...]],
    timeout: float,
    read_words: ReadWords,
) -> Collected:
    first = next(iter(orders.values())).words
    carrier = CheckedGrid(courier, dict(orders), [(1,), *shapes], timeout, threshold, read_words)
    mean = average_masked(
        carrier,
        {node: to_records(order) for node, order in orders.items()},
        int(first["round"]) + 1,
        threshold=threshold,
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
    threshold: int
    read_words: ReadWords
    words: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    keys: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)  # public, by node
    doubts: set[tuple[int, int]] = field(default_factory=set)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        by_node = {message.metadata.dst_node_id: message for message in messages}
        asked = {node: message.content.config_records[RECORD] for node, message in by_node.items()}
        nonces = {node: secrets.token_hex(16) for node in by_node}
        to = {node: add_nonce(message, nonces[node]) for node, message in by_node.items()}
        stage = str(next(iter(asked.values()))["stage"])
        wait = self.timeout if stage == "collect_masked_vectors" else min(KEYS, self.timeout)
        replies, failures = self.courier.exchange_messages(to, wait)
        self.failures |= {node: make_printable(why[:500]) for node, why in failures.items()}
        good = {}
        for node, reply in replies.items():
            try:
                with reading_message():
                    check_sender(reply, node, nonces[node])
                    good[node] = CHECKS[stage](self, node, reply, asked[node])
            except ReplyError as error:
                self.failures[node] = str(error)
        if self.doubts:
            raise DistrustError(self.doubts)
        if stage == "setup":
            self.drop_copied_keys(good)
        if stage == "unmask":
            self.drop_wrong_shares(good, asked)
        return list(good.values())

    def check_keys(self, node: int, reply: Message, asked: Mapping[str, Any]) -> Message:
        found = read_entries(reply, {"pk1": bytes, "pk2": bytes})
        if [len(values) for values in found.values()] != [1, 1] or not all(is_public_key(v) for [v] in found.values()):
            raise ReplyError("sent no valid public keys for secure aggregation")
        self.keys[node] = found["pk1"][0], found["pk2"][0]
        return reply

    def drop_copied_keys(self, good: dict[int, Message]) -> None:
        """Keys are made for one sum, so nobody has another's by chance."""
        count = Counter(key for node in good for key in self.keys[node])
        for node in [node for node in good if max(count[key] for key in self.keys[node]) > 1]:
            self.failures[node] = "sent a public key that was sent twice"
            del good[node]

    def check_shares(self, node: int, reply: Message, asked: Mapping[str, Any]) -> Message:
        found = read_entries(reply, {"dsts": int, "ctxts": bytes})
        others = {int(name) for name in asked if name.isdigit()} - {node}
        if sorted(found["dsts"]) != sorted(others) or len(found["ctxts"]) != len(others):
            raise ReplyError("sent shares for other nodes than it was asked to")
        if any(len(sealed) != share_lengths().sealed for sealed in found["ctxts"]):
            raise ReplyError("sent shares of another length than they have")
        return reply

    def check_vectors(self, node: int, reply: Message, asked: Mapping[str, Any]) -> Message:
        record = reply.content.config_records.get(RECORD)
        if record is not None and ACCUSED in record:
            accused = set(read_entries(reply, {ACCUSED: int})[ACCUSED]) & set(asked["srcs"])
            self.doubts |= {(node, other) for other in accused}
            raise ReplyError("says that it cannot open the shares of others")
        parts = read_entries(reply, {"masked_params": bytes})["masked_params"]
        if len(parts) != len(self.shapes) or not all(map(holds_whole_numbers, parts, self.shapes)):
            raise ReplyError("sent masked numbers of another shape")
        words = reply.content.config_records.get("words")
        self.words[node] = self.read_words(node, parse_words(words.get("json") if words else None))
        return make_plain_reply(reply, parts)

    def check_unmasking(self, node: int, reply: Message, asked: Mapping[str, Any]) -> Message:
        found = read_entries(reply, {"nids": int, "shares": bytes})
        lengths = dict.fromkeys(asked["active_nids"], share_lengths().seed)
        lengths |= dict.fromkeys(asked["dead_nids"], share_lengths().key)
        if sorted(found["nids"]) != sorted(lengths) or len(found["shares"]) != len(lengths):
            raise ReplyError("sent shares of other nodes than it was asked for")
        if any(len(share) != lengths[owner] for owner, share in zip(found["nids"], found["shares"], strict=True)):
            raise ReplyError("sent shares of another length than they have")
        return reply

    def drop_wrong_shares(self, good: dict[int, Message], asked: Mapping[int, Mapping[str, Any]]) -> None:
        """Leaves out nodes without whose shares a secret is right; raises if one is not to be had at all."""
        shares: dict[int, dict[int, bytes]] = {}
        for node, reply in good.items():
            found = read_entries(reply, {"nids": int, "shares": bytes})
            for owner, share in zip(found["nids"], found["shares"], strict=True):
                shares.setdefault(owner, {})[node] = share
        dead = {owner for words in asked.values() for owner in words["dead_nids"]}
        lost = dict[int, str]()
        for owner, given in shares.items():
            key = self.keys[owner][0] if owner in dead else b""
            if len(given) < self.threshold or combine_to_secret(given.values(), key):
                continue
            without = {node: [share for other, share in given.items() if other != node] for node in given}
            liars = [
                node for node, rest in without.items() if len(rest) >= self.threshold and combine_to_secret(rest, key)
            ]
            if not liars:
                lost[owner] = "gave the others shares that do not fit each other"
            for node in liars[:1]:
                self.failures[node] = f"sent a share of node {owner} that does not fit those of the others"
                good.pop(node, None)
        if lost:
            raise DistrustError(certain=lost)


def add_nonce(message: Message, nonce: str) -> Message:
    """The same message, with a number that nobody but the node that is asked can know; it sends it back."""
    metadata, records = message.metadata, RecordDict({**message.content, NONCE: ConfigRecord({"nonce": nonce})})
    return Message(records, metadata.dst_node_id, metadata.message_type, ttl=metadata.ttl, group_id=metadata.group_id)


def check_sender(reply: Message, node: int, nonce: str) -> None:
    told = reply.content.config_records.get(NONCE, {}).get("nonce")
    if reply.metadata.src_node_id != node or not isinstance(told, str):
        raise ReplyError("was answered for by somebody who was not asked")
    if not secrets.compare_digest(told.encode(), nonce.encode()):
        raise ReplyError("was answered for by somebody who was not asked")


CHECKS: dict[str, Callable[[CheckedGrid, int, Message, Mapping[str, Any]], Message]] = {
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


def holds_whole_numbers(content: bytes, shape: tuple[int, ...]) -> bool:
    """Whether it is a .npy file of whole numbers below the modulus, in this shape.

    The header is compared with what is expected before NumPy makes room for what it declares.
    """
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        declared, _, dtype = read_header(stream)
    except Exception:  # NumPy reads it as Python code, which fails in many ways
        return False
    place = stream.tell()
    if declared != shape or dtype != np.dtype("<i8") or len(content) - place != 8 * math.prod(shape):
        return False
    array = np.frombuffer(content, "<i8", offset=place)
    return bool(((array >= 0) & (array < MODULUS)).all())
