"""Who takes part: the nodes that joined, their numbers, and whether they are online."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedptr.engines.flower.server.deploy_plan import DeployRules
from fedptr.engines.flower.server.node_register import read_node_register
from fedptr.engines.flower.wire.agreement import OF_LABELS, Agreement, Offer, check_offer_fits
from fedptr.engines.flower.wire.schema import read_hello, reading_message
from fedptr.errors import UserError
from fedptr.messages import make_printable

AGAIN, LONGEST = 60.0, 3600.0  # seconds after which a node that was refused is asked again; twice as long each time


@dataclass(frozen=True)
class Member:
    """A client that joined; it stays a client when its node is lost."""

    name: str
    number: int
    size: int
    tests: int
    data: str  # fingerprint


class Roster:
    def __init__(self, members: Mapping[int, Member] | None = None, registered: Path | None = None) -> None:
        self.members = dict(members or {})
        self.nodes: dict[int, int] = {}  # client -> Flower's node, of those that joined since the server started
        self.refused: dict[int, tuple[str, float]] = {}  # node -> why, and when to ask again
        self.refusals: Counter[int] = Counter()  # node -> how often in a row, without going offline between
        self.seen: dict[int, float] = {}  # client -> when it was last online
        self.registered = registered

    def to_text(self) -> str:
        """For a checkpoint."""
        return json.dumps([asdict(member) for _, member in sorted(self.members.items())])

    @classmethod
    def from_text(cls, text: str, registered: Path | None = None) -> Roster:
        return cls({entry["number"]: Member(**entry) for entry in json.loads(text)}, registered)

    def sizes(self) -> list[int]:
        """Samples by client number; 0 where there is no such client."""
        return [self.members[i].size if i in self.members else 0 for i in range(max(self.members, default=-1) + 1)]

    def tests(self) -> list[int]:
        """The same of test samples."""
        return [self.members[i].tests if i in self.members else 0 for i in range(len(self.sizes()))]

    def unknown_nodes(self, online: set[int]) -> list[int]:
        """Nodes that are online and not asked yet, or refused some time ago."""
        now, known = time.monotonic(), set(self.nodes.values())
        for node in self.refused.keys() - online:  # when it is back, it may be another
            self.refused[node] = self.refused[node][0], now
            self.refusals.pop(node, None)
        return sorted(n for n in online - known if n not in self.refused or self.refused[n][1] <= now)

    def refuse(self, node: int, reason: str) -> str:
        reason = make_printable(reason[:1000])
        self.refused[node] = reason, time.monotonic() + min(LONGEST, AGAIN * 2 ** min(self.refusals[node], 10))
        self.refusals[node] += 1
        return reason

    def admit(
        self, node: int, words: Mapping[str, Any], agreed: Agreement, online: set[int], rules: DeployRules
    ) -> Member:
        """Admits a node, or refuses it with an error that names it."""
        offer, member = read_offer(words, rules)
        self.check_registered(node, member)
        check_offer_fits(offer, agreed)
        old = self.members.get(member.number)
        if old is not None and old != member:
            what = "name" if old.name != member.name else "data"
            raise UserError(
                f"node {member.name} is number {member.number} with another {what} than when it joined"
                f" ({old.name}, {old.size} samples); restore it, or start a new run"
            )
        holder = self.nodes.get(member.number)
        if holder is not None and holder != node and holder in online:
            raise UserError(f"node {member.name} is the second with number {member.number}; give it another")
        self.members[member.number], self.nodes[member.number] = member, node
        self.refused.pop(node, None)
        self.refusals.pop(node, None)
        return member

    def check_registered(self, node: int, member: Member) -> None:
        """Raises unless this key belongs to that node: where keys are known, a node cannot pass for another."""
        if self.registered is None:
            return
        owners = self.find_owners(node)
        if not owners:
            raise UserError(f"node {member.name} has a key that is not in {self.registered}; add it there")
        if owners[0] != (member.name, member.number):
            words = f"{member.name} (number {member.number})"
            raise UserError(f"a node calls itself {words} with the key of {owners[0][0]} (number {owners[0][1]})")

    def find_owners(self, node: int) -> list[tuple[str, int]]:
        """Name and number of the node whose key this is, where keys are known."""
        if self.registered is None:
            return []
        known = read_node_register(self.registered)
        return [(name, entry["number"]) for name, entry in known.items() if entry["node"] == str(node)]

    def name_node(self, node: int) -> str:
        """For a node that has not said its name, or nothing that can be believed."""
        owners = self.find_owners(node)
        return f"node {owners[0][0]}" if owners else f"a node (Flower's number {node})"

    def note_online(self, online: set[int]) -> list[int]:
        """The clients whose nodes are online."""
        here = [i for i, node in sorted(self.nodes.items()) if node in online]
        self.seen |= dict.fromkeys(here, time.time())
        return here


def read_offer(words: Mapping[str, Any], rules: DeployRules) -> tuple[Offer, Member]:
    """What a node said about itself; raises where a value cannot be right."""
    with reading_message():
        said = read_hello(words, rules.max_samples, rules.max_classes)
    name, size = said["name"], said["size"]
    labels = {entry: said[entry] for entry in OF_LABELS if entry in said}
    classes, shape, mean, std = (tuple(said[entry]) for entry in ("classes", "shape", "mean", "std"))
    offer = Offer(name, size, classes, shape, mean, std, **labels)
    return offer, Member(name, said["number"], size, said["tests"], said["data"])
