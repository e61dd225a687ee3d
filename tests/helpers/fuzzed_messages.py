"""Honest messages of nodes, changed at random: other values, types, names, shapes and bytes."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedptr.engines.flower.wire.parcel import Block
from fedptr.engines.flower.wire.records import RAW

HUGE, DEEP = "@huge@", "@deep@"  # what Python would not write as JSON
TEXTS = (
    "", "x" * 5000, "9" * 5000, "\x1b[2J\x1b[31m", "[red]x[/]", "[link=file:///etc]x", "a\nb", "\ud800", "\u202e", "²",
    "../../etc", "nan", "client 1", HUGE, DEEP, "1e400", "\0", "cat", "visited", "refused", "hello",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 2**31, 2**53, 2**63, -(2**63), 10**400, -(10**400), 1e9, 1e15, 1e16, 1e200, 1e300, -1e300, 1e-300,
    0.5, -0.0, math.nan, math.inf, -math.inf, True, False, 100_001,
)  # fmt: skip
NAMES = (
    "id", "cos_local", "cos_aux", "reach", "target", "steps", "train_loss", "gamma", "match_after", "match_before",
    "match_", "seconds_matching", "seconds_projection", "beta", "projection_skipped", "distances", "own_entry", "log",
    "size", "kind", "nonce", "reason", "classes", "mean", "std", "shape", "__class__", "x" * 100, "\x1b[1m", "\ud83d",
)  # fmt: skip
LOG = {
    "steps": 3, "train_loss": 0.5, "gamma": 0.1, "match_before": 0.9, "match_after": 0.4, "beta": 0.01,
    "seconds_matching": 0.1, "seconds_projection": 0.1, "projection_skipped": 0.0, "distances": [0.1, 0.2], "lam": 0.1,
}  # fmt: skip
Words = dict[str, Any]


class Fuzzer:
    """Changes what honest nodes send; `messages` counts all, `kinds` by kind."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.messages, self.kinds = 0, Counter[str]()

    def any_value(self, depth: int = 2) -> Any:
        pick = self.random.random()
        if pick < 0.45:
            return self.random.choice(NUMBERS)
        if pick < 0.75:
            return self.random.choice(TEXTS)
        if pick < 0.8 or not depth:
            return None
        count = self.random.choice((0, 1, 2, 3, 70 if depth == 2 else 2))
        values = [self.any_value(depth - 1) for _ in range(count)]
        return values if pick < 0.92 else {self.random.choice(NAMES): value for value in values}

    def change_words(self, words: Words) -> Words:
        """One or a few changes somewhere in the words: another value, a missing or a new entry."""
        for _ in range(self.random.choice((1, 1, 1, 2, 3, 8))):
            place: Any = words
            while True:
                inner = [
                    v for v in (place.values() if isinstance(place, dict) else place) if isinstance(v, (dict, list))
                ]
                if not inner or self.random.random() < 0.4:
                    break
                place = self.random.choice(inner)
            keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
            pick = self.random.random()
            if isinstance(place, dict) and (pick < 0.3 or not keys):
                place[self.random.choice(NAMES)] = self.any_value()
            elif not keys:
                place.append(self.any_value())
            elif pick < 0.4:
                del place[self.random.choice(keys)]
            elif pick < 0.5:
                place[self.random.choice(keys)] = place[self.random.choice(keys)]
            else:
                place[self.random.choice(keys)] = self.any_value()
        return words

    def change_blocks(self, blocks: dict[str, Block]) -> dict[str, Block]:
        name = self.random.choice(list(blocks) or ["w"])
        old = blocks.get(name, Block("float32", (1,), bytes(4)))
        noise = self.random.choice((math.nan, math.inf, 1e38, -1e30, 1e10, 0.1))
        numbers = np.full(old.shape, noise, old.dtype if old.dtype in ("float32", "float64") else "float32")
        choices: tuple[Callable[[], Block | None], ...] = (
            lambda: None,
            lambda: old._replace(data=numbers.tobytes()),
            lambda: old._replace(data=old.data[: self.random.randrange(len(old.data) + 1)]),
            lambda: old._replace(dtype=self.random.choice(("float64", "bool", "object", "int32", "", "bfloat16"))),
            lambda: old._replace(shape=self.random.choice(((), (0, 1 << 39), (1 << 39, 0, 1 << 39), (1,) * 9, (2, 2)))),
            lambda: old._replace(data=self.random.randbytes(len(old.data))),
        )
        new = self.random.choice(choices)()
        if new is None:
            blocks.pop(name, None)
        else:
            blocks[self.random.choice((name, name, name, *NAMES))] = new
        return blocks

    def change_bytes(self, content: bytes) -> bytes:
        data = bytearray(content)
        for _ in range(self.random.choice((1, 1, 2, 10))):
            place = self.random.randrange(len(data) + 1)
            pick = self.random.random()
            if pick < 0.5 and place < len(data):
                data[place] = self.random.randrange(256)
            elif pick < 0.75:
                del data[place : place + self.random.choice((1, 8, 10**6))]
            else:
                data[place:place] = self.random.randbytes(self.random.choice((1, 8)))
        return bytes(data)

    def make_records(self, kind: str, words: Words, blocks: dict[str, Block]) -> RecordDict:
        """The message, in most cases changed."""
        self.messages += 1
        self.kinds[kind] += 1
        pick = self.random.random()
        if 0.05 < pick < 0.75:
            only_log = words.get("log") and self.random.random() < 0.6  # so that most replies are used but for an entry
            words = {**words, "log": self.change_words(words["log"])} if only_log else self.change_words(words)
        if 0.6 < pick < 0.9:
            blocks = self.change_blocks(blocks)
        text = self.write_json(words)
        if pick > 0.97:
            record = ConfigRecord({"json": text.encode("utf-8", "replace").decode()})
            arrays = {
                name: Array(b.dtype, b.shape, self.random.choice((RAW, "numpy")), b.data) for name, b in blocks.items()
            }
            return RecordDict({"words": record, "arrays": ArrayRecord(arrays)})
        if pick > 0.965:
            return self.random.choice(
                (
                    RecordDict({}),
                    RecordDict({"parcel": ConfigRecord({"bytes": 3})}),
                    RecordDict({"parcel": MetricRecord({"a": 1})}),
                )
            )
        entries = [[name, block.dtype, list(block.shape), len(block.data)] for name, block in blocks.items()]
        arrays_text = self.write_json(
            self.change_words({"a": entries}).get("a") if pick > 0.93 and entries else entries
        )
        head = f'{{"words": {text}, "arrays": {arrays_text}}}'.encode("utf-8", "surrogatepass")
        content = len(head).to_bytes(8, "little") + head + b"".join(block.data for block in blocks.values())
        return RecordDict({"parcel": ConfigRecord({"bytes": self.change_bytes(content) if pick < 0.03 else content})})

    def write_json(self, words: Any) -> str:
        text = json.dumps(words, ensure_ascii=self.random.random() < 0.9)
        if HUGE in text:
            text = text.replace(f'"{HUGE}"', "9" * self.random.choice((400, 4299, 5000)))
        if DEEP in text:
            depth = self.random.choice((50, 400, 900, 100_000))
            text = text.replace(f'"{DEEP}"', "[" * depth + "]" * depth)
        return text
