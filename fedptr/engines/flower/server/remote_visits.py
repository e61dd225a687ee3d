"""The clients of a round over the network: `fedptr.core.visit.visit_in_process` for clients that are elsewhere.

Nothing that arrives is trusted. A reply with another shape or type than the model's, with numbers that are not finite,
beyond the bound, or for another round or size than asked, is dropped. The record says whose it was and why. The same
holds for scores that cannot be right; an evaluation never decides whether a round counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fedptr.core.client_scores import check_scores
from fedptr.core.method import Method, Site
from fedptr.core.visit import Purpose, Request, Visit, VisitResults, check_reply
from fedptr.engines.flower.server.deploy_plan import DeployRules
from fedptr.engines.flower.server.rests import Rests
from fedptr.engines.flower.server.roster import Roster
from fedptr.engines.flower.wire.agreement import Agreement
from fedptr.engines.flower.wire.courier import OFFLINE, Courier
from fedptr.engines.flower.wire.diagnostics import read_log
from fedptr.engines.flower.wire.parcel import PROTOCOL, Parcel
from fedptr.engines.flower.wire.schema import check_visited, reading_message
from fedptr.engines.flower.wire.tensors import blocks_to_state, state_to_blocks
from fedptr.errors import ClientError, ReplyError, UserError
from fedptr.messages import make_printable
from fedptr.privacy.differential import Privacy
from fedptr.types import State

VERSION = "version"  # what the server keeps of a client: the round and the attempt of its last accepted visit
LARGEST_BUFFER = 1e9  # a larger running mean or variance would end in infinity for everyone
LARGEST_SAMPLE = 1e3  # of samples that clients send, which are normalised


class TooFewRepliesError(Exception):
    """A round had fewer usable replies than the rules ask for."""


@dataclass
class RemoteCohort:
    """The nodes that are a round's clients, and what every question to them needs."""

    courier: Courier
    roster: Roster
    rules: DeployRules
    plan: str  # as TOML
    agreed: Agreement
    experiment: str
    attempt: int
    oldest: Callable[[int], int]  # client -> the oldest round of its state that a checkpoint may go back to
    privacy: Privacy
    first_model: str = ""  # digest of what the model starts with, where nodes need to have the same
    restarting: set[int] = field(default_factory=set)  # clients that lost their state and may start again
    entries_left_out: dict[int, list[str]] = field(default_factory=dict)  # of logs: by client, since last emptied
    rests: Rests = field(default_factory=Rests)

    def visit_cohort(
        self,
        method: Method,
        request: Request,
        states: Mapping[int, State],
        sites: Mapping[int, Site],
        tolerant: bool,
    ) -> VisitResults:
        """Asks the cohort. See `visit_in_process`."""
        evaluating = request.purpose == "evaluate"
        dropped: dict[int, str] = {}
        orders: dict[int, Parcel] = {}
        online, busy = self.courier.online_nodes(), self.courier.busy_nodes()
        blocks = state_to_blocks(request.msg)
        # Differential privacy accounts for every cohort that is drawn: a small one must not be drawn again.
        least = 0 if self.privacy.clip or evaluating else self.rules.min_replies
        free = [i for i in sites if self.roster.nodes.get(i, -1) in online - busy]
        chosen = self.rests.choose_to_ask(free, max(least, 2 if self.privacy.secure and not evaluating else 0))
        for i, site in sites.items():
            if i not in chosen:
                dropped[i] = f"{self.roster.members[i].name} {self.why_not_asked(i, i in free, online)}"
            else:
                words = self.make_order(request.purpose, site, i, states.get(i))
                orders[i] = Parcel(words, {**blocks, **state_to_blocks(request.own.get(i, {}))})
        if len(orders) < least:
            raise TooFewRepliesError(f"{len(orders)} of {len(sites)} clients can be asked")
        t = next(iter(sites.values())).round
        masked = self.privacy.secure and not evaluating
        self.courier.limit.allow(measure_replies(request, masked))
        ask = self.ask_for_sum if masked else self.ask_each
        visits, failures = dict[int, Visit](), dict[int, str]()
        try:
            visits, failures = ask(method, request, orders, sites) if orders else (visits, failures)
        except TooFewRepliesError as error:
            if not self.privacy.clip:
                raise
            dropped |= {i: f"{self.roster.members[i].name} is left out: {error}" for i in orders}
        for i, reason in failures.items():
            dropped[i] = make_printable(f"{self.roster.members[i].name} {reason}"[:500])
            if reason != OFFLINE:
                self.rests.note_failure(i, reason)
            if "lost its state" in reason and self.rules.lost_state == "anew":
                self.restarting.add(i)
        self.rests.note_replies(visits)
        if evaluating:  # nothing was kept, and nobody's failure stops the run
            return visits, dict(sorted(dropped.items()))
        self.restarting -= set(visits)
        if dropped and not tolerant:
            i = min(dropped)
            raise ClientError(f"{method.name}, round {t + 1}, client {i}: {dropped[i]}")
        if len(visits) < least:
            raise TooFewRepliesError(
                f"{len(visits)} of {len(sites)} replies could be used ({'; '.join(dropped.values())})"
            )
        return visits, dict(sorted(dropped.items()))

    def why_not_asked(self, i: int, free: bool, online: set[int]) -> str:
        if free:
            return self.rests.describe(i)
        return "is offline" if self.roster.nodes.get(i, -1) not in online else "is busy with an earlier round"

    def ask_each(
        self, method: Method, request: Request, orders: Mapping[int, Parcel], sites: Mapping[int, Site]
    ) -> VisitResults:
        """By client: the visits whose replies pass all checks, and why the others failed."""
        some = sites[min(sites)]
        to_nodes = {self.roster.nodes[i]: order for i, order in orders.items()}
        kind = "evaluate" if request.purpose == "evaluate" else "train"
        answers = self.courier.ask_nodes(kind, to_nodes, self.rules.round_timeout, str(some.round + 1))
        visits, failures = dict[int, Visit](), dict[int, str]()
        for i in sorted(orders):
            node = self.roster.nodes[i]
            try:
                if node in answers.failures:
                    raise ReplyError(answers.failures[node])
                with reading_message():
                    visits[i] = self.read_visit(answers.parcels[node], request, i, sites[i])
            except ReplyError as error:
                failures[i] = str(error)
        return visits, failures

    def read_visit(self, parcel: Parcel, request: Request, i: int, site: Site) -> Visit:
        """A client's visit from its reply; raises where the reply cannot be used."""
        log, seconds = self.read_words(parcel.words, request, i, site)
        reply = blocks_to_state(parcel.blocks, str(request.x.device))
        check_reply(reply, request.expected)
        if request.purpose == "evaluate":
            check_scores(reply, self.roster.members[i].tests)
        else:
            self.check_bounds(reply, request)
        return self.make_visit(reply, log, site, seconds)

    def ask_for_sum(
        self, method: Method, request: Request, orders: Mapping[int, Parcel], sites: Mapping[int, Site]
    ) -> VisitResults:
        """The same by secure aggregation: every client's reply is the mean of all; the server sees nothing else."""
        from fedptr.engines.flower.patches.secagg_workflow import UnmaskableError
        from fedptr.engines.flower.server.secure_aggregation import collect_mean, rounding_step

        x, names = request.x, sorted(request.expected)
        entries = [request.expected[name] for name in names]
        shapes: list[tuple[int, ...]] = [(math.prod(entry.shape),) for entry in entries]  # masked numbers are flat
        weights = {i: sites[i].size if method.weighting == "samples" else 1 for i in orders}
        clip = self.privacy.clip and self.privacy.clip - len(x) ** 0.5 * rounding_step(self.privacy.range)
        if clip < 0:
            raise UserError("privacy.clip is within the rounding of privacy.range; make the range smaller")
        more = {"range": self.privacy.range, "clip": clip, "largest": max(weights.values())}
        to_nodes = {
            self.roster.nodes[i]: Parcel({**order.words, **more, "weight": weights[i]}, order.blocks)
            for i, order in orders.items()
        }
        clients = {self.roster.nodes[i]: i for i in orders}

        def read_words(node: int, words: Mapping[str, Any]) -> tuple[State, float]:
            return self.read_words(words, request, clients[node], sites[clients[node]])

        try:
            got = collect_mean(self.courier, to_nodes, shapes, self.rules.round_timeout, read_words)
            mean = {
                name: torch.from_numpy(value).reshape(entry.shape).to(x.device, entry.dtype)
                for name, entry, value in zip(names, entries, got.mean, strict=True)
            }
            if "w" in mean and "x" in request.msg and mean["w"].shape == x.shape:
                mean["w"] = x + mean["w"]
            check_reply(mean, request.expected)
            self.check_bounds(mean, request)
            visits = {
                clients[node]: self.make_visit(mean, log, sites[clients[node]], seconds)
                for node, (log, seconds) in got.words.items()
            }
        except (UnmaskableError, ReplyError) as error:  # nobody knows which node sent what
            raise TooFewRepliesError(f"the sum of the replies cannot be used: {error}") from None
        failures = {clients[node]: why for node, why in got.failures.items()}
        for i in failures.keys() & visits.keys():  # its numbers are in the sum, what it sent afterwards was no help
            self.entries_left_out[i] = [make_printable(f"{self.roster.members[i].name} {failures[i]}"[:500])]
        return visits, {i: why for i, why in failures.items() if i not in visits}

    def make_order(self, purpose: Purpose, site: Site, i: int, kept: State | None) -> dict[str, Any]:
        base = None if kept is None or i in self.restarting else kept[VERSION].tolist()
        return {
            "kind": "visit",
            "protocol": PROTOCOL,
            "experiment": self.experiment,
            "attempt": self.attempt,
            "plan": self.plan,
            "agreement": self.agreed.to_words(),
            "first_model": self.first_model,
            "purpose": purpose,
            "round": site.round,
            "client": i,
            "clients": site.clients,
            "numbers": site.numbers,
            "size": site.size,
            "share": site.share,
            "part": site.part,
            "base": base,
            "floor": min(self.oldest(i), base[0]) if base else 0,
        }

    def read_words(self, words: Mapping[str, Any], request: Request, i: int, site: Site) -> tuple[State, float]:
        """A client's diagnostics and its seconds; raises unless its words are the reply to this question.

        Entries of the log that do not fit are left out and noted. But methods count on the number of steps, which is
        zero only where nothing is sent (a round of L2GD without training).
        """
        seconds = check_visited(words, {"round": site.round, "attempt": self.attempt, "size": site.size})
        if request.purpose != "train":
            return {}, seconds
        log, notes = read_log(words.get("log"))
        if "steps" not in log or (request.expected and not int(log["steps"])):
            raise ReplyError("sent no sound number of steps")
        if notes:
            self.entries_left_out[i] = [make_printable(f"{self.roster.members[i].name} {note}") for note in notes]
        return log, seconds

    def check_bounds(self, reply: State, request: Request) -> None:
        """Raises unless every tensor has a norm within the bound, and buffers and samples plausible numbers."""
        x = request.x
        bound = self.rules.norm_bound * (1 + float(x.norm()))
        for name, value in reply.items():
            entry = request.expected[name]
            if name == "buffers" or entry.fewer or entry.plain:  # these are no models
                largest = LARGEST_BUFFER if name == "buffers" else LARGEST_SAMPLE
                if value.numel() and not float(value.abs().max()) <= largest:
                    raise ReplyError(f"sent {name!r} of up to {float(value.abs().max()):.3g}, more than {largest:g}")
                continue
            step = value - x if name == "w" and value.shape == x.shape else value.double()
            length = float(step.norm())
            if length > bound:
                raise ReplyError(f"sent a {name!r} of norm {length:.3g}, more than the bound {bound:.3g}")

    def make_visit(self, reply: State, log: State, site: Site, seconds: float) -> Visit:
        return Visit(reply, {VERSION: torch.tensor([site.round + 1, self.attempt])}, log, seconds)


def measure_replies(request: Request, masked: bool) -> int:
    """The bytes of a reply's arrays; masked numbers have eight each, and one more for the weight."""
    total = 0
    for entry in request.expected.values():
        each = 8 if masked or entry.dtype is None else entry.dtype.itemsize
        total += each * (math.prod(entry.shape) + 1)
    return total
