"""Long work within one hook, such as learning a set in thousands of outer steps: a kill loses only the last seconds.

A hook that calls `work_through` says what a step reads and changes (`LongWork`), and gets the same bits whether it was
interrupted or not. Now and then all of this is kept at the site's workbench, if it has one. A run folder's is on disk
(`fedptr.runs.unfinished_work`). What is kept there is used only by the same work: of the same method, with the same key
(seed, round, client) and from the same tensors.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from fedptr.core.task import Company, Task
from fedptr.messages import progress_bar
from fedptr.tensor_bytes import copy_to_cpu, view_bytes
from fedptr.types import State

if TYPE_CHECKING:
    from fedptr.core.method import Method, Site

OFTEN = 10.0  # seconds of work that are worth keeping
PART = 0.02  # of the time that keeping may take
WORTH = 1.0  # seconds of finished work that are worth keeping until the round is over


class Workbench(Protocol):
    """Where the state of unfinished work is kept, by the name of the work."""

    def find(self, name: str, task: Task) -> State | None: ...
    def keep(self, name: str, task: Task, state: State) -> bool: ...


@dataclass
class LongWork:
    """All that an outer step reads and changes, beside what it computes from settings, keys and `done`.

    Learning rates are not among this: a step that changes them sets them from `done`.
    """

    learned: Mapping[str, Tensor]  # changed in place
    optimiser: torch.optim.Optimizer | None = None  # of what is learned
    generators: Mapping[str, torch.Generator] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    done: int = 0  # steps
    ended: bool = False  # a step said that it was the last

    def pack(self) -> State:
        """Everything as tensors."""
        return {
            **{f"learned/{name}": part.detach() for name, part in self.learned.items()},
            **{f"optimiser/{name}": value for name, value in self.moments().items()},
            **{f"generator/{name}": generator.get_state() for name, generator in self.generators.items()},
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "done": torch.tensor(self.done),
            "ended": torch.tensor(self.ended),
        }

    def moments(self) -> State:
        """The optimiser's tensors, by the number of the parameter and their name."""
        return {
            f"{number}/{name}": value
            for number, part in enumerate(self.parameters())
            for name, value in (self.optimiser.state.get(part, {}) if self.optimiser else {}).items()
            if isinstance(value, Tensor)
        }

    def parameters(self) -> list[Tensor]:
        groups = self.optimiser.param_groups if self.optimiser else []
        return [part for group in groups for part in group["params"]]

    def unpack(self, state: State) -> bool:
        """Takes over what `pack` returned, unless it is of something else."""
        parts = {f"learned/{name}": part for name, part in self.learned.items()}
        rest = {*parts, *(f"generator/{name}" for name in self.generators), "losses", "done", "ended"}
        if {name for name in state if not name.startswith("optimiser/")} != rest:
            return False
        if any(state[name].shape != part.shape or state[name].dtype != part.dtype for name, part in parts.items()):
            return False
        for name, part in parts.items():
            part.detach().copy_(state[name])
        for name, generator in self.generators.items():
            generator.set_state(state[f"generator/{name}"])
        parameters = self.parameters()
        for name, value in state.items():
            if name.startswith("optimiser/") and self.optimiser:
                _, number, entry = name.split("/")
                part = parameters[int(number)]
                self.optimiser.state[part][entry] = value.to(part.device) if value.dim() else value
        self.losses = state["losses"].tolist()
        self.done, self.ended = int(state["done"]), bool(state["ended"])
        return True


def work_through(
    work: LongWork,
    step: Callable[[], float | None],
    steps: int,
    words: str,
    method: Method,
    site: Site,
    begun_from: State,
) -> None:
    """Takes up to `steps` outer steps, with a progress bar; goes on where the same work was interrupted.

    A step returns its loss, or None where it has changed nothing and is the last. `begun_from` are the tensors that the
    result depends on, beside the method's settings, the key and the site's own data.
    """
    bench = site.bench
    name = name_work(words, steps, method, site, begun_from) if bench else ""
    kept = bench.find(name, site.task) if bench else None
    if kept is not None:
        work.unpack(kept)
    began, wait, company = time.monotonic(), OFTEN, getattr(site.task, "company", Company())
    with progress_bar(words, steps) as advance:
        advance(work.done)
        while work.done < steps and not work.ended:
            company.check()
            loss = step()
            if loss is None:
                work.ended = True
            else:
                work.losses.append(loss)
                work.done += 1
                advance(1)
            finished, now = work.ended or work.done == steps, time.monotonic()
            if bench and now - began >= (min(wait, WORTH) if finished else wait):
                bench = bench if bench.keep(name, site.task, work.pack()) else None
                began = time.monotonic()
                wait = max(OFTEN, (began - now) / PART)


def name_work(words: str, steps: int, method: Method, site: Site, begun_from: State) -> str:
    """A short name that only the same work has: who works, and a hash of all that it begins with."""
    about = [repr(method), words, steps, site.key.seed, site.key.path, site.round]
    digest = hashlib.sha256(json.dumps(about).encode())
    for name, value in sorted(copy_to_cpu(begun_from).items()):
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(view_bytes(value).data)
    return "-".join([*map(str, site.key.path), digest.hexdigest()[:16]])
