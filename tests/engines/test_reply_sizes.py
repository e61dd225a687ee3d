"""A reply is no larger than agreed: in the SuperLink before it is stored, on the server before it is unpacked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from hostile_node import make_reply, parts_of
from simulated_nodes import Lab
from small_plans import plan_for

from fedptr.engines.flower.patches import checked_pulls, superlink_sizes
from fedptr.engines.flower.patches.superlink_sizes import SMALL, TREE, SizeGate, Uploads
from fedptr.engines.flower.wire import reply_limit
from fedptr.engines.flower.wire.courier import Courier
from fedptr.engines.flower.wire.reply_limit import SLACK, ReplyLimit, make_limits_folder, read_limit

pytestmark = pytest.mark.real

QUESTION = SimpleNamespace(run_id=1, src_node_id=1, message_id="q", group_id="", message_type="train")


@pytest.fixture(autouse=True)
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(reply_limit.FOLDER, "")
    make_limits_folder(tmp_path / "limits")
    return tmp_path / "limits"


def test_the_limit_is_that_of_the_run_that_expects_most(limits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_limit() == SLACK
    one, other = ReplyLimit("one"), ReplyLimit("other")
    one.allow(1000)
    other.allow(10)
    assert read_limit() == one.bytes == SLACK + 1000
    one.allow(5)  # a question with a small answer, such as scores: late replies to the one before may still come
    assert read_limit() == SLACK + 1000
    (limits / "third.bytes").write_text("not a number")
    assert read_limit() == SLACK + 1000
    make_limits_folder(limits)
    assert read_limit() == SLACK
    monkeypatch.delenv(reply_limit.FOLDER)
    assert read_limit() == reply_limit.ENDLESS
    assert ReplyLimit("nobody's").path is None


def test_a_run_allows_what_its_replies_need(tmp_path: Path, limits: Path) -> None:
    lab = Lab(tmp_path, plan_for("scaffold", rounds=1))
    lab.serve()
    (number,) = [int(file.read_text()) for file in limits.glob("*.bytes")]
    sizes = lab.records()[0]
    assert SLACK < number <= SLACK + sizes["bytes_up"]  # of three clients


def status_of(headers: list[tuple[bytes, bytes]], pieces: list[bytes], path: str = "push-object") -> tuple[int, int]:
    """What the gate answers, and how many pieces it took."""
    left, sent, seen = list(pieces), list[dict[str, Any]](), list[bytes]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        event = await receive()
        seen.append(event["body"])
        assert not event["more_body"]
        await send({"type": "http.response.start", "status": 200})

    gate = SizeGate(app)
    scope = {"type": "http", "path": f"/v1/fleet/{path}", "headers": headers, "app": fake_app()}
    asyncio.run(gate(scope, receive, send))
    assert not gate.held
    if sent[0]["status"] == 200:
        assert seen == [b"".join(pieces)]
    return sent[0]["status"], len(pieces) - len(left)


def fake_app() -> Any:
    return SimpleNamespace(state=SimpleNamespace(linkstate_factory=SimpleNamespace(state=lambda: None)))


@pytest.mark.parametrize("registered", [True, False])
def test_a_request_that_is_too_large_is_not_read(registered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink_sizes, "check_signature", lambda *_: b"key" if registered else b"")
    most = SLACK + TREE if registered else SMALL
    size = 1 << 16

    def length(number: int) -> list[tuple[bytes, bytes]]:
        return [(b"content-length", str(number).encode())]

    assert status_of(length(most), [bytes(most)]) == (200, 1)
    assert status_of(length(most + 1), [bytes(most + 1)]) == (413, 0)
    assert status_of([], [bytes(size)] * (most // size)) == (200, most // size)
    assert status_of([], [bytes(size)] * 1000) == (413, most // size + 1)
    assert status_of(length(10), [bytes(size)] * 1000)[0] == 413  # a length that is not true
    assert status_of([(b"content-length", b"many")], [bytes(size)] * 1000)[0] == 413


def test_all_that_a_node_sends_at_a_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = SizeGate(None)

    async def receive() -> dict[str, Any]:
        return {"body": bytes(100), "more_body": False}

    async def read_two() -> None:
        await gate.read_body(receive, b"key", 150, [0])
        await gate.read_body(receive, b"other", 150, [0])
        with pytest.raises(superlink_sizes.TooLargeError):
            await gate.read_body(receive, b"key", 150, [0])

    asyncio.run(read_two())


def test_a_signature_must_be_that_of_a_registered_node() -> None:
    from base64 import b64encode

    from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message

    private, public = generate_key_pairs()
    key = public_key_to_bytes(public)
    headers = {
        b"flwr-public-key": b64encode(key),
        b"flwr-signature": b64encode(sign_message(private, b"now")),
        b"flwr-timestamp": b"now",
    }
    known = SimpleNamespace(get_node_id_by_public_key=lambda found: 7 if found == key else None)
    assert superlink_sizes.check_signature(headers, known) == key
    unknown = SimpleNamespace(get_node_id_by_public_key=lambda found: None)
    assert superlink_sizes.check_signature(headers, unknown) == b""
    for name, value in ((b"flwr-timestamp", b"later"), (b"flwr-signature", b"!"), (b"flwr-public-key", b"AAAA")):
        assert superlink_sizes.check_signature({**headers, name: value}, known) == b""
    assert superlink_sizes.check_signature({}, known) == b""


class Store:
    """Flower's handlers, as far as the limits need them."""

    def __init__(self) -> None:
        self.uploads, self.stored, self.pulled = Uploads(), list[str](), list[str]()
        answer = SimpleNamespace(objects_to_push=["a", "b", "c"], session_id="s1")
        self.announce = self.uploads.limit_announcements(lambda request, state: answer)
        self.push = self.uploads.limit_parts(lambda request, state: self.store(request))
        self.pull = self.uploads.hide_incomplete(lambda request, state, task: self.pulled.extend(request.message_ids))

    def store(self, request: Any) -> Any:
        self.stored.append(request.object_id)
        return SimpleNamespace(stored=True)

    def push_part(self, name: str, size: int, session: str = "s1") -> None:
        node = SimpleNamespace(node_id=7)
        self.push(SimpleNamespace(node=node, session_id=session, object_id=name, object_content=bytes(size)), None)

    def visible(self) -> bool:
        self.pulled.clear()
        self.pull(SimpleNamespace(message_ids=["q"]), None, None)
        return bool(self.pulled)


def test_the_parts_of_a_reply_are_counted_together() -> None:
    store = Store()
    request = SimpleNamespace(messages_list=[SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="q"))])
    store.announce(request, None)
    half = (SLACK + TREE) // 2
    store.push_part("a", half)
    store.announce(request, None)
    store.push_part("b", half)
    with pytest.raises(FlowerError):
        store.push_part("c", half)
    with pytest.raises(FlowerError):
        store.push_part("c", 1, "a session of nobody's")
    assert store.stored == ["a", "b"]


def test_the_server_sees_a_reply_when_it_is_complete() -> None:
    store = Store()
    assert store.visible()  # nobody announced anything: Flower itself knows what it has
    request = SimpleNamespace(messages_list=[SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="q"))])
    store.announce(request, None)
    for name in "abc":
        assert not store.visible()
        store.push_part(name, 1)
    assert store.visible()


def pull(reply: Message, proto: Any = None, parts: dict[str, bytes] | None = None) -> Message:
    """The reply as the server gets it, over a SuperLink that has these parts."""
    parts = parts if parts is not None else parts_of(reply)
    client = SimpleNamespace(
        PullObject=lambda request: PullObjectResponse(
            object_found=request.object_id in parts,
            object_available=True,
            object_content=parts.get(request.object_id, b""),
        ),
        ConfirmMessageReceived=lambda request: None,
    )
    grid = SimpleNamespace(_runtime_client=client, node=None)
    return checked_pulls.pull_reply(grid, proto or message_to_proto(reply), get_object_tree(reply))


def reply_with(content: RecordDict) -> Message:
    reply = make_reply(QUESTION, 7)
    reply.content = content
    reply.metadata.__dict__["_message_id"] = reply.object_id
    return reply


def test_an_honest_reply_arrives() -> None:
    arrays = ArrayRecord({"w": Array("uint8", (3,), "fedptr.raw", b"123")})
    reply = reply_with(RecordDict({"arrays": arrays, "words": ConfigRecord({"json": "{}"})}))
    got = pull(reply)
    assert got.content["arrays"]["w"].data == b"123"
    assert got.metadata.reply_to_message_id == "q"


def test_a_reply_that_is_too_large_is_an_error_of_its_node() -> None:
    small, large = reply_with(RecordDict({"a": ConfigRecord({"b": b""})})), make_reply(QUESTION, 7, size=SLACK)
    assert not pull(small).has_error()
    assert "larger than agreed" in str(pull(large).error.reason)


def test_a_part_that_is_listed_many_times_does_not_grow() -> None:
    """A hundred copies of one megabyte take one megabyte on the way."""
    chunk = bytes(1 << 20)
    array = Array("uint8", (100 << 20,), "fedptr.raw", chunk * 100)
    reply = reply_with(RecordDict({"arrays": ArrayRecord({"w": array})}))
    assert sum(len(part) for part in parts_of(reply).values()) < SLACK
    assert "larger than agreed" in str(pull(reply).error.reason)


@pytest.mark.parametrize("damage", ["empty", "not json", "no message", "missing"])
def test_a_part_that_cannot_be_read_is_an_error_of_its_node(damage: str) -> None:
    reply = reply_with(RecordDict({"arrays": ArrayRecord({"w": Array("uint8", (3,), "fedptr.raw", b"123")})}))
    parts = parts_of(reply)
    array = next(name for name, part in parts.items() if part.startswith(b"Array "))
    root = reply.metadata.message_id
    changes = {
        "empty": {array: b""},
        "not json": {array: parts[array][:-9] + b"rubbish}}"},
        "no message": {root: parts[array]},
    }
    broken = {**parts, **changes.get(damage, {})}
    if damage == "missing":
        del broken[array]
    got = pull(reply, parts=broken)
    assert "cannot be read" in str(got.error.reason)
    assert got.metadata.reply_to_message_id == "q"


def test_whose_reply_it_is_the_superlink_says_and_not_the_node() -> None:
    """Inside, the message is another node's reply to another question; outside it is what the SuperLink checked."""
    forged = make_reply(SimpleNamespace(**{**vars(QUESTION), "message_id": "another's"}), source=8)
    honest = message_to_proto(make_reply(QUESTION, 7))
    honest.metadata.message_id = forged.metadata.message_id
    got = pull(forged, honest)
    assert got.metadata.src_node_id == 7
    assert got.metadata.reply_to_message_id == "q"


def test_one_array_under_many_names_is_counted_as_often(tmp_path: Path) -> None:
    """It arrives once and would be copied for every name."""
    array = Array("uint8", (1 << 20,), "fedptr.raw", bytes(1 << 20))
    arrays = ArrayRecord({f"w{k}": array for k in range(12)})
    reply = reply_with(RecordDict({"arrays": arrays, "words": ConfigRecord({"json": "{}"})}))
    courier: Any = Courier(SimpleNamespace(), experiment="e")  # type: ignore[arg-type]
    from fedptr.engines.flower.wire.courier import Answers

    answers = Answers()
    courier.sort_reply(7, reply, "nonce", answers)
    assert "larger than agreed" in answers.failures[7]
