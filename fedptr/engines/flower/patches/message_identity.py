"""Messages outside of a Flower process, for a grid that is in this one.

Flower takes the sender of a message from a global of the process (`TaskIdentity`), and its SuperLink gives the message
its id. Where there is neither, both are set here.
"""

from __future__ import annotations

from flwr.app import Message

from fedptr.engines.flower.patches.flower_code import FlowerCode

FLOWER = (
    FlowerCode("flwr.supercore.task_identity", "TaskIdentity", 59, "_run_id: int | None = None", "49ac1df12b140345"),
    FlowerCode("flwr.app.metadata", "Metadata.__init__", 75, '"_message_id": message_id,', "addaf6f8fb5b8030"),
)


def set_sender() -> None:
    """Messages that this process makes are from node 1 in run 1."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def set_message_id(message: Message, name: str) -> None:
    message.metadata.__dict__["_message_id"] = name
