"""A `State` as the arrays of a parcel, and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedptr.engines.flower.wire.parcel import SIZES, Block
from fedptr.tensor_bytes import copy_to_device, view_bytes
from fedptr.types import State

DTYPES = {name: getattr(torch, name) for name in SIZES}


def state_to_blocks(state: State) -> dict[str, Block]:
    """
    >>> state_to_blocks({"w": torch.tensor([1.0, 2.0])})["w"].shape
    (2,)
    """
    blocks = {}
    for name, value in state.items():
        plain = value.detach().cpu().contiguous()
        kind = str(plain.dtype).removeprefix("torch.")
        blocks[name] = Block(kind, tuple(plain.shape), view_bytes(plain).tobytes())
    return blocks


def blocks_to_state(blocks: Mapping[str, Block], device: str = "cpu") -> State:
    state = {}
    for name, (dtype, shape, data) in blocks.items():
        kind = DTYPES[dtype]
        flat = torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(0, dtype=kind)
        state[name] = flat.reshape(shape)
    return copy_to_device(state, device)
