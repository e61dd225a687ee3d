"""A Flower grid in one process: messages go straight to ClientApps. For tests, and for a trial without a network.

As with a SuperLink, a question to a node that is away is answered with an error: who asks may not know of it yet.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedptr.engines.flower.patches.message_identity import set_message_id, set_sender
from fedptr.engines.flower.wire.courier import LOST_NODE


class LocalGrid(Grid):
    """Nodes are 101, 102 …; those in `offline` are away. `change` sees every reply, and may drop it."""

    def __init__(
        self,
        app: ClientApp,
        node_configs: Iterable[Mapping[str, Any]],
        run_config: Mapping[str, Any],
        change: Callable[[int, Message], Message | None] = lambda node, message: message,
    ) -> None:
        set_sender()
        self.app, self.change = app, change
        self.contexts = {101 + k: make_context(101 + k, config, run_config) for k, config in enumerate(node_configs)}
        self.offline: set[int] = set()
        self.replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if node not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names, away = list[str](), set(self.offline)  # what is pushed together is sent at once
        for message in messages:
            names.append(str(uuid.uuid4()))
            set_message_id(message, names[-1])
            node = message.metadata.dst_node_id
            if node in away:
                self.replies[names[-1]] = Message(Error(LOST_NODE), reply_to=message)
                continue
            sent = copy.deepcopy(message)  # what is one object here would be one per node over a network
            reply = self.change(node, self.app(message=sent, context=self.contexts[node]))
            if reply is not None:
                self.replies[names[-1]] = reply
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def make_context(node: int, node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Context:
    return Context(1, node, dict(node_config), RecordDict(), dict(run_config))
