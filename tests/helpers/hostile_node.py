"""A program with the key of a registered node that says what it likes to a SuperLink, over TLS."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from wait_until import PATIENCE, until

ALWAYS = 1800.0  # seconds between heartbeats: online for an hour without any


class HostileNode:
    """`folder` is the node's, with its key and the federation's certificate."""

    def __init__(self, folder: Path, port: int) -> None:
        self.key: Any = load_ssh_private_key((folder / "key").read_bytes(), None)
        self.public = public_key_to_bytes(self.key.public_key())
        self.client = httpx.Client(
            base_url=f"https://localhost:{port}/v1/fleet/",
            verify=ssl.create_default_context(cafile=str(folder / "ca.crt")),
            timeout=PATIENCE,
        )
        self.number = 0

    def call(self, what: str, request: Any, stream: Iterator[bytes] | None = None) -> httpx.Response:
        moment = now().isoformat()
        headers = {
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public).decode(),
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(self.key, moment.encode())).decode(),
            TIMESTAMP_HEADER: moment,
            "content-type": "application/protobuf",
        }
        return self.client.post(what, content=stream or request.SerializeToString(), headers=headers)

    def activate(self) -> None:
        answer = self.call("activate-node", ActivateNodeRequest(public_key=self.public, heartbeat_interval=ALWAYS))
        assert answer.status_code == 200, answer.text
        self.number = ActivateNodeResponse.FromString(answer.content).node_id

    @property
    def node(self) -> Node:
        return Node(node_id=self.number)

    def wait_for_question(self) -> Any:
        """The first message that the server sends to this node."""

        def ask() -> Any:
            answer = self.call("pull-messages", PullMessagesRequest(node=self.node))
            return list(PullMessagesResponse.FromString(answer.content).messages_list)

        return until(ask, "a question to the hostile node", every=0.2)[0]

    def close(self) -> None:
        self.client.close()

    def leave(self) -> None:
        self.call("deactivate-node", DeactivateNodeRequest(node_id=self.number))

    def announce(self, reply: Message) -> httpx.Response:
        """Tells the SuperLink that there is this reply, without its parts."""
        proto = message_to_proto(remove_content_from_message(reply))
        trees = [get_object_tree(reply)]
        request = PushMessagesRequest(node=self.node, messages_list=[proto], message_object_trees=trees)
        return self.call("push-messages", request)

    def push_part(self, reply: Message, session: str, name: str, content: bytes) -> httpx.Response:
        request = PushObjectRequest(
            node=self.node,
            run_id=reply.metadata.run_id,
            object_id=name,
            object_content=content,
            session_id=session,
        )
        return self.call("push-object", request)


def make_reply(asked: Any, source: int, parts: int = 1, size: int = 8) -> Message:
    """Bytes that nobody asked for, as the reply to the question with this metadata, from whom one likes."""
    metadata = Metadata(
        run_id=asked.run_id,
        message_id="",
        src_node_id=source,
        dst_node_id=asked.src_node_id,
        reply_to_message_id=asked.message_id,
        group_id=asked.group_id,
        created_at=now().timestamp(),
        ttl=30.0,
        message_type=asked.message_type,
    )
    records = {f"parcel{k}": ConfigRecord({"bytes": k.to_bytes(4, "little") + bytes(size)}) for k in range(parts)}
    reply = make_message(metadata, RecordDict(records))
    reply.metadata.__dict__["_message_id"] = reply.object_id
    return reply


def parts_of(message: Message) -> dict[str, bytes]:
    return {name: part.deflate() for name, part in get_all_nested_objects(message).items()}


def session_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return PushMessagesResponse.FromString(answer.content).session_id


def memory_of(pid: int) -> int:
    """Resident bytes of a process, and the most it ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return max(int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "VmHWM"))) * 1024
