"""A limit on what nodes send to Flower's SuperLink, kept before anything is unpacked or stored.

Flower reads a request of any size into memory, unpacks it, and only then looks whose it is; a reply may have any number
of parts of any size. Here a request without a registered node's signature stays small, and the parts of a reply, and of
all that a node sends at one time, are together no larger than what the run expects (`wire/reply_limit.py`).

Flower announces a reply before its parts arrive, and the server would wait for parts that never come. Here the server
is told of a reply when all its parts are there.
"""

from __future__ import annotations

import logging
import threading
from base64 import b64decode
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fedptr.engines.flower.patches.flower_code import FlowerCode
from fedptr.engines.flower.wire.reply_limit import read_limit

HANDLERS = "flwr.superlink.servicer.fleet.fleet_handlers"
FLOWER = (
    FlowerCode(
        "flwr.supercore.protobuf.translation",
        "ProtobufTranslationMiddleware.dispatch",
        223,
        "await request.body(), request_type",
        "9a37d0f7360694c7",
    ),
    FlowerCode(
        "flwr.superlink.routers.fleet.node_auth", "authenticate_node", 64, "timestamp.encode(", "f8e66372d61b3653"
    ),
    FlowerCode(HANDLERS, "push_messages", 287, "objects_to_push=objects_to_push,", "70c2fe927c6693b0"),
    FlowerCode(HANDLERS, "push_object", 396, "stored = state.store_object(", "df7e96f1188e0a40"),
    FlowerCode(
        "flwr.superlink.servicer.runtime.runtime_handlers",
        "pull_messages",
        214,
        "message_ids = set(request.message_ids)",
        "8c998d6d197c09e4",
    ),
)
SMALL = 1 << 16  # bytes that a stranger may send; more only with the signature of a registered node
TREE = 1 << 20  # bytes around the parts of a reply: the list of their names, and Flower's own
REMEMBERED = 10_000  # replies whose parts are counted; every node owes one or two
Headers = dict[bytes, bytes]
Receive = Callable[[], Awaitable[dict[str, Any]]]
log = logging.getLogger("flwr")


class TooLargeError(Exception):
    """A node sends more than it may."""


class SizeGate:
    """413 for a node's request that is too large. Requests are read here, and passed on whole."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.held = Counter[bytes]()  # by public key: the bytes of its large requests that are in memory now

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/fleet/"):
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"")
        size = int(declared) if declared.isdigit() else None
        key, most = b"", SMALL
        if (size is None or size > SMALL) and (key := await find_key(scope, headers)):
            most = read_limit() + TREE
        mine = [0]
        try:
            if size is not None and size > most:
                raise TooLargeError
            body = await self.read_body(receive, key, most, mine)
            await self.app(scope, pass_on(body, receive), send)
        except TooLargeError:
            log.warning("fedptr: a request to %s of more than %d bytes was refused", scope["path"], most)
            await send({"type": "http.response.start", "status": 413, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body", "body": b"larger than agreed"})
        finally:
            self.held[key] -= mine[0]
            if self.held[key] <= 0:
                del self.held[key]

    async def read_body(self, receive: Receive, key: bytes, most: int, mine: list[int]) -> bytes:
        """The whole body; raises when it, or all that this node is sending, is too large."""
        parts, more = [], True
        while more:
            event = await receive()
            part, more = event.get("body", b""), event.get("more_body", False)
            parts.append(part)
            mine[0] += len(part)
            self.held[key] += len(part)
            if mine[0] > most or (key and self.held[key] > most):
                raise TooLargeError
        return b"".join(parts)


def pass_on(body: bytes, receive: Receive) -> Receive:
    """What the application sees in place of `receive`: the body in one piece, and then whatever else happens."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> dict[str, Any]:
        return waiting.pop() if waiting else await receive()

    return receive_again


async def find_key(scope: dict[str, Any], headers: Headers) -> bytes:
    """The public key of the registered node that signed this request; empty where there is none."""
    from starlette.concurrency import run_in_threadpool

    key: bytes = await run_in_threadpool(check_signature, headers, scope["app"].state.linkstate_factory.state())
    return key


def check_signature(headers: Headers, state: Any) -> bytes:
    """As Flower does it when it has read the request, which is too late for a large one."""
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    names = (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER)
    try:
        key, signature, moment = (headers[name.lower().encode()] for name in names)
        public = b64decode(key, validate=True)
        signed = verify_signature(bytes_to_public_key(public), moment, b64decode(signature, validate=True))
    except (KeyError, ValueError, TypeError):
        return b""
    return public if signed and state.get_node_id_by_public_key(public) is not None else b""


@dataclass
class Upload:
    """The reply to one question, on its way."""

    missing: set[str]  # parts
    bytes: int = 0


class Uploads:
    """Counts the parts of replies: refuses those beyond the limit, and tells which replies are complete."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_question: OrderedDict[str, Upload] = OrderedDict()
        self.questions: OrderedDict[str, str] = OrderedDict()  # by session, which is one announcement of a reply

    def announce(self, question: str, session: str, parts: set[str]) -> None:
        """Also when a reply is announced again: what it may hold does not grow."""
        with self.lock:
            self.by_question.setdefault(question, Upload(set())).missing |= parts
            self.questions[session] = question
            for kept in (self.by_question, self.questions):
                while len(kept) > REMEMBERED:
                    kept.popitem(last=False)

    def take(self, session: str, size: int) -> None:
        """Raises unless a part of this size may still be added."""
        with self.lock:
            upload = self.by_question.get(self.questions.get(session, ""))
            if upload is None or upload.bytes + size > read_limit() + TREE:
                raise TooLargeError
            upload.bytes += size

    def finish(self, session: str, part: str) -> None:
        with self.lock:
            upload = self.by_question.get(self.questions.get(session, ""))
            if upload is not None:
                upload.missing.discard(part)

    def forget(self, question: str) -> None:
        with self.lock:
            self.by_question.pop(question, None)

    def is_complete(self, question: str) -> bool:
        """Whether all parts of its reply are here; so it is where nothing is known of a reply."""
        with self.lock:
            return question not in self.by_question or not self.by_question[question].missing

    def limit_announcements(self, push: Callable[..., Any]) -> Callable[..., Any]:
        def push_messages(request: Any, state: Any) -> Any:
            response = push(request=request, state=state)
            if response.objects_to_push:
                question = request.messages_list[0].metadata.reply_to_message_id
                self.announce(question, response.session_id, set(response.objects_to_push))
            return response

        return push_messages

    def limit_parts(self, push: Callable[..., Any]) -> Callable[..., Any]:
        from flwr.supercore.error import ApiErrorCode, FlowerError

        def push_object(request: Any, state: Any) -> Any:
            try:
                self.take(request.session_id, len(request.object_content))
            except TooLargeError:
                words = f"node {request.node.node_id} sent a reply larger than agreed"
                log.warning("fedptr: %s; it was refused", words)
                raise FlowerError(ApiErrorCode.NO_PERMISSIONS, words) from None
            response = push(request=request, state=state)
            if response.stored:
                self.finish(request.session_id, request.object_id)
            return response

        return push_object

    def hide_incomplete(self, pull: Callable[..., Any]) -> Callable[..., Any]:
        def pull_messages(request: Any, state: Any, task: Any) -> Any:
            complete = [name for name in request.message_ids if self.is_complete(name)]
            return pull(type(request)(message_ids=complete), state, task)

        return pull_messages


def limit_sizes() -> Uploads:
    """The SuperLink that this process starts keeps the limits."""
    from flwr.superlink import main as superlink
    from flwr.superlink.servicer.fleet import fleet_handlers
    from flwr.superlink.servicer.runtime import runtime_handlers
    from starlette.middleware import Middleware

    uploads, inner = Uploads(), superlink._get_middleware
    superlink._get_middleware = lambda: [Middleware(SizeGate), *inner()]
    fleet_handlers.push_messages = uploads.limit_announcements(fleet_handlers.push_messages)
    fleet_handlers.push_object = uploads.limit_parts(fleet_handlers.push_object)
    runtime_handlers.pull_messages = uploads.hide_incomplete(runtime_handlers.pull_messages)
    return uploads
