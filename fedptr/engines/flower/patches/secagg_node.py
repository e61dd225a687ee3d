"""Flower's half of SecAgg+ on a node, called directly.

Flower means `secaggplus_mod` to wrap a ClientApp that answers with the legacy FitRes. Ours answers with parcels, so its
numbers are put into that form; the mod takes them out, masks them, and removes them before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fedptr.engines.flower.patches.flower_code import FlowerCode
from fedptr.engines.flower.patches.secagg_checks import STATE, find_unopened
from fedptr.engines.flower.patches.secagg_masks import NODE, import_with_masks

RECORD = "secaggplus_configs"  # every message of the protocol has a record of this name
NONCE = "nonce"  # a record of ours: what the server sends in it comes back with the reply
ACCUSED = "accused"  # an entry of ours: whose shares this node cannot open
FLOWER = (
    FlowerCode(
        "flwr.common.secure_aggregation.secaggplus_constants",
        "RECORD_KEY_CONFIGS",
        21,
        f"= '{RECORD}'",
        "0c39546b70bdb8f8",
    ),
    FlowerCode(
        NODE,
        "secaggplus_mod",
        169,
        "fitres = compat.recorddict_to_fitres(out_content, keep_input=True)",
        "cc0e7d467b4de166",
    ),
    FlowerCode(NODE, "secaggplus_mod", 174, "arr_record.clear()", "cc0e7d467b4de166"),
    FlowerCode(
        "flwr.compat.common.recorddict_compat",
        "fitres_to_recorddict",
        227,
        "def fitres_to_recorddict(",
        "acf57f4322a2aa17",
    ),
)


def belongs_to_protocol(message: Message) -> bool:
    return RECORD in message.content.config_records


def answer_masked(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Lets Flower answer a message of the protocol; `call_next` trains when it is asked for the numbers.

    Before that, shares of others that cannot be opened are told to the server. Flower would fail because of them.
    """
    configs, nonce = message.content.config_records[RECORD], message.content.config_records.get(NONCE)
    bad = []
    if configs.get("stage") == "collect_masked_vectors" and STATE in context.state.config_records:
        bad = find_unopened(configs, context.state.config_records[STATE])
    if bad:
        reply = Message(RecordDict({RECORD: ConfigRecord({ACCUSED: bad})}), reply_to=message)
    else:
        reply = import_with_masks(NODE).secaggplus_mod(message, context, call_next)
    if nonce is not None and reply.has_content():
        reply.content[NONCE] = nonce
    return reply


def make_error_reply(message: Message, words: str) -> Message:
    """A reply with the reason; Flower's own has none."""
    from flwr.common.constant import ErrorCode

    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, words), reply_to=message)


def numbers_to_mask(numbers: list[Any], weight: int) -> RecordDict:
    """The numbers in the form in which Flower's half takes them."""
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
    from flwr.compat.common.recorddict_compat import fitres_to_recorddict

    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(numbers), weight, {})
    records: RecordDict = fitres_to_recorddict(result, False)
    return records
