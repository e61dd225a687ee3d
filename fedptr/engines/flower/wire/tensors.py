"""A `State` as the arrays of a parcel, and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedptr.engines.flower.wire.parcel import SIZES, Block
from fedptr.types import State

DTYPES = {name: getattr(torch, name) for name in SIZES}


def pack(state: State) -> dict[str, Block]:
    """
    >>> pack({"w": torch.tensor([1.0, 2.0])})["w"].shape
    (2,)
    """
    blocks = {}
    for name, value in state.items():
        plain = value.detach().cpu().contiguous()
        data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        blocks[name] = Block(str(plain.dtype).removeprefix("torch."), tuple(plain.shape), data)
    return blocks


def unpack(blocks: Mapping[str, Block], device: str = "cpu") -> State:
    """Copies, because arithmetic may depend on where a tensor begins, and torch's own begin alike everywhere."""
    state = {}
    for name, (dtype, shape, data) in blocks.items():
        kind = DTYPES[dtype]
        flat = torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(0, dtype=kind)
        state[name] = flat.reshape(shape).to(device, copy=True)
    return state
