"""States as bytes and back, for files, worker processes and messages. Nothing is pickled."""

from __future__ import annotations

from typing import Any

from fedptr.types import State


def copy_to_cpu(state: State) -> State:
    """Contiguous copies: states may share memory (a trail's last model is the server's), safetensors may not."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}


def copy_to_device(state: State, device: str = "cpu") -> State:
    """Copies: arithmetic may depend on a tensor's alignment, and copies are aligned as the run's own tensors."""
    return {name: value.to(device, copy=True) for name, value in state.items()}


def view_bytes(value: Any) -> Any:
    """The bytes of a contiguous tensor on the CPU, as an array, without a copy.

    >>> import torch
    >>> view_bytes(torch.tensor([1, 2], dtype=torch.int16)).tobytes()
    b'\\x01\\x00\\x02\\x00'
    """
    import torch

    return value.reshape(-1).view(torch.uint8).numpy() if value.numel() else torch.empty(0, dtype=torch.uint8).numpy()


def pack_state(state: State) -> bytes:
    """
    >>> import torch
    >>> unpack_state(pack_state({"w": torch.tensor([1.0, 2.0])}))["w"].tolist()
    [1.0, 2.0]
    """
    from safetensors.torch import save

    return bytes(save(copy_to_cpu(state)))


def unpack_state(content: bytes, device: str = "cpu") -> State:
    """Raises safetensors' errors where the content is damaged."""
    from safetensors.torch import load

    return copy_to_device(load(content), device)
