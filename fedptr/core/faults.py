"""Simulated faults, drawn from the keyed randomness: the same clients fail in the same rounds for every method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from fedptr.core.method import Site
from fedptr.core.randomness import Key
from fedptr.settings import setting


@dataclass(frozen=True)
class Faults:
    drop: float = setting(0.0, "probability that a selected client never replies", ge=0, le=1)
    straggle: float = setting(0.0, "probability that a client has time for only some of its local steps", ge=0, le=1)

    def simulate(self, sites: Mapping[int, Site]) -> tuple[dict[int, Site], dict[int, str]]:
        """The clients that reply, each with the part of its steps it has time for; and those that drop out."""
        if not (self.drop or self.straggle):
            return dict(sites), {}
        drawn = {i: self.draw(site.key) for i, site in sites.items()}
        present = {i: replace(sites[i], part=part) for i, (gone, part) in drawn.items() if not gone}
        return present, {i: "simulated" for i in sites if i not in present}

    def draw(self, key: Key) -> tuple[bool, float]:
        """Whether the client with this key drops out, and the part of its steps it has time for."""
        drop, straggle, part = torch.rand(3, generator=key("faults"), dtype=torch.float64).tolist()
        return drop < self.drop, part if straggle < self.straggle else 1.0
