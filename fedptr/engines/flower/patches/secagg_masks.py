"""Masks of secure aggregation, from a stream cipher.

Flower folds a mask's 256-bit seed into 32 bits for NumPy's generator, so that whoever sees a masked vector can try all
seeds. Both sides of fedptr use this generator in its place; the protocol around it is Flower's.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

WORKFLOW = "flwr.server.workflow.secure_aggregation.secaggplus_workflow"
MOD = "flwr.client.mod.secure_aggregation.secaggplus_mod"
NONCE = bytes(16)  # a seed makes one mask: keys are made anew in every round


def mask(seed: bytes, num_range: int, dimensions_list: Sequence[tuple[int, ...]]) -> list[Any]:
    """Uniform whole numbers below `num_range`, a power of two of at most 2³².

    >>> [part.shape for part in mask(b"seed", 2**32, [(2, 3), (4,)])]
    [(2, 3), (4,)]
    """
    sizes = [math.prod(shape) for shape in dimensions_list]
    stream = Cipher(ChaCha20(hashlib.sha256(seed).digest(), NONCE), mode=None).encryptor()
    words = np.frombuffer(stream.update(bytes(4 * sum(sizes))), "<u4").astype(np.int64) & (num_range - 1)
    parts = np.split(words, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, dimensions_list, strict=True)]


def flower(name: str) -> Any:
    """Flower's half of the protocol, with these masks."""
    module = importlib.import_module(name)
    module.pseudo_rand_gen = mask  # type: ignore[attr-defined]
    return module
