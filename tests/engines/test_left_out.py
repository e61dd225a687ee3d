"""Nodes that fail again and again, and nodes that come back, in a deployed run within one process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

from flwr.app import Error
from flwr.app.message import make_message
from simulated_nodes import Lab
from small_plans import plan_for

from fedptr.cli.main import main
from fedptr.engines.flower.patches import returning_nodes
from fedptr.engines.flower.patches.returning_nodes import QUIET, Deliveries

pytestmark = pytest.mark.real


def crashed(reply: Any) -> Any:
    """What the server gets in place of this reply."""
    return make_message(reply.metadata, error=Error(8, "its worker crashed"))


def test_a_node_that_keeps_failing_is_left_out_for_longer_and_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Client 2 crashes four times when it is asked, and is then well again."""
    asked: list[int] = []
    shown: list[str] = []
    lab = Lab(tmp_path, plan_for("fedavg", rounds=13), "min_replies = 2\n")

    def crash(node: int, message: Any) -> Any:
        if message.metadata.message_type != "train":
            return message
        if node == 101 and message.metadata.group_id == "5":
            main(["status", str(tmp_path)])
            shown.append(" ".join(capsys.readouterr().out.split()))
        if node == 103:
            asked.append(int(message.metadata.group_id))
        return crashed(message) if node == 103 and len(asked) <= 4 else message

    lab.serve(lab.grid(crash))
    assert asked == [1, 2, 4, 7, 12, 13]
    dropped = [record.get("dropped", {}).get("2", "") for record in lab.records()]
    assert dropped[0] == "client 2 failed: its worker crashed"
    words = "client 2 is left out for 1 round after 2 failures in a row: it failed: its worker crashed"
    assert dropped[2] == words
    assert "is left out for 2 rounds after 3 failures" in dropped[4]
    assert dropped[11:] == ["", ""]
    assert "client 2: client 2 is left out for 2 rounds after 3 failures in a row" in shown[0]


def test_a_node_that_was_offline_is_asked_as_soon_as_it_is_back(tmp_path: Path) -> None:
    lab = Lab(tmp_path, plan_for("fedavg", clients=4, rounds=8), "min_replies = 2\n")
    grid = lab.grid(count=4)

    def come_and_go(node: int, message: Any) -> Any:
        if node == 101 and message.metadata.message_type == "train":
            grid.offline = {104} if message.metadata.group_id in ("2", "3", "4") else set()
        return message

    grid.change = come_and_go
    lab.serve(grid)
    dropped = [record.get("dropped", {}).get("3", "") for record in lab.records()]
    assert any(dropped)
    assert set(dropped) <= {"", "client 3 is offline", "client 3 went offline"}
    assert dropped[-1] == ""


def test_if_too_few_are_well_the_others_are_asked_nevertheless(tmp_path: Path) -> None:
    lab = Lab(tmp_path, plan_for("fedavg", rounds=2), "min_replies = 3\npatience = 60.0\n")
    count = 0

    def crash(node: int, message: Any) -> Any:
        nonlocal count
        if node == 103 and message.metadata.message_type == "train":
            count += 1
            if count <= 4:
                return crashed(message)
        return message

    lab.serve(lab.grid(crash))
    assert count == 4 + 2  # in every try of the first round, and in the two rounds
    assert all("dropped" not in record for record in lab.records())


class SuperLink:
    """What Flower's SuperLink does with a node's activation, and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.online, self.deleted = 100.0, False, set[str]()
        monkeypatch.setattr(returning_nodes, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.forgotten: list[str] = []
        deliveries = Deliveries(self.forgotten.append)
        self.waiting: list[str] = []
        self.pull = deliveries.note_pulls(lambda request, state, store: self.deliver())
        self.start = deliveries.let_return(lambda request, state: self.activate())

    def deliver(self) -> Any:
        taken, self.waiting = self.waiting[:1], self.waiting[1:]
        found = [SimpleNamespace(metadata=SimpleNamespace(message_id=name)) for name in taken]
        return SimpleNamespace(messages_list=found)

    def activate(self) -> Any:
        if self.online:
            raise ValueError("could not be activated")
        self.online = True
        return SimpleNamespace(node_id=7)

    def get_node_id_by_public_key(self, key: bytes) -> int | None:
        return 7 if key == b"key" else None

    def deactivate_node(self, node: int) -> bool:
        was, self.online = self.online, False
        return was

    def delete_messages(self, message_ins_ids: set[str]) -> None:
        self.deleted |= message_ins_ids

    def node_asks(self) -> None:
        self.pull(request=SimpleNamespace(node=SimpleNamespace(node_id=7)), state=self, store=None)

    def node_starts(self) -> None:
        self.start(request=SimpleNamespace(public_key=b"key"), state=self)


def test_a_node_that_was_killed_is_let_in_and_its_question_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    link = SuperLink(monkeypatch)
    link.node_starts()
    link.waiting = ["answered", "lost"]
    link.node_asks()
    link.node_asks()
    link.now += QUIET
    link.node_starts()
    assert link.deleted == {"lost"} == set(link.forgotten)


def test_a_second_node_with_the_same_key_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    link = SuperLink(monkeypatch)
    link.node_starts()
    link.node_asks()
    link.now += QUIET / 2
    with pytest.raises(ValueError, match="could not be activated"):
        link.node_starts()
    assert link.online
