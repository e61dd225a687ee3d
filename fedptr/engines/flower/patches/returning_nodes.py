"""A node that was killed is let in again as soon as it is back, and what it had been asked counts as lost.

Flower's SuperLink takes a node for online until it has missed two heartbeats, up to a minute, and turns away whoever
comes with its key in that time; meanwhile the server waits for an answer that nobody is working on. Here a node whose
connection has been silent for a few seconds is let in: it has signed the request with its key. A second node with the
same key, while the first one speaks, is turned away as before. A SuperNode keeps questions in memory only, so those
that were delivered before it started are lost, and the server is told so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from fedptr.engines.flower.patches.flower_code import FlowerCode

HANDLERS = "flwr.superlink.servicer.fleet.fleet_handlers"
STATE = "flwr.server.superlink.linkstate.sql_linkstate"
FLOWER = (
    FlowerCode(
        HANDLERS,
        "activate_node",
        114,
        "if not state.activate_node(node_id, request.heartbeat_interval):",
        "0370edbbeb924eac",
    ),
    FlowerCode(HANDLERS, "pull_messages", 205, "state.get_message_ins(node_id=node_id, limit=1)", "5f1d8861a9eb1465"),
    FlowerCode(STATE, "SqlLinkState.activate_node", 785, "NodeModel.status.in_(", "a06be1bac7e13f41"),
    FlowerCode(STATE, "SqlLinkState.delete_messages", 638, "delete(MessageInsModel).where(", "d4e4907ef5ac5a74"),
)
QUIET = 3.0  # seconds; a SuperNode that waits for questions asks for them twice a second
Handler = Callable[..., Any]


class Deliveries:
    """Which node spoke when, and which questions it took and did not answer."""

    def __init__(self, forget: Callable[[str], None] = lambda question: None) -> None:
        self.forget = forget
        self.lock = threading.Lock()
        self.spoke: dict[int, float] = {}
        self.owed: dict[int, set[str]] = {}

    def note_pulls(self, pull: Handler) -> Handler:
        def pull_messages(request: Any, state: Any, store: Any) -> Any:
            response = pull(request=request, state=state, store=store)
            with self.lock:
                self.spoke[request.node.node_id] = time.monotonic()
                taken = {message.metadata.message_id for message in response.messages_list}
                if taken:  # a SuperNode works on one at a time, so it owes nothing else any more
                    self.owed[request.node.node_id] = taken
            return response

        return pull_messages

    def let_return(self, activate: Handler) -> Handler:
        def activate_node(request: Any, state: Any) -> Any:
            node = state.get_node_id_by_public_key(request.public_key)
            with self.lock:
                quiet = time.monotonic() - self.spoke.get(node, -QUIET) >= QUIET
            if node is not None and quiet and state.deactivate_node(node):
                logging.getLogger("flwr").warning("fedptr: node %s is back before it was missed", node)
            response = activate(request=request, state=state)
            with self.lock:
                lost = self.owed.pop(response.node_id, set())
            state.delete_messages(message_ins_ids=lost)
            for question in lost:
                self.forget(question)
            return response

        return activate_node


def let_nodes_return(forget: Callable[[str], None]) -> None:
    """In the SuperLink that this process starts; `forget` is told which questions are lost."""
    from flwr.superlink.servicer.fleet import fleet_handlers

    deliveries = Deliveries(forget)
    fleet_handlers.pull_messages = deliveries.note_pulls(fleet_handlers.pull_messages)
    fleet_handlers.activate_node = deliveries.let_return(fleet_handlers.activate_node)
