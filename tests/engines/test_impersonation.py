"""A node answers for itself alone: neither the SuperLink nor the server takes one node's reply for another's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.error import FlowerError

from fedptr.engines.flower.patches.superlink_gate import refuse_other_senders
from fedptr.engines.flower.wire.courier import Courier
from fedptr.engines.flower.wire.local_grid import LocalGrid
from fedptr.engines.flower.wire.parcel import Parcel
from fedptr.engines.flower.wire.records import from_records, to_records

pytestmark = pytest.mark.real


@pytest.mark.parametrize(("pushes", "sources"), [(7, [7]), (7, [8]), (7, [7, 8]), (7, []), (7, [0])])
def test_a_push_of_another_nodes_reply_is_refused(
    pushes: int, sources: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    reached: list[Any] = []
    handler = refuse_other_senders(lambda request, state: reached.append(request))
    messages = [MessageProto(metadata=Metadata(src_node_id=source)) for source in sources]
    request = PushMessagesRequest(node=NodeProto(node_id=pushes), messages_list=messages)
    if set(sources) <= {pushes}:
        handler(request=request, state=None)
        assert reached == [request]
        return
    with pytest.raises(FlowerError):
        handler(request=request, state=None)
    assert reached == []


def grid_of(reply: Callable[[Message], Message], nodes: int) -> LocalGrid:
    """A grid with nodes 101, 102 … that answer like this."""
    app = ClientApp()
    app.query()(lambda message, context: reply(message))
    return LocalGrid(app, [{}] * nodes, {})


Change = Callable[[dict[str, Any]], dict[str, Any]]


def answers_after(change: Change) -> Any:
    """What a server makes of one node's answer to it, if that is changed on its way."""

    def reply(message: Message) -> Message:
        words = from_records(message.content).words
        return Message(to_records(Parcel(change({"kind": "hello", "nonce": words["nonce"]}))), reply_to=message)

    return Courier(grid_of(reply, 1), poll=0.001).ask_nodes("hello", {101: Parcel({"kind": "hello"})}, timeout=60)


def test_an_answer_must_carry_the_nonce_of_its_request() -> None:
    good = answers_after(lambda words: words)
    assert good.parcels[101].words == {"kind": "hello"}
    assert good.failures == {}
    wrong: dict[str, Change] = {
        "none": lambda words: {"kind": "hello"},
        "another": lambda words: {**words, "nonce": "0" * 32},
        "empty": lambda words: {**words, "nonce": ""},
        "a list": lambda words: {**words, "nonce": [words["nonce"]]},
        "not ASCII": lambda words: {**words, "nonce": "é"},
        "refused": lambda words: {"kind": "refused", "reason": "in its name"},
    }
    for name, change in wrong.items():
        bad = answers_after(change)
        assert bad.parcels == {}, name
        assert "somebody who was not asked" in bad.failures[101], name


def test_no_two_requests_have_the_same_nonce() -> None:
    seen: list[str] = []

    def reply(message: Message) -> Message:
        seen.append(from_records(message.content).words["nonce"])
        return Message(to_records(Parcel({"kind": "hello", "nonce": seen[-1]})), reply_to=message)

    courier = Courier(grid_of(reply, 2), poll=0.001)
    for _ in range(3):
        courier.ask_nodes("hello", {101: Parcel({}), 102: Parcel({})}, timeout=60)
    assert len(set(seen)) == 6
    assert all(len(nonce) == 32 for nonce in seen)
