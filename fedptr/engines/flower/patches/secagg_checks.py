"""What is sound in Flower's SecAgg+: keys, encrypted shares, and what shares combine to.

Flower's halves of the protocol take what they are sent as it is, and one bad key or share of one node fails the sum of
all. With these checks the node is known before Flower uses what it sent: the server checks keys, lengths and secrets,
and a node checks that it can open the shares that others sent to it, which only it can see.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from fedptr.engines.flower.patches.flower_code import FlowerCode

SHAMIR = "flwr.common.secure_aggregation.crypto.shamir"
FLOWER = (
    FlowerCode(SHAMIR, "create_shares", 32, "secret_padded = pad(secret, 16)", "d922b6370cd57ff1"),
    FlowerCode(SHAMIR, "combine_shares", 88, "secret = unpad(bytes(secret_padded), 16)", "e9339f2cd706eed4"),
    FlowerCode("flwr.supercore.primitives.asymmetric", "generate_key_pairs", 29, "ec.SECP384R1()", "e551269ddc680868"),
    FlowerCode(
        "flwr.client.mod.secure_aggregation.secaggplus_mod",
        "_share_keys",
        376,
        "state.rd_seed = os.urandom(32)",
        "0873eca66c3df037",
    ),
    FlowerCode(
        "flwr.client.mod.secure_aggregation.secaggplus_mod",
        "_collect_masked_vectors",
        423,
        "shared_key = state.ss2_dict[src]",
        "d638fe6563407bc1",
    ),
    FlowerCode(
        "flwr.common.secure_aggregation.secaggplus_constants",
        "RECORD_KEY_STATE",
        20,
        "= 'secaggplus_state'",
        "d7b4bc30c51f8ded",
    ),
)
STATE = "secaggplus_state"  # the record in which a node keeps its half between messages
SEED = 32  # bytes


class Lengths(NamedTuple):
    """In bytes; the same for every node."""

    seed: int  # a share of a mask's seed
    key: int  # a share of a private key
    sealed: int  # both, encrypted for another node


@functools.cache
def share_lengths() -> Lengths:
    """Found by making some."""
    from flwr.common.secure_aggregation.crypto.shamir import create_shares
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt, generate_shared_key
    from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, private_key_to_bytes

    private, public = generate_key_pairs()
    seed, key = (create_shares(secret, 2, 2)[0] for secret in (bytes(SEED), private_key_to_bytes(private)))
    sealed = encrypt(generate_shared_key(private, public), share_keys_plaintext_concat(1, 2, seed, key))
    return Lengths(len(seed), len(key), len(sealed))


def is_public_key(content: bytes) -> bool:
    """
    >>> is_public_key(b"-----BEGIN PUBLIC KEY-----")
    False
    """
    try:
        key = load_pem_public_key(content) if len(content) < 1000 else None
    except (ValueError, UnsupportedAlgorithm):
        return False
    return isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP384R1)


def combine_to_secret(shares: Collection[bytes], public_key: bytes = b"") -> bool:
    """Whether shares combine to a seed, or to the private key that belongs to `public_key`.

    A seed is followed by sixteen known bytes, of which a wrong one is not; other bytes of it cannot be checked.
    """
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares
    from flwr.supercore.primitives.asymmetric import bytes_to_private_key, public_key_to_bytes

    try:
        secret = combine_shares(list(shares))
        if not public_key:
            return len(secret) == SEED
        return bool(public_key_to_bytes(bytes_to_private_key(secret).public_key()) == public_key)
    except (ValueError, TypeError, IndexError, AttributeError, UnsupportedAlgorithm):
        return False


def find_unopened(configs: Any, state: Any) -> list[int]:
    """On a node: whose shares it cannot open, or are not what they must be."""
    from flwr.client.mod.secure_aggregation.secaggplus_mod import SecAggPlusState
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt
    from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_separate

    mine, bad = SecAggPlusState(**state), []
    for source, sealed in zip(configs["srcs"], configs["ctxts"], strict=True):
        try:
            sender, receiver, seed, key = share_keys_plaintext_separate(decrypt(mine.ss2_dict[source], sealed))
        except (InvalidToken, ValueError, TypeError, KeyError):
            bad.append(source)
            continue
        sizes = share_lengths()
        if (sender, receiver, len(seed), len(key)) != (source, mine.nid, sizes.seed, sizes.key):
            bad.append(source)
    return bad
