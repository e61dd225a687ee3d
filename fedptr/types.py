"""Types that all parts of the package share. Nothing here imports torch at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

State = dict[str, "Tensor"]  # everything that is stored, checkpointed or sent is one of these
RECORDED_BY_SERVER = ("id", "cos_local", "cos_aux", "reach", "target")  # of a client; no log may replace these
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
    buffers: State | None = None  # updated in place by the model; None = fresh ones, discarded afterwards
    room: Tensor | None = None  # `grad` leaves results here that `adjoint` at the same w reuses


class Reply(NamedTuple):
    """What one client sent back, with its number of samples m_i and of local steps."""

    client: int
    size: int
    state: State
    steps: int = 0
