"""Secure aggregation on a node: what it would send in the clear leaves it masked, by Flower's SecAgg+.

A round is four messages. The node makes keys, shares them, trains and adds its masks, and at last sends the shares with
which the server can take the masks off the sum, and only off the sum.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedptr.engines.flower.patches.secagg_node import (
    answer_masked,
    belongs_to_protocol,
    make_error_reply,
    numbers_to_mask,
)
from fedptr.engines.flower.wire.parcel import Parcel
from fedptr.errors import ReplyError


def mask_replies(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A mod of the ClientApp: Flower answers messages of the protocol; others pass."""
    if not belongs_to_protocol(message):
        return call_next(message, context)
    try:
        return answer_masked(message, context, call_next)
    except Exception as error:
        words = str(error) if isinstance(error, ReplyError) else f"{type(error).__name__}: {error}"
        return make_error_reply(message, words[:500])


def make_maskable(order: Parcel, reply: Parcel) -> RecordDict:
    """The reply as records from which Flower takes the numbers; it removes them before anything is sent."""
    if reply.words.get("kind") == "refused":
        raise ReplyError(str(reply.words.get("reason")))
    weight, largest, bound = (float(order.words[name]) for name in ("weight", "largest", "range"))
    numbers = [numbers_to_sum(name, order, reply) for name in sorted(reply.blocks)]
    for name, values in zip(sorted(reply.blocks), numbers, strict=True):
        most = float(np.abs(values).max(initial=0.0)) * weight / largest
        if not most <= bound:  # nor where it is not a number
            raise ReplyError(f"has a {name!r} that reaches {most:.3g}, beyond privacy.range {bound:g}")
    records = numbers_to_mask(numbers, int(weight))
    records["words"] = ConfigRecord({"json": json.dumps(reply.words)})
    return records


def numbers_to_sum(name: str, order: Parcel, reply: Parcel) -> Any:
    """The entry as it is summed: a model as its step from x, which is smaller and so more precise after rounding.

    Where the plan has differential privacy the step is clipped here, because the server does not see it.
    """
    values = read_numbers(reply, name)
    if name != "w" or "x" not in order.blocks or reply.blocks["w"].shape != order.blocks["x"].shape:
        return values
    values = values - read_numbers(order, "x")
    clip = float(order.words["clip"])
    return values * min(1.0, clip / max(float(np.linalg.norm(values)), 1e-300)) if clip else values


def read_numbers(parcel: Parcel, name: str) -> Any:
    block = parcel.blocks[name]
    if block.dtype not in ("float32", "float64"):
        raise ReplyError(f"has a {name!r} of {block.dtype}, which cannot be masked")
    return np.frombuffer(block.data, block.dtype).astype(np.float64)
