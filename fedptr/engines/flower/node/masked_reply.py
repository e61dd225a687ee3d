"""Secure aggregation on a node: what it would send in the clear leaves it masked, by Flower's SecAgg+.

A round is four messages: keys are made, shared, then the node trains and adds its masks, and at last it tells the
shares by which the server can take the masks off the sum, and only off the sum.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fedptr.engines.flower.patches.secagg_masks import MOD, flower
from fedptr.engines.flower.wire.parcel import Parcel
from fedptr.errors import ReplyError

RECORD = "secaggplus_configs"  # Flower's name of the record that every message of the protocol has


def masked(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Flower's part of a node, for messages of the protocol; others pass."""
    if RECORD not in message.content.config_records:
        return call_next(message, context)
    try:
        reply: Message = flower(MOD).secaggplus_mod(message, context, call_next)
        return reply
    except Exception as error:  # the server gets the reason; Flower would tell it that there was none
        from flwr.common.constant import ErrorCode

        words = str(error) if isinstance(error, ReplyError) else f"{type(error).__name__}: {error}"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, words[:500]), reply_to=message)


def to_mask(order: Parcel, reply: Parcel) -> RecordDict:
    """The reply in the form in which Flower's part takes numbers; it removes them before anything is sent."""
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
    from flwr.compat.common.recorddict_compat import fitres_to_recorddict

    if reply.words.get("kind") == "refused":
        raise ReplyError(str(reply.words.get("reason")))
    weight, largest, bound = (float(order.words[name]) for name in ("weight", "largest", "range"))
    numbers = [step(name, order, reply) for name in sorted(reply.blocks)]
    for name, values in zip(sorted(reply.blocks), numbers, strict=True):
        most = float(np.abs(values).max(initial=0.0)) * weight / largest
        if not most <= bound:  # nor where it is not a number
            raise ReplyError(f"has a {name!r} that reaches {most:.3g}, beyond privacy.range {bound:g}")
    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(numbers), int(weight), {})
    records: RecordDict = fitres_to_recorddict(result, False)
    records["words"] = ConfigRecord({"json": json.dumps(reply.words)})
    return records


def step(name: str, order: Parcel, reply: Parcel) -> Any:
    """The entry as it is summed up: a model as its step from x, which is smaller, and so is summed up more precisely.

    Where the plan has differential privacy the step is clipped here, as the server will not see it.
    """
    values = array(reply, name)
    if name != "w":
        return values
    values = values - array(order, "x")
    clip = float(order.words["clip"])
    return values * min(1.0, clip / max(float(np.linalg.norm(values)), 1e-300)) if clip else values


def array(parcel: Parcel, name: str) -> Any:
    block = parcel.blocks[name]
    if block.dtype not in ("float32", "float64"):
        raise ReplyError(f"has a {name!r} of {block.dtype}, which cannot be masked")
    return np.frombuffer(block.data, block.dtype).astype(np.float64)
