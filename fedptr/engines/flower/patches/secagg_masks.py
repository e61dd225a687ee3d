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

from fedptr.engines.flower.patches.flower_code import FlowerCode

SERVER = "flwr.server.workflow.secure_aggregation.secaggplus_workflow"
NODE = "flwr.client.mod.secure_aggregation.secaggplus_mod"
FLOWER = (
    FlowerCode(
        "flwr.common.secure_aggregation.secaggplus_utils",
        "pseudo_rand_gen",
        83,
        "def pseudo_rand_gen(",
        "19ee2545ed58c017",
    ),
    FlowerCode(SERVER, "SecAggPlusWorkflow.unmask_stage", 614, "private_mask = pseudo_rand_gen(", "c4639d18768446e9"),
    FlowerCode(
        NODE,
        "_collect_masked_vectors",
        468,
        "private_mask = pseudo_rand_gen(state.rd_seed, state.mod_range",
        "d638fe6563407bc1",
    ),
)
NONCE = bytes(16)  # a seed makes one mask: every round has new keys


def make_mask(seed: bytes, num_range: int, dimensions_list: Sequence[tuple[int, ...]]) -> list[Any]:
    """Uniform whole numbers below `num_range`, a power of two of at most 2³².

    >>> [part.shape for part in make_mask(b"seed", 2**32, [(2, 3), (4,)])]
    [(2, 3), (4,)]
    """
    sizes = [math.prod(shape) for shape in dimensions_list]
    stream = Cipher(ChaCha20(hashlib.sha256(seed).digest(), NONCE), mode=None).encryptor()
    words = np.frombuffer(stream.update(bytes(4 * sum(sizes))), "<u4").astype(np.int64) & (num_range - 1)
    parts = np.split(words, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, dimensions_list, strict=True)]


def import_with_masks(name: str) -> Any:
    """Flower's half of the protocol (`SERVER` or `NODE`), with these masks."""
    module = importlib.import_module(name)
    module.pseudo_rand_gen = make_mask  # type: ignore[attr-defined]
    return module
