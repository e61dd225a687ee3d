"""The ClientApp, for every method. Flower starts a process for each message; a process that stays does the work.

On a node that is the node's worker (`fedptr.engines.flower.node.worker`): it imports torch, reads the data and builds
the model once, not for every message. A simulation has no node folder: the process that Ray keeps is the worker.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedptr.engines.flower.node.masked_reply import make_maskable, mask_replies
from fedptr.engines.flower.patches.secagg_node import belongs_to_protocol
from fedptr.engines.flower.wire.parcel import Parcel
from fedptr.engines.flower.wire.records import from_records, to_records
from fedptr.errors import ReplyError

app = ClientApp(mods=[mask_replies])


@app.query()
@app.train()
@app.evaluate()
def answer_message(message: Message, context: Context) -> Message:
    if belongs_to_protocol(message):  # `mask_replies` tells what goes wrong
        order = from_records(message.content)
        return Message(make_maskable(order, answer_parcel(order, context)), reply_to=message)
    try:
        parcel = answer_parcel(from_records(message.content), context)
    except ReplyError as error:
        parcel = Parcel({"kind": "refused", "reason": str(error)})
    return Message(to_records(parcel), reply_to=message)


def answer_parcel(parcel: Parcel, context: Context) -> Parcel:
    folder = context.node_config.get("folder")
    if folder is None:
        from fedptr.engines.flower.node.simulated_node import node_of_context

        return node_of_context(context).answer(parcel)
    from fedptr.engines.flower.node.worker import ask_worker

    return ask_worker(Path(str(folder)), parcel)
