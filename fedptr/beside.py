"""PTR as a component: every client also pulls towards its projected model, beside what its method does.

    w̃   the client's projected model, from its own auxiliary dataset, as in FedPTR

`scaffold+ptr` is SCAFFOLD with FedPTR's pull added to its own: c − c_i + λ_j(w_j − w̃_j).

Numbered details:
1. `fedavg+ptr` is FedPTR, and λ = 0 is the method alone, both bit for bit.
2. The pull goes where the method's own gradient goes: FedCM mixes it, FedSAM takes it at both points.
3. Control variates (SCAFFOLD, FedDC) hold the pull too, as it is a part of the steps they are made from, so that what
   differs in it between clients is corrected away. SCAFFOLD's option I holds gradients of the loss alone.
4. Local training starts at the global model: what control variates are made of, x − w, would hold the way to w̃ too.
5. Settings are those of both. A method with a setting that FedPTR has too cannot be combined.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from fedptr.errors import UserError
from fedptr.methods.fedavg import FedAvg
from fedptr.projected import Projected
from fedptr.site import Site
from fedptr.task import State

PTR = "+ptr"


def with_ptr(base: type[FedAvg]) -> type[FedAvg]:
    """The class of `NAME+ptr`."""
    both = {f.name for f in fields(base)} & {f.name for f in fields(Projected)}
    if both:
        raise UserError(f"{base.name}{PTR}: both have a setting {min(both)!r}; combine ptr with another method")

    @dataclass(frozen=True)
    class WithPTR(Projected, base):  # type: ignore[misc, valid-type]
        name = f"{base.name}{PTR}"
        idea = f"{base.idea.partition(': ')[0]}, with FedPTR's pull beside"
        cite = f"{base.cite}; Chen, Cao, Wang et al., 2023, arXiv:2312.14380"
        cost = {**base.cost, "client keeps": f"{base.cost['client keeps']} + m+1, D̃"}  # noqa: RUF012

        def __post_init__(self) -> None:
            if self.start_from != "global" and base is not FedAvg:
                raise UserError(f"method.start_from must be global for {self.name}: {base.name} goes by the way from x")

        def client_init(self, x: Tensor, site: Site) -> State:
            return {**base.client_init(self, x, site), **(self.memory(x, site) if self.active else {})}

        def prepare(self, msg: State, client: State, site: Site) -> tuple[State, State]:
            msg, client = base.prepare(self, msg, client, site)
            if not self.active:
                return msg, client
            target, client, log = self.advance(client, msg["x"], site)
            return (msg if target is None else {**msg, "target": target}) | log, client

        def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
            own, ptr = base.pull(self, w, msg, client, site), Projected.pull(self, w, msg, client, site)
            return own if ptr is None else ptr if own is None else own + ptr

        def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
            sent, kept = base.reply(self, w, msg, client, steps, site)
            log, _ = Projected.reply(self, w, msg, client, steps, site)
            return {**log, **sent}, {**client, **kept}

        def __reduce__(self) -> tuple[Any, ...]:
            """For engines that send a method: its class has no name to be found by, but the method has."""
            return again, (self.name, asdict(self))

    return WithPTR


def again(name: str, settings: dict[str, Any]) -> FedAvg:
    from fedptr.methods import get

    return get(name)(**settings)
