"""Randomness by name: every stream is derived from (seed, path, purpose), never from global state.

Two streams with different names are independent, so switching one part of the system on or off never shifts the
numbers another part sees, and a restart at round t draws what an uninterrupted run would have drawn.

>>> key = Key(0).at("round", 3).at("client", 7)
>>> bool((torch.rand(2, generator=key("batch-order")) == torch.rand(2, generator=key("batch-order"))).all())
True
>>> bool((torch.rand(2, generator=key("batch-order")) == torch.rand(2, generator=key("augment"))).any())
False
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Key:
    seed: int
    path: tuple[int | str, ...] = ()

    def at(self, *path: int | str) -> Key:
        """The key of a path below this one."""
        return Key(self.seed, self.path + path)

    def number(self, purpose: str) -> int:
        """A 63-bit number for this seed, path and purpose alone."""
        name = json.dumps([self.seed, *self.path, purpose]).encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1

    def __call__(self, purpose: str) -> torch.Generator:
        """A new generator for one purpose. It is always on the CPU, so a GPU run draws the same numbers."""
        return torch.Generator().manual_seed(self.number(purpose))

    @contextlib.contextmanager
    def fixed(self, purpose: str) -> Iterator[None]:
        """Seeds the global generator inside the block, for code that uses it (initialisation of a model, dropout)."""
        # Not torch.manual_seed: without an initialised GPU it queues a call, with a stack trace, every time.
        gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        with torch.random.fork_rng(devices=gpus):
            torch.default_generator.manual_seed(self.number(purpose))
            for gpu in gpus:
                torch.cuda.default_generators[gpu].manual_seed(self.number(purpose))
            yield
