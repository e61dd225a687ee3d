"""A cohort's visits over the network: `fedptr.federation.visit_all` for clients that are elsewhere.

What arrives is not trusted. A reply that is not of the model's shape and type, not finite, longer than the bound, or of
another round or size than was asked for, is dropped, and the record says whose it was and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fedptr.engines.flower.agreement import Agreement
from fedptr.engines.flower.courier import Courier
from fedptr.engines.flower.deployplan import Rules
from fedptr.engines.flower.node import PROTOCOL, tensor_log
from fedptr.engines.flower.parcel import Parcel
from fedptr.engines.flower.roster import Roster
from fedptr.engines.flower.tensors import pack, unpack
from fedptr.errors import ClientError, ReplyError
from fedptr.faults import Faults
from fedptr.federation import Visit, check_reply
from fedptr.methods.fedavg import FedAvg
from fedptr.record import split_log
from fedptr.samples import Samples
from fedptr.site import Site
from fedptr.task import State

VERSION = "version"  # what the server keeps of a client: the round and the attempt of its last accepted visit


class TooFewError(Exception):
    """A round had fewer usable replies than the rules ask for."""


@dataclass
class Remote:
    """Everything a question to a node needs besides the round itself."""

    courier: Courier
    roster: Roster
    rules: Rules
    plan: str  # as TOML
    agreed: Agreement
    experiment: str
    attempt: int
    oldest: Callable[[int], int]  # client -> the oldest round of its state that a checkpoint may go back to
    anew: set[int] = field(default_factory=set)  # clients that lost their state and may begin again

    def words(self, kind: str) -> dict[str, Any]:
        return {
            "kind": kind,
            "protocol": PROTOCOL,
            "experiment": self.experiment,
            "attempt": self.attempt,
            "plan": self.plan,
            "agreement": self.agreed.plain(),
        }

    def visits(
        self,
        method: FedAvg,
        msg: State,
        states: Mapping[int, State],
        sites: Mapping[int, Site],
        faults: Faults,
        tolerant: bool,
    ) -> tuple[dict[int, Visit], dict[int, str]]:
        """Asks the cohort. See `visit_all`."""
        visits: dict[int, Visit] = {}
        dropped: dict[int, str] = {}
        orders: dict[int, Parcel] = {}
        online, busy, blocks = self.courier.online(), self.courier.busy(), pack(msg)
        for i, site in sites.items():
            gone, part = faults.draw(site.key)
            node = self.roster.nodes.get(i, -1)
            if gone or node not in online or node in busy:
                dropped[i] = (
                    "simulated" if gone else "is offline" if node not in online else "is busy with an earlier round"
                )
            else:
                orders[i] = Parcel(self.order(site, i, part, states.get(i)), blocks)
        if len(orders) < self.rules.min_replies:
            raise TooFewError(f"{len(orders)} of {len(sites)} clients can be asked")
        t = next(iter(sites.values())).round
        to_nodes = {self.roster.nodes[i]: order for i, order in orders.items()}
        answers = self.courier.ask("train", to_nodes, self.rules.round_timeout, str(t + 1))
        names = entries(method, msg, sites[min(sites)])
        for i in sorted(orders):
            node = self.roster.nodes[i]
            try:
                if node in answers.failures:
                    raise ReplyError(answers.failures[node])
                visits[i] = self.judge(answers.parcels[node], msg, sites[i], names)
                self.anew.discard(i)
            except ReplyError as error:
                dropped[i] = f"{self.roster.members[i].name} {error}"
                if "lost its state" in str(error) and self.rules.lost_state == "anew":
                    self.anew.add(i)
        if dropped and not tolerant:
            i = min(dropped)
            raise ClientError(f"{method.name}, round {t + 1}, client {i}: {dropped[i]}")
        if len(visits) < self.rules.min_replies:
            raise TooFewError(f"{len(visits)} of {len(sites)} replies could be used ({'; '.join(dropped.values())})")
        return visits, dict(sorted(dropped.items()))

    def order(self, site: Site, i: int, part: float, kept: State | None) -> dict[str, Any]:
        base = None if kept is None or i in self.anew else kept[VERSION].tolist()
        return {
            **self.words("train"),
            "round": site.round,
            "client": i,
            "clients": site.clients,
            "size": site.size,
            "share": site.share,
            "part": part,
            "base": base,
            "floor": min(self.oldest(i), base[0]) if base else 0,
        }

    def judge(self, parcel: Parcel, msg: State, site: Site, names: set[str]) -> Visit:
        """The visit a reply tells of, if everything about it is as it must be."""
        words, t = parcel.words, site.round
        asked = {"kind": "trained", "round": t, "attempt": self.attempt, "size": site.size}
        for name, value in asked.items():
            if words.get(name) != value or type(words.get(name)) is not type(value):
                raise ReplyError(f"sent the {name} {str(words.get(name))[:40]!r}, not {value!r}")
        seconds = words.get("seconds")
        if not isinstance(seconds, float) or not 0 <= seconds < 1e9:
            raise ReplyError("sent no sound number of seconds")
        if set(parcel.blocks) != names:
            sent = ", ".join(sorted(parcel.blocks))[:200] or "nothing"
            raise ReplyError(f"sent {sent}, not {', '.join(sorted(names))}")
        reply = unpack(parcel.blocks, str(msg["x"].device))
        check_reply(reply, msg)
        x = msg["x"]
        bound = self.rules.norm_bound * (1 + float(x.norm()))
        for name, value in reply.items():
            length = float((value - x if name == "w" else value).norm()) if name != "buffers" else 0.0
            if length > bound:
                raise ReplyError(f"sent a {name!r} of norm {length:.3g}, more than the bound {bound:.3g}")
        version = torch.tensor([t + 1, self.attempt])
        return Visit(reply, {VERSION: version}, tensor_log(words.get("log")), seconds)


def entries(method: FedAvg, msg: State, site: Site) -> set[str]:
    """What a reply to this message consists of: the method is asked, with one imaginary sample."""
    x, task = msg["x"], site.task
    data = Samples(torch.zeros(1, *task.shape, device=x.device), torch.zeros(1, dtype=torch.int64, device=x.device))
    here = replace(site, data=data, size=1, local=method.settings(site.local))
    client = method.client_init(x, here)
    answer = method.answer(msg, client, here)
    if answer is not None:
        return set(answer)
    reply, _ = method.reply(x, msg, client, 1, here)
    return set(split_log(reply)[0]) | ({"buffers"} if "buffers" in msg else set())
