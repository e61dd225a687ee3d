"""Parcels as Flower's records.

Flower sends every record of a message as an object of its own, a signed request each, and every array as two. So a
small parcel is one ConfigRecord of bytes; a large one, whose arrays Flower sends in pieces and once for all nodes, is
a ConfigRecord for the words and an ArrayRecord.
"""

from __future__ import annotations

import json

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedptr.engines.flower.wire.parcel import Parcel, check_block, parse_words, read_parcel, write_parcel
from fedptr.engines.flower.wire.schema import reading_message
from fedptr.errors import ReplyError

RAW = "fedptr.raw"  # plain bytes: Flower's own form is numpy's file format, which has a header to be parsed
SMALL = 1 << 20  # bytes


def to_records(parcel: Parcel) -> RecordDict:
    if sum(len(block.data) for block in parcel.blocks.values()) <= SMALL:
        content = bytearray()
        write_parcel(content.extend, parcel)
        return RecordDict({"parcel": ConfigRecord({"bytes": bytes(content)})})
    words = ConfigRecord({"json": json.dumps(parcel.words)})
    arrays = {name: Array(block.dtype, block.shape, RAW, block.data) for name, block in parcel.blocks.items()}
    return RecordDict({"words": words, "arrays": ArrayRecord(arrays)})


def from_records(records: RecordDict) -> Parcel:
    """Raises ReplyError where anything is not as `to_records` makes it."""
    with reading_message():
        return read_records(records)


def read_records(records: RecordDict) -> Parcel:
    whole, words, arrays = (records.get(name) for name in ("parcel", "words", "arrays"))
    if isinstance(whole, ConfigRecord):
        return parcel_from_bytes(whole.get("bytes"))
    if not isinstance(words, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise ReplyError("it lacks the records 'words' and 'arrays'")
    if any(array.stype != RAW for array in arrays.values()):
        raise ReplyError(f"it has arrays that are not {RAW}")
    blocks = {name: check_block(name, a.dtype, a.shape, a.data) for name, a in arrays.items()}
    return Parcel(parse_words(words.get("json")), blocks)


def parcel_from_bytes(content: object) -> Parcel:
    if not isinstance(content, bytes):
        raise ReplyError("its parcel is not bytes")
    place = 0

    def receive(n: int) -> bytes:
        nonlocal place
        place += n
        return content[place - n : place]

    return read_parcel(receive)
