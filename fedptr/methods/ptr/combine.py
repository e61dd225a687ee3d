"""PTR as a component: every client starts at its projected model and pulls towards it, beside what its method does.

    w̃   the client's projected model, from its own auxiliary dataset, as in FedPTR

`scaffold+ptr` is SCAFFOLD from w̃ with FedPTR's pull added to its own: c − c_i + λ_j(w_j − w̃_j).

Numbered details:
1. `fedavg+ptr` is FedPTR, and λ = 0 is the method alone, both bit for bit.
2. The pull goes where the method's own gradient goes: FedCM mixes it, FedSAM takes it at both points.
3. Control variates (SCAFFOLD, FedDC) hold the pull too, as it is a part of the steps they are made from, so that what
   differs in it between clients is corrected away. SCAFFOLD's option I holds gradients of the loss alone.
4. What a method makes from the way that training went counts from where it started, w̃_i: the control variates of
   SCAFFOLD and FedDC, the duals and penalties of FedDyn, FedPD and FedDC, FedCM's Δ̄. Counted from x they would hold the
   projection too. Where the server needs it (FedDyn, FedDC, FedCM, MoFedSAM), clients send w̃_i too: one model more up.
   What belongs to x stays with x: the pulls of FedProx and FedAGM, the gradients at x of Mime, MimeLite and SCAFFOLD's
   option I, MOON's global features, and the server's own momentum, which is of the global model's steps.
5. Settings are those of both. Where both have one of a name, FedPTR's is called `ptr_NAME`: in `fedavgm+ptr` `beta` is
   the server's momentum and `ptr_beta` the student's step size.
6. The trajectory is made of the models that clients are given: of FedAGM's x', and in FedPD of a client's own x_i.
"""

from __future__ import annotations

import functools
import typing
from dataclasses import asdict, dataclass, fields, make_dataclass, replace
from typing import Any, Self

from torch import Tensor

from fedptr.core.method import Entry, Method, Site, Sizes
from fedptr.core.task import Task
from fedptr.errors import UserError
from fedptr.methods import PTR, find_method, method_address
from fedptr.methods.fedptr import FedPTR
from fedptr.methods.ptr.projection import Projection
from fedptr.methods.ptr.trajectory import MEMORY
from fedptr.settings import baseline_of, effect_of, setting
from fedptr.types import State


def with_ptr(base: type[Method]) -> type[Method]:
    """The class of `NAME+ptr`."""
    if base.no_ptr:
        raise UserError(f"{base.name}{PTR}: {base.name} {base.no_ptr}; combine ptr with another method")
    both = {f.name for f in fields(base)} & {f.name for f in fields(Projection)}
    names = {f.name: f"ptr_{f.name}" if f.name in both else f.name for f in fields(Projection)}

    @dataclass(frozen=True)
    class CombinedWithPTR(Projection, base):  # type: ignore[misc, valid-type]
        name = f"{base.name}{PTR}"
        alone = base
        idea = f"{base.idea.partition(': ')[0]}, with FedPTR beside"
        cite = f"{base.cite}; {FedPTR.cite}"
        cost = base.cost._replace(trail="client", auxiliary="client")
        sent = (*base.sent, "start") if base.measures_drift else base.sent

        @functools.cached_property
        def ptr(self) -> FedPTR:
            """FedPTR with its part of the settings."""
            return FedPTR(**{name: getattr(self, here) for name, here in names.items()})

        @property
        def active(self) -> bool:
            return self.ptr.active

        @property
        def outer_steps(self) -> int:
            return self.ptr.outer_steps

        def shorten(self, steps: int) -> Self:
            return replace(self, **{names[key]: getattr(self.ptr.shorten(steps), key) for key in ("H", "mtt_max_loss")})

        @property
        def sends_start(self) -> bool:
            return base.measures_drift and self.active and self.start_from == "projected"

        def sends(self, task: Sizes) -> dict[str, Entry]:
            entries = base.sends(self, task)
            return entries if self.sends_start else {name: entries[name] for name in entries if name != "start"}

        def check(self, task: Task) -> None:
            base.check(self, task)
            self.ptr.check(task)

        def client_init(self, x: Tensor, site: Site) -> State:
            return {**base.client_init(self, x, site), **self.ptr.client_init(x, site)}

        def prepare(self, msg: State, client: State, site: Site) -> tuple[State, State]:
            return self.ptr.prepare(*base.prepare(self, msg, client, site), site)

        def start(self, msg: State, client: State) -> Tensor:
            return self.ptr.start(msg, client)

        def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
            own, ptr = base.pull(self, w, msg, client, site), self.ptr.pull(w, msg, client, site)
            return own if ptr is None else ptr if own is None else own + ptr

        def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
            memory = {name: client[name] for name in MEMORY if name in client}
            sent, kept = base.reply(self, w, msg, client, steps, site)
            if sent and self.sends_start:
                sent = {**sent, "start": self.start(msg, client)}  # also before warm-up: a reply has the same entries
            log, _ = self.ptr.reply(w, msg, client, steps, site)
            return {**sent, **{name: log[name] for name in log if name.startswith("log/")}}, {**kept, **memory}

        def quadratic_limit(self, A: Tensor, c: Tensor, K: int, lr: float) -> tuple[Tensor | None, Tensor] | None:
            return None if self.active else base.quadratic_limit(self, A, c, K, lr)

        def __reduce__(self) -> tuple[Any, ...]:
            """For engines that send a method: its class has no name to be found by, but the method has."""
            return rebuild_method, (method_address(type(self)), asdict(self))

    # A name that both have is the method's own, in the method's own place.
    own = [redeclare_setting(base, name, name) for name in sorted(both)]
    ptr = [redeclare_setting(Projection, name, names[name]) for name in sorted(both)]
    return make_dataclass("WithPTR", [*own, *ptr], bases=(CombinedWithPTR,), frozen=True)


def redeclare_setting(cls: type, name: str, here: str) -> tuple[str, Any, Any]:
    """A setting of a class, to be declared by another, and under another name."""
    (f,) = (f for f in fields(cls) if f.name == name)
    doc = f.metadata["doc"] if here == name else f"FedPTR's {name}: {f.metadata['doc']}"
    return (
        here,
        typing.get_type_hints(cls)[name],
        setting(f.default, doc, effect_of(f), baseline_of(f), f.metadata["example"], **f.metadata["bounds"]),
    )


def ptr_setting_name(method: type[Method], name: str) -> str:
    """What a setting of FedPTR's is called in a method that has it."""
    return f"ptr_{name}" if any(f.name == f"ptr_{name}" for f in fields(method)) else name


def rebuild_method(name: str, settings: dict[str, Any]) -> Method:
    return find_method(name)(**settings)
