"""Nodes come and go: new ones are asked who they are, and a round waits until there are enough."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fedptr.data.dataset import Dataset
from fedptr.engines.flower.server import status_file
from fedptr.engines.flower.server.deploy_plan import DeployRules
from fedptr.engines.flower.server.events import note_event
from fedptr.engines.flower.server.roster import Roster, read_offer
from fedptr.engines.flower.wire.agreement import Agreement, Offer, make_agreement
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
            self.refuse(node, f"a node was not taken in: it {reason}")
        return {node: parcel.words for node, parcel in answers.parcels.items() if self.is_readable(node, parcel.words)}

    def is_readable(self, node: int, words: dict[str, Any]) -> bool:
        try:
            read_offer(words, self.rules.max_samples)
            return True
        except ReplyError as error:
            self.refuse(node, f"a node was not taken in: it {error}")
            return False

    def try_to_agree(self, offered: dict[int, dict[str, Any]]) -> Agreement | None:
        """An agreement of the nodes that fit each other and the server's data; the others are refused by name."""
        offers = {node: read_offer(words, self.rules.max_samples)[0] for node, words in offered.items()}
        ordered = sorted(offers, key=lambda node: (offered[node]["number"], node))
        shape = image_shape(self.own) or (offers[ordered[0]].shape if ordered else ())
        given = tuple(name.strip() for name in self.rules.classes.split(",") if name.strip())
        given = given or (self.own.classes if self.own is not None else ())
        fitting: list[Offer] = []
        for node in ordered:
            offer = offers[node]
            strange = [name for name in offer.classes if given and name not in given]
            if offer.shape != shape or strange:
                what = f"the class {strange[0]!r}" if strange else f"images of {'×'.join(map(str, offer.shape))}"
                other = f"the agreed classes are {', '.join(given[:20])}" if strange else f"{'×'.join(map(str, shape))}"
                self.refuse(node, f"node {offer.name} was refused: it has {what}, not fitting: {other}")
                del offered[node]
            else:
                fitting.append(offer)
        return make_agreement(fitting, given) if len(fitting) >= self.rules.min_nodes else None

    def admit_node(self, node: int, words: dict[str, Any]) -> None:
        assert self.agreed is not None
        try:
            member = self.roster.admit(node, words, self.agreed, self.courier.online_nodes(), self.rules.max_samples)
            told = f"joined as client {member.number} with {member.size} samples"
            print_notice(f"node {member.name} {told}")
            note_event(self.folder, "joined", member.name, f"{told}; Flower's number {node}")
        except (UserError, ReplyError) as error:
            self.refuse(node, f"refused: {error}")

    def refuse(self, node: int, words: str) -> None:
        print_notice(self.roster.refuse(node, words))
        note_event(self.folder, "refused", f"Flower's number {node}", words)

    def pause_or_give_up(self, until: float, here: int) -> None:
        self.write_status(f"waiting for nodes: {here} of {self.rules.min_nodes} are here")
        if time.monotonic() > until:
            words = f"{here} of {self.rules.min_nodes} nodes came within {self.rules.patience:g} s"
            raise UserError(f"{words}; start them, then resume with `fedptr resume {self.folder}`")
        time.sleep(min(0.5, self.rules.poll * 5))

    def write_status(self, phase: str, record: dict[str, Any] | None = None) -> None:
        record = self.record if record is None else record
        more = {name: record[name] for name in ("round", "test_accuracy", "dropped") if name in record}
        status_file.write_status(self.folder, self.roster, self.courier.online_nodes(), phase, self.left_out, **more)


def image_shape(own: Dataset | None) -> tuple[int, ...]:
    return () if own is None else tuple(int(n) for n in own.train_x.shape[1:])
