"""Hostile nodes: honest messages of every kind, changed at random, through the server's real reading of them.

    python tests/helpers/fuzz_node_messages.py --messages 1000000 --seed 0

No change may do more than have its message dropped: the next round is computed, the record is written and read again,
and status and report show it. Everything is in one process with a model of 51 numbers; only the network is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from flwr.app import Message
from fuzzed_masks import mask
from fuzzed_messages import LOG, TEXTS, Fuzzer, Words
from rich.console import Console

from fedptr.core.federation import Run, federate
from fedptr.core.round_record import count_bytes
from fedptr.engines.flower.patches.message_identity import set_sender
from fedptr.engines.flower.server import status_file
from fedptr.engines.flower.server.admission import Admission
from fedptr.engines.flower.server.deploy_plan import DeployRules
from fedptr.engines.flower.server.deployed_run import prepare_task
from fedptr.engines.flower.server.remote_visits import RemoteCohort, TooFewRepliesError
from fedptr.engines.flower.server.roster import Member, Roster
from fedptr.engines.flower.setup.show_status import print_status
from fedptr.engines.flower.wire.agreement import Agreement
from fedptr.engines.flower.wire.courier import Courier
from fedptr.engines.flower.wire.parcel import Block, Parcel
from fedptr.engines.flower.wire.records import from_records, to_records
from fedptr.engines.flower.wire.reply_limit import ReplyLimit
from fedptr.engines.flower.wire.tensors import state_to_blocks
from fedptr.report.fedptr_data import collect_diagnostics
from fedptr.runs import plan as planning
from fedptr.runs.rounds_file import to_json_values
from fedptr.runs.summary import describe_matching, measure_rounds
from fedptr.runs.trackers import record_scalars

NODES = 16
HONEST = 9  # of them, more than half, when they decide what is agreed
AGREED = Agreement(("cat", "cow", "dog"), (1, 4, 4), (120.0,), (60.0,), 1000)


class FuzzedCourier(Courier):
    """Nodes that are all online, and whose answers a fuzzer changes; all else is the real courier."""

    def __init__(
        self, fuzzer: Fuzzer, answer: Callable[[str, Words, int], tuple[Words, dict[str, Block]]], honest: int = 0
    ) -> None:
        self.fuzzer, self.answer, self.honest, self.late = fuzzer, answer, honest, 0
        self.limit = ReplyLimit("fuzz")

    def online_nodes(self, fresh: bool = False) -> set[int]:
        return set(range(1, NODES + 1))

    def busy_nodes(self) -> set[int]:
        return set()

    def exchange_messages(
        self, messages: Mapping[int, Message], timeout: float
    ) -> tuple[dict[int, Message], dict[int, str]]:
        replies, failures = dict[int, Message](), dict[int, str]()
        for node, message in messages.items():
            order = from_records(message.content).words
            kind = str(order.get("purpose", "hello"))
            words, blocks = self.answer(kind, order, node)
            words["nonce"] = order["nonce"]
            if node <= self.honest:
                replies[node] = cast(Message, SimpleNamespace(content=to_records(Parcel(words, blocks))))
                continue
            if self.fuzzer.random.random() < 0.03:
                kind, words, blocks = "refused", {"kind": "refused", "nonce": order["nonce"]}, {}
                words["reason"] = self.fuzzer.any_value()
            if self.fuzzer.random.random() < 0.01:
                failures[node] = f"failed: {self.fuzzer.random.choice(TEXTS)}"
                continue
            records = self.fuzzer.make_records(kind, words, blocks)
            replies[node] = cast(Message, SimpleNamespace(content=records))
        return replies, failures


class Rounds:
    """Rounds of a method with fuzzed nodes; each call of `go` is one."""

    def __init__(self, fuzzer: Fuzzer, method: str) -> None:
        tables = {
            "model": {"name": "linear"},
            "run": {"on_failure": "drop", "rounds": 10**6},
            "method": {"name": method},
        }
        self.plan = planning.check_plan({**tables, "machine": {"threads": 1, "device": "cpu"}})
        self.task, _ = prepare_task(self.plan, AGREED, None)
        roster = Roster({i: Member(f"node [red]{i}", i, 50, 20, "0" * 64) for i in range(NODES)})
        roster.nodes = {i: i + 1 for i in range(NODES)}
        rules = DeployRules(min_nodes=1, min_replies=1)
        self.courier = FuzzedCourier(fuzzer, self.answer)
        self.remote = RemoteCohort(self.courier, roster, rules, "", AGREED, "e", 1, lambda i: 0, self.plan.privacy)
        self.fuzzer, self.run, self.expected = fuzzer, cast(Run | None, None), dict[str, Any]()
        self.counts = Counter[str]()

    def answer(self, kind: str, order: Words, node: int) -> tuple[Words, dict[str, Block]]:
        words = {"kind": "visited", "round": order["round"], "attempt": 1, "size": 50, "seconds": 0.5}
        if kind == "evaluate":
            state = {
                name: torch.tensor(1.0 if name != "tests" else 20.0, dtype=torch.float64) for name in self.expected
            }
        else:
            state = {
                name: (self.x if name == "w" else torch.zeros(tuple(e.shape))).to(e.dtype)
                + 0.01 * self.fuzzer.random.random()
                for name, e in self.expected.items()
            }
        log = {**LOG, "distances": [0.1, 0.2]} if kind == "train" else {}
        return {**words, "log": log}, state_to_blocks(state)

    def visit(self, method: Any, request: Any, *others: Any) -> Any:
        self.expected, self.x = request.expected, request.x
        return self.remote.visit_cohort(method, request, *others)

    def go(self) -> None:
        if self.run is not None and self.run.round % 50 == 0:
            self.run = None
        self.remote.entries_left_out.clear()
        plan = self.plan
        asked = (None, plan.run, plan.local, plan.faults, self.run, None, self.visit, plan.privacy, [20] * NODES)
        try:
            new = next(federate(plan.method, self.task, [50] * NODES, *asked))
        except TooFewRepliesError:
            self.counts["rounds that did not count"] += 1
            return
        record = {**new.record, "entries_left_out": self.remote.entries_left_out}
        self.counts["rounds"] += 1
        self.counts["replies dropped"] += len(record.get("dropped", ()))
        self.counts["scores dropped"] += len(record.get("not_evaluated", ()))
        self.counts["entries left out"] += sum(map(len, self.remote.entries_left_out.values()))
        self.counts["replies used"] += len(record["clients"])
        check_record(record)
        assert bool(new.w.isfinite().all())
        assert count_bytes(new.server) < 10**6
        self.run = new


def check_record(record: Words) -> None:
    """A record can be written, read again, summarised and shown; and holds what the server put into it."""
    line = json.dumps(to_json_values(record), allow_nan=False)
    line.encode()
    assert len(line) < 10**6, "a log is bounded"
    again = json.loads(line)
    assert [entry["id"] for entry in again["clients"]] == [
        i for i in record["cohort"] if i not in record.get("dropped", {})
    ]
    for entry in again["clients"]:
        assert "target" not in entry
        assert type(entry["cos_local"]) in (float, type(None))
        assert all(type(entry.get(name, 0.0)) in (int, float) for name in LOG if name not in ("distances", "lam"))
        assert all(type(n) in (int, float) for v in entry.values() for n in (v if isinstance(v, list) else [v or 0.0]))
    for reason in [*again.get("dropped", {}).values(), *again.get("not_evaluated", {}).values()]:
        assert reason.isprintable(), reason
        assert len(reason) <= 3000, reason
    measure_rounds([again], 1)
    describe_matching([again])
    record_scalars(again)
    collect_diagnostics(cast(Any, SimpleNamespace(records=[again])), None)


def greet(fuzzer: Fuzzer, folder: Path, counts: Counter[str]) -> None:
    """Handshakes of new nodes up to an agreement, and what status shows of them."""

    def answer(kind: str, order: Words, node: int) -> tuple[Words, dict[str, Block]]:
        words = {"kind": "hello", "name": f"node {node}", "number": node, "size": 50, "tests": 20, "data": "0" * 64}
        words |= {"classes": ["cat", "cow", "dog"], "shape": [1, 4, 4], "mean": [120.0], "std": [60.0]}
        return words, {}

    rules = DeployRules(min_nodes=3, max_classes=100)
    roster = Roster()
    admission = Admission(FuzzedCourier(fuzzer, answer, HONEST), roster, rules, "e", None, folder)
    offered = admission.greet_new_nodes({})
    admission.agreed = admission.try_to_agree(offered)
    assert admission.agreed is not None
    again = Agreement.from_words(json.loads(json.dumps(admission.agreed.to_words())))
    assert again == admission.agreed
    assert 3 <= len(again.classes) <= 100
    assert again.shape == (1, 4, 4)
    assert all(abs(m) < 1e5 and 1e-3 < s < 1e5 for m, s in zip(again.mean, again.std, strict=True)), again
    for node, words in offered.items():
        admission.admit_node(node, words)
    assert {roster.nodes[i] for i in range(1, HONEST + 1)} == set(range(1, HONEST + 1)), "no honest node is refused"
    assert Roster.from_text(roster.to_text()).members == roster.members
    json.dumps([again.classes, roster.to_text()], ensure_ascii=False).encode()
    counts["agreements"] += 1
    counts["nodes taken in"] += len(roster.nodes) - HONEST
    counts["nodes refused"] += len(roster.refused)
    if fuzzer.random.random() < 0.02:
        status_file.write_status(folder, roster, set(), admission.divided or "waiting", {}, dropped={})
        out = io.StringIO()
        print_status(Console(file=out, markup=False, emoji=False), status_file.read_status(folder), 3, True, None)
        assert all(line.isprintable() for line in out.getvalue().split("\n"))


class PlainLines(io.TextIOBase):
    """A terminal that takes whole lines of printable characters only."""

    def write(self, text: str) -> int:
        assert text.rstrip("\n").isprintable(), repr(text[:200])
        assert len(text) < 10_000
        text.encode()
        return len(text)


def fuzz(messages: int, seed: int, folder: Path) -> Iterator[tuple[Fuzzer, Counter[str]]]:
    """Feeds messages of every kind in turn until there were enough; yields after each turn."""
    set_sender()
    torch.set_num_threads(1)
    fuzzer, counts = Fuzzer(seed), Counter[str]()
    rounds = [Rounds(fuzzer, name) for name in ("scaffold", "mime", "ditto")]
    with contextlib.redirect_stderr(cast(Any, PlainLines())):
        for turn in itertools.count():
            greet(fuzzer, folder, counts)
            greet(fuzzer, folder, counts)
            mask(fuzzer, counts)
            for each in rounds:
                each.counts = counts
                each.go()
            if turn % 100 == 0 or fuzzer.messages >= messages:
                yield fuzzer, counts
            if fuzzer.messages >= messages:
                return


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began, said = time.monotonic(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        for fuzzer, counts in fuzz(args.messages, args.seed, Path(folder)):
            if time.monotonic() - said > 30 or fuzzer.messages >= args.messages:
                said = time.monotonic()
                print(f"{fuzzer.messages} messages, {said - began:.0f} s, {dict(counts)}", flush=True)
    print(dict(fuzzer.kinds))


if __name__ == "__main__":
    main()
