"""A set of samples: rows of a shared array, normalised when they are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Samples:
    """A client's data, or a test set: inputs x (uint8 and memory-mapped, or float) and labels y, class numbers from 0.

    `rows` picks this set's part of x and y, so that clients share one array. With `mean` and `std`, samples are
    normalised when they are used; without them, x is used as it is.

    >>> s = Samples(torch.arange(4.0).reshape(4, 1), torch.tensor([0, 1, 0, 1]), rows=torch.tensor([1, 3]))
    >>> len(s), s.take(torch.tensor([1]))[0].tolist()
    (2, [[3.0]])
    """

    x: Tensor
    y: Tensor
    rows: Tensor | None = None
    mean: Tensor | None = None
    std: Tensor | None = None
    device: str = "cpu"
    extra: tuple[Tensor, Tensor] | None = None  # further samples after the rows, already normalised

    def __len__(self) -> int:
        own = len(self.y) if self.rows is None else len(self.rows)
        return own + (0 if self.extra is None else len(self.extra[1]))

    @property
    def labels(self) -> Tensor:
        """The labels of this set's rows."""
        return self.y if self.rows is None else self.y[self.rows]

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The samples at these positions, normalised and on the device."""
        if self.extra is None:
            return self._own(index)
        own = len(self) - len(self.extra[1])
        real, made = index[index < own], index[index >= own] - own
        (x, y), (ex, ey) = self._own(real), self.extra
        return torch.cat([x, ex[made].to(x)]), torch.cat([y, ey[made].to(y.device)])

    def _own(self, index: Tensor) -> tuple[Tensor, Tensor]:
        rows = index if self.rows is None else self.rows.index_select(0, index)
        x, y = (part.index_select(0, rows.to(part.device)).to(self.device) for part in (self.x, self.y))
        if self.mean is not None and self.std is not None:
            x = (x.float() - self.mean.to(self.device)) / self.std.to(self.device)
        return x, y

    def chunks(self, size: int = 1000) -> Iterator[tuple[Tensor, Tensor]]:
        """The whole set in order, a chunk at a time."""
        for index in torch.arange(len(self)).split(size):
            yield self.take(index)

    def part(self, rows: Tensor) -> Samples:
        """The samples at these positions, as a set."""
        assert self.extra is None
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def split(self, clients: Sequence[np.ndarray]) -> SampleParts:
        """One set per client, from the row numbers of a `fedptr.data.split.Split`."""
        return SampleParts(self, clients)

    def joined(self, x: Tensor, y: Tensor) -> Samples:
        """This set followed by samples that are already normalised."""
        assert self.extra is None
        return replace(self, extra=(x.detach(), y))


class SampleParts(Sequence[Samples]):
    """One set per client, made when it is asked for: a hundred thousand of them with their rows would take 80 MB."""

    def __init__(self, whole: Samples, clients: Sequence[np.ndarray]) -> None:
        self.whole, self.clients = whole, clients

    @overload
    def __getitem__(self, i: int) -> Samples: ...
    @overload
    def __getitem__(self, i: slice) -> SampleParts: ...
    def __getitem__(self, i: int | slice) -> Samples | SampleParts:
        if isinstance(i, slice):
            return SampleParts(self.whole, self.clients[i])
        return self.whole.part(torch.tensor(self.clients[i]))

    def __len__(self) -> int:
        return len(self.clients)
