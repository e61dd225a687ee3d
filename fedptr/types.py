"""What travels between the parts of this package. Nothing here needs torch at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

State = dict[str, "Tensor"]  # all that is stored, checkpointed or sent
Shape = tuple[int, int, int]  # of an image: channels, height, width


class Layer(NamedTuple):
    """One parameter tensor inside the flat vector."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


class Batch(NamedTuple):
    x: Tensor
    y: Tensor
    buffers: State | None = None  # updated in place by the model; None = fresh ones that are thrown away
    room: Tensor | None = None  # where `grad` leaves what `adjoint` at the same w need not compute again


class Reply(NamedTuple):
    """What one client sent back, with the number of its samples m_i and of the local steps it took."""

    client: int
    size: int
    state: State
    steps: int = 0
