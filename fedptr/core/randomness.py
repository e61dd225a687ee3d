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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch


class Watch:
    """Whether anybody uses PyTorch's global generator while `watch_global_generator` looks."""

    used = False


WATCHES: list[Watch] = []


@contextlib.contextmanager
def watch_global_generator() -> Iterator[Watch]:
    """Tells after the block whether any thread drew from PyTorch's global generator, and puts it back where it was."""
    watch, before = Watch(), torch.default_generator.get_state()
    WATCHES.append(watch)
    try:
        yield watch
    finally:
        WATCHES.remove(watch)
        if not torch.equal(before, torch.default_generator.get_state()):
            watch.used = True
            torch.default_generator.set_state(before)


@dataclass(frozen=True)
class Key:
    seed: int
    path: tuple[int | str, ...] = ()

    def at(self, *path: int | str) -> Key:
        """The key of a path below this one."""
        return Key(self.seed, self.path + path)

    def number(self, purpose: str) -> int:
        """A 63-bit number for this seed, path and purpose alone."""
        name = f"[{', '.join(map(to_json, (self.seed, *self.path, purpose)))}]".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1

    def __call__(self, purpose: str) -> torch.Generator:
        """A new generator for one purpose. It is always on the CPU, so a GPU run draws the same numbers."""
        return torch.Generator().manual_seed(self.number(purpose))

    def seed_global(self, purpose: str) -> None:
        """Seeds the global generator, inside `keep_global_generator`."""
        for watch in WATCHES:
            watch.used = True
        # Not torch.manual_seed: without an initialised GPU it queues a call, with a stack trace, every time.
        for generator in (torch.default_generator, *(torch.cuda.default_generators[gpu] for gpu in gpus_in_use())):
            generator.manual_seed(self.number(purpose))

    @contextlib.contextmanager
    def fixed(self, purpose: str) -> Iterator[None]:
        """Seeds the global generator inside the block, for code that uses it (initialisation of a model, dropout)."""
        with keep_global_generator():
            self.seed_global(purpose)
            yield


def keep_global_generator() -> contextlib.AbstractContextManager[None]:
    """The global generator is where it was when the block ends."""
    return torch.random.fork_rng(devices=gpus_in_use())


def gpus_in_use() -> Sequence[int]:
    return range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()


def to_json(part: int | str) -> str:
    """
    >>> to_json(3), to_json("β")
    ('3', '"\\\\u03b2"')
    """
    return repr(part) if type(part) is int else json.dumps(part)
