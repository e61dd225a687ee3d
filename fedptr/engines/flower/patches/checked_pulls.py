"""The server takes a reply from its SuperLink only if it is no larger than agreed, and names whose it is itself.

Flower pulls all parts of a reply and builds the message from them. A part can be listed many times in one array, so
that a small reply becomes a huge one; a part that cannot be read ends the server's process. And whom a message is from,
and which question it answers, Flower takes from one of these parts, which the node wrote and nobody compared with what
the SuperLink had checked. Here a reply that is too large or cannot be read becomes an error of its node, and the sender
and the question are those that the SuperLink knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import httpx
from flwr.app import Error, Message, RecordDict

from fedptr.engines.flower.patches.flower_code import FlowerCode, refuse_flower
from fedptr.engines.flower.wire.reply_limit import read_limit

GRID = "flwr.superlink.grid.http_grid"
FLOWER = (
    FlowerCode(
        GRID,
        "HttpGrid.pull_messages",
        371,
        "inflate_object_from_contents(msg_id, all_object_contents)",
        "67a5266a5a2ed515",
    ),
    FlowerCode("flwr.app.message.array", "Array.inflate", 346, 'array_metadata["arraychunk_ids"]', "a7afff3a6fd59978"),
    FlowerCode(
        "flwr.app.message.message",
        "Message.inflate",
        432,
        "proto_message = ProtoMessage.FromString(",
        "f7b2e3217d368f36",
    ),
)


LOST = (3, 4, 5)  # of ErrorCode: a question, a reply, a node is gone


class LargeReplyError(Exception):
    """A reply is larger than agreed."""

    def __init__(self) -> None:
        super().__init__("sent a reply that is larger than agreed")


def check_pulls() -> None:
    """In this process, grids pull replies as it is done here."""
    from flwr.superlink.grid import http_grid

    if not callable(getattr(http_grid.HttpGrid, "pull_messages", None)):
        refuse_flower()
    http_grid.HttpGrid.pull_messages = pull_messages


def pull_messages(grid: Any, message_ids: Iterable[str]) -> list[Message]:
    """Takes the place of HttpGrid.pull_messages."""
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest

    found = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
    return [
        pull_reply(grid, proto, tree)
        for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True)
    ]


def pull_reply(grid: Any, proto: Any, tree: Any) -> Message:
    """One reply, or an error in its place."""
    from flwr.app.message import make_message
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
    from flwr.common.serde import metadata_from_proto
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import pull_objects

    client, metadata, most = grid._runtime_client, metadata_from_proto(proto.metadata), read_limit()
    pull = make_pull_object_fn_protobuf(client.PullObject, grid.node, proto.metadata.run_id)
    names = list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))
    try:
        parts = pull_objects(names, limit_total(pull, most))
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=grid.node, run_id=proto.metadata.run_id, message_object_id=metadata.message_id
            )
        )
        built = build_message(metadata.message_id, parts, most)
    except httpx.HTTPError:  # the SuperLink is gone, which is nobody's reply
        raise
    except Exception as error:  # whatever a node can put into a reply
        words = str(error) if isinstance(error, LargeReplyError) else f"its reply cannot be read: {error}"
        return make_message(metadata, error=Error(ErrorCode.UNKNOWN, words[:300]))
    if built.has_error():
        code = built.error.code
        if metadata.src_node_id != SUPERLINK_NODE_ID and code in LOST:  # only the SuperLink says that
            code = ErrorCode.UNKNOWN
        return make_message(metadata, error=Error(code, str(built.error.reason or "")[:500]))
    return make_message(metadata, built.content)


def limit_total(pull: Callable[[str], bytes], most: int) -> Callable[[str], bytes]:
    """`pull`, which raises as soon as all that it pulled is too much."""
    sizes: list[int] = []

    def pull_part(name: str) -> bytes:
        content = pull(name)
        sizes.append(len(content))
        if sum(sizes) > most:
            raise LargeReplyError
        return content

    return pull_part


def build_message(name: str, parts: dict[str, bytes], most: int) -> Message:
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    if measure_arrays(parts) > most:
        raise LargeReplyError
    built = inflate_object_from_contents(name, parts)
    if not isinstance(built, Message) or not (built.has_error() or isinstance(built.content, RecordDict)):
        raise TypeError("it is no message")
    return built


def measure_arrays(parts: Mapping[str, bytes]) -> int:
    """The bytes of all arrays when they are put together."""
    from flwr.app import Array
    from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_head_values_from_object_content

    total = 0
    for content in parts.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            listed = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            total += sum(len(parts[children[place]]) for place in listed)
    return total
