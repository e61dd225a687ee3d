"""Nodes come and go: new ones are asked who they are, and a round waits until there are enough."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fedptr.data.dataset import Dataset
from fedptr.engines.flower.server import status_file
from fedptr.engines.flower.server.deploy_plan import DeployRules
from fedptr.engines.flower.server.events import note_event
from fedptr.engines.flower.server.first_agreement import sift_offers
from fedptr.engines.flower.server.roster import Roster, read_offer
from fedptr.engines.flower.wire.agreement import Agreement
from fedptr.engines.flower.wire.courier import Courier
from fedptr.engines.flower.wire.parcel import PROTOCOL, Parcel
from fedptr.errors import ReplyError, UserError
from fedptr.messages import print_notice

GREETING = 60.0  # seconds to answer a hello; a node loads its data first


class Admission:
    def __init__(
        self, courier: Courier, roster: Roster, rules: DeployRules, experiment: str, own: Dataset | None, folder: Path
    ) -> None:
        self.courier, self.roster, self.rules, self.folder = courier, roster, rules, folder
        self.experiment, self.own = experiment, own
        self.agreed: Agreement | None = None
        self.divided = ""  # what the first nodes do not agree about
        self.record: dict[str, Any] = {}
        self.left_out: dict[int, str] = {}  # client -> why, for the status

    def agree_with_nodes(self, agreed: Agreement | None) -> Agreement:
        """Waits for the first nodes, and agrees with them if there is no agreement yet."""
        self.agreed = agreed
        until = time.monotonic() + self.rules.patience
        offered: dict[int, dict[str, Any]] = {}
        while self.agreed is None:
            offered |= self.greet_new_nodes(offered)
            offered = {node: words for node, words in offered.items() if node in self.courier.online_nodes()}
            self.agreed = self.try_to_agree(offered)
            if self.agreed is None:
                self.pause_or_give_up(until, len(offered))
        for node, words in sorted(offered.items(), key=lambda item: item[1]["number"]):
            self.admit_node(node, words)
        return self.agreed

    def wait_for_nodes(self, until: float, t: int, record: dict[str, Any]) -> None:
        """Returns when enough nodes are online; new ones have joined."""
        self.record = record
        while True:
            for node, words in self.greet_new_nodes({}).items():
                self.admit_node(node, words)
            here = self.roster.note_online(self.courier.online_nodes())
            if len(here) >= self.rules.min_nodes:
                self.write_status(f"round {t + 1}")
                return
            self.pause_or_give_up(until, len(here))

    def greet_new_nodes(self, known: dict[int, Any]) -> dict[int, dict[str, Any]]:
        """What new nodes say about themselves."""
        online = self.courier.online_nodes(fresh=True)
        busy = self.courier.busy_nodes() if self.roster.unknown_nodes(online) else set()
        new = [node for node in self.roster.unknown_nodes(online) if node not in known and node not in busy]
        if not new:
            return {}
        hello = Parcel({"kind": "hello", "protocol": PROTOCOL, "experiment": self.experiment})
        answers = self.courier.ask_nodes("hello", dict.fromkeys(new, hello), GREETING)
        for node, reason in answers.failures.items():
            self.refuse_unread(node, reason)
        return {node: parcel.words for node, parcel in answers.parcels.items() if self.is_readable(node, parcel.words)}

    def is_readable(self, node: int, words: dict[str, Any]) -> bool:
        """Whether a node's hello fits the schema, and the name in it the node's key; else it is refused."""
        try:
            self.roster.check_registered(node, read_offer(words, self.rules)[1])
            return True
        except ReplyError as error:
            self.refuse_unread(node, str(error))
        except UserError as error:
            self.refuse(node, f"refused: {error}")
        return False

    def refuse_unread(self, node: int, reason: str) -> None:
        self.refuse(node, f"{self.roster.name_node(node)} was not taken in: it {reason}")

    def try_to_agree(self, offered: dict[int, dict[str, Any]]) -> Agreement | None:
        """An agreement of the nodes that fit the plan, the server's data and each other; others are refused by name."""
        offers = {node: read_offer(words, self.rules)[0] for node, words in offered.items()}
        nodes = sorted(offers, key=lambda node: (offered[node]["number"], node))
        sifted = sift_offers([offers[node] for node in nodes], self.rules, self.own)
        self.divided = sifted.divided
        for place, reason in sifted.refused.items():
            self.refuse(nodes[place], f"node {offers[nodes[place]].name} was refused: {reason}")
            del offered[nodes[place]]
        return sifted.agreed

    def admit_node(self, node: int, words: dict[str, Any]) -> None:
        assert self.agreed is not None
        try:
            member = self.roster.admit(node, words, self.agreed, self.courier.online_nodes(), self.rules)
            told = f"joined as client {member.number} with {member.size} samples"
            print_notice(f"node {member.name} {told}")
            note_event(self.folder, "joined", member.name, f"{told}; Flower's number {node}")
        except (UserError, ReplyError) as error:
            self.refuse(node, f"refused: {error}")

    def refuse(self, node: int, words: str) -> None:
        print_notice(self.roster.refuse(node, words))
        note_event(self.folder, "refused", f"Flower's number {node}", words)

    def pause_or_give_up(self, until: float, here: int) -> None:
        self.write_status(self.divided or f"waiting for nodes: {here} of {self.rules.min_nodes} are here")
        if time.monotonic() > until:
            came = f"{here} of {self.rules.min_nodes} nodes came within {self.rules.patience:g} s; start them"
            raise UserError(f"{self.divided or came}, then resume with `fedptr resume {self.folder}`")
        time.sleep(min(0.5, self.rules.poll * 5))

    def write_status(self, phase: str, record: dict[str, Any] | None = None) -> None:
        record = self.record if record is None else record
        more = {
            name: record[name]
            for name in ("round", "test_accuracy", "test_r2", "test_f1", "dropped", "entries_left_out")
            if name in record
        }
        status_file.write_status(self.folder, self.roster, self.courier.online_nodes(), phase, self.left_out, **more)
