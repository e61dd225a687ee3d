"""The ClientApp, for every method. Flower starts a process for each message; the work is done by one that stays.

On a node the question goes to the node's worker (`fedptr.engines.flower.worker`), so that torch is imported, the data
read and the model made once and not for every message. In a simulation there is no node folder: the process that Ray
keeps is the worker.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedptr.engines.flower.masked import RECORD, masked, to_mask
from fedptr.engines.flower.parcel import Parcel
from fedptr.engines.flower.records import from_records, to_records
from fedptr.errors import ReplyError

app = ClientApp(mods=[masked])


@app.query()
@app.train()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    if RECORD in message.content.config_records:  # what goes wrong is told by `masked`
        order = from_records(message.content)
        return Message(to_mask(order, reply_to(order, context)), reply_to=message)
    try:
        parcel = reply_to(from_records(message.content), context)
    except ReplyError as error:
        parcel = Parcel({"kind": "refused", "reason": str(error)})
    return Message(to_records(parcel), reply_to=message)


def reply_to(parcel: Parcel, context: Context) -> Parcel:
    folder = context.node_config.get("folder")
    if folder is None:
        from fedptr.engines.flower.simulated import node_of

        return node_of(context).answer(parcel)
    from fedptr.engines.flower.worker import ask

    return ask(Path(str(folder)), parcel)
