"""Files as broken disks and cut transfers leave them."""

from __future__ import annotations

import random


def damage(content: bytes, rng: random.Random) -> bytes:
    """Cut, emptied, lengthened, or with bits flipped anywhere or near the start."""
    kind = rng.randrange(5)
    if kind == 0:
        return content[: rng.randrange(len(content))]
    if kind == 1:
        return b""
    if kind == 2:
        return content + bytes(rng.randrange(1, 9))
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 5, 50))):
        place = (
            rng.randrange(len(data)) if kind == 3 else rng.randrange(min(400, len(data)))
        )  # the header is where it hurts
        data[place] ^= 1 << rng.randrange(8)
    return bytes(data)
