"""Parcels to nodes and back, over the push and pull of a Flower grid.

Flower's own strategies take one record per reply, start at round 1, look every three seconds and wait for ever. Here a
question has a deadline, and a node that goes offline is not waited for. A late node is not a lost one: until its answer
comes or its message expires, it is busy and is not asked again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedptr.engines.flower.wire.parcel import Parcel
from fedptr.engines.flower.wire.records import from_records, to_records
from fedptr.engines.flower.wire.reply_limit import ReplyLimit
from fedptr.engines.flower.wire.schema import read_reason
from fedptr.errors import ReplyError

TYPES = {"hello": MessageType.QUERY, "train": MessageType.TRAIN, "evaluate": MessageType.EVALUATE}
LOOK = 2.0  # seconds between two checks who is online
FRESH = 5  # polls for which a check who is online stays valid
LAZY = 0.05  # of the time waited so far, between two checks for replies: a long round needs fewer
OFFLINE = "went offline"
LOST_NODE = 5  # Flower's error for a node that is gone
LOST = (3, LOST_NODE)  # and for a question
GRACE = 60.0  # seconds for which a late answer is still counted


@dataclass
class Answers:
    """By node: what came, and why nothing usable did."""

    parcels: dict[int, Parcel] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


class Courier:
    def __init__(self, grid: Grid, poll: float = 0.1, experiment: str = "") -> None:
        self.grid, self.poll, self.limit = grid, poll, ReplyLimit(experiment)
        self.owed: dict[str, tuple[int, float]] = {}  # message -> node, and when it expires
        self.late = 0  # answers that came after their deadline
        self.seen: tuple[float, set[int]] = (-1e9, set())

    def online_nodes(self, fresh: bool = False) -> set[int]:
        """The nodes that are online now, or were a moment ago."""
        now = time.monotonic()
        if fresh or now - self.seen[0] > self.poll * FRESH:
            self.seen = now, set(self.grid.get_node_ids())
        return self.seen[1]

    def busy_nodes(self) -> set[int]:
        """Nodes that have not answered yet; late answers are counted and dropped."""
        if self.owed:
            for message in self.grid.pull_messages(list(self.owed)):
                if self.owed.pop(message.metadata.reply_to_message_id, None) and not message.has_error():
                    self.late += 1
        now, online = time.monotonic(), self.online_nodes()  # a node that went offline has lost the question
        self.owed = {name: owed for name, owed in self.owed.items() if owed[0] in online and owed[1] > now}
        return {node for node, _ in self.owed.values()}

    def ask_nodes(self, kind: str, parcels: Mapping[int, Parcel], timeout: float, group: str = "") -> Answers:
        """Sends, and waits until every node has answered, failed, gone offline or is late."""
        ttl = timeout + GRACE
        nonces = {n: secrets.token_hex(16) for n in parcels}  # which nobody but the node that is asked can know
        orders = {n: Parcel({**p.words, "nonce": nonces[n]}, p.blocks) for n, p in parcels.items()}
        messages = {n: Message(to_records(p), n, TYPES[kind], ttl=ttl, group_id=group) for n, p in orders.items()}
        replies, failures = self.exchange_messages(messages, timeout)
        answers = Answers(failures=failures)
        for node, message in replies.items():
            self.sort_reply(node, message, nonces[node], answers)
        return answers

    def exchange_messages(
        self, messages: Mapping[int, Message], timeout: float
    ) -> tuple[dict[int, Message], dict[int, str]]:
        """The same for any messages, by node: the replies, and why the others are missing."""
        replies: dict[int, Message] = {}
        failures: dict[int, str] = {}
        waiting = self.send_messages(messages, failures)
        began = time.monotonic()
        deadline, look = began + timeout, began + LOOK
        while waiting:
            for message in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(message.metadata.reply_to_message_id, None)
                if node is not None and message.has_error():
                    words = f"failed: {message.error.reason or f'Flower error {message.error.code}'}"
                    failures[node] = OFFLINE if message.error.code in LOST else words
                elif node is not None:
                    replies[node] = message
            now = time.monotonic()
            if waiting and now >= look:
                look = now + LOOK
                drop_offline_nodes(waiting, self.online_nodes(), failures)
            if now >= deadline:
                for name, node in waiting.items():
                    failures[node] = f"did not answer within {timeout:g} s"
                    self.owed[name] = node, now + GRACE
                break
            if waiting:
                time.sleep(min(max(self.poll, LAZY * (now - began)), LOOK, max(deadline - now, 0.0)))
        return replies, failures

    def send_messages(self, messages: Mapping[int, Message], failures: dict[int, str]) -> dict[str, int]:
        """Message -> node, of those that could be sent."""
        nodes = list(messages)
        names: list[str | None] = list(self.grid.push_messages(list(messages.values()))) if messages else []
        names += [None] * (len(nodes) - len(names))
        failures |= {n: "could not be sent to" for n, name in zip(nodes, names, strict=True) if not name}
        return {name: n for n, name in zip(nodes, names, strict=True) if name}

    def sort_reply(self, node: int, message: Message, nonce: str, answers: Answers) -> None:
        try:
            parcel = from_records(message.content)
            # Flower sends an array once, however often it is named.
            if sum(len(block.data) for block in parcel.blocks.values()) > self.limit.bytes:
                raise ReplyError("sent a reply that is larger than agreed")
        except ReplyError as error:
            answers.failures[node] = str(error)
            return
        told = parcel.words.pop("nonce", "")
        if not isinstance(told, str) or not secrets.compare_digest(told.encode(), nonce.encode()):
            answers.failures[node] = "was answered for by somebody who was not asked: the request's nonce is missing"
            return
        if parcel.words.get("kind") == "refused":
            answers.failures[node] = read_reason(parcel.words)
        else:
            answers.parcels[node] = parcel


def drop_offline_nodes(waiting: dict[str, int], online: Iterable[int], failures: dict[int, str]) -> None:
    """Stops waiting for nodes that went offline."""
    there = set(online)
    for name, node in list(waiting.items()):
        if node not in there:
            failures[node] = OFFLINE
            del waiting[name]
