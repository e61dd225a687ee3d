"""Texts as numbers: words and punctuation marks, each hashed to a number, and a fixed length.

A text is cut into lower-case words and single punctuation marks. The number of a word is 1 + CRC-32 of its UTF-8 bytes
modulo (vocabulary − 1), and 0 fills up texts that are shorter than the length; what is longer is cut off.

Numbers come from a hash and not from a list of words, so nothing has to be agreed on: clients that never saw each
other's words give a word the same number, and no list of anybody's words is sent or saved. The price is that two words
may share a number; a larger vocabulary makes that rare.

>>> split_words("It isn't bad!")
['it', "isn't", 'bad', '!']
>>> encode_texts(["Good, good", ""], TextPlan(vocabulary=100, length=4)).tolist()
[[96, 99, 96, 0], [0, 0, 0, 0]]
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from fedptr.data.dataset import Array

TOKEN = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
PADDING = 0


@dataclass(frozen=True)
class TextPlan:
    vocabulary: int = 10_000  # numbers that tokens can have, the padding's 0 among them
    length: int = 64  # tokens of a text


def split_words(text: str, most: int | None = None) -> list[str]:
    """The first `most` words and punctuation marks of a text."""
    return [found.group() for found in islice(TOKEN.finditer(text.lower()), most)]


def number_word(word: str, vocabulary: int) -> int:
    return 1 + zlib.crc32(word.encode("utf-8", "replace")) % (vocabulary - 1)


def encode_texts(texts: Sequence[str] | Iterable[str], plan: TextPlan) -> Array:
    """[n, length] token numbers."""
    known: dict[str, int] = {}
    rows = []
    for text in texts:
        row = np.full(plan.length, PADDING, dtype=np.int64)
        for place, word in enumerate(split_words(text, plan.length)):
            if word not in known:
                known[word] = number_word(word, plan.vocabulary)
            row[place] = known[word]
        rows.append(row)
    return np.stack(rows) if rows else np.zeros((0, plan.length), dtype=np.int64)
