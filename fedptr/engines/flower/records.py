"""Parcels as Flower's records: one ConfigRecord for the words, one ArrayRecord for the arrays."""

from __future__ import annotations

import json

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedptr.engines.flower.parcel import Parcel, checked, words_from
from fedptr.errors import ReplyError

RAW = "fedptr.raw"  # plain bytes: Flower's own form is numpy's file format, which has a header to be parsed


def to_records(parcel: Parcel) -> RecordDict:
    words = ConfigRecord({"json": json.dumps(parcel.words)})
    arrays = {name: Array(block.dtype, block.shape, RAW, block.data) for name, block in parcel.blocks.items()}
    return RecordDict({"words": words, "arrays": ArrayRecord(arrays)})


def from_records(records: RecordDict) -> Parcel:
    """Raises ReplyError where anything is not as `to_records` makes it."""
    words, arrays = records.get("words"), records.get("arrays")
    if not isinstance(words, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise ReplyError("it lacks the records 'words' and 'arrays'")
    if any(array.stype != RAW for array in arrays.values()):
        raise ReplyError(f"it has arrays that are not {RAW}")
    blocks = {name: checked(name, a.dtype, a.shape, a.data) for name, a in arrays.items()}
    return Parcel(words_from(words.get("json")), blocks)
