"""Hostile nodes under secure aggregation: the replies of each stage, changed at random, through the server's checks."""

from __future__ import annotations

import contextlib
import functools
import io
import json
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from fuzzed_messages import Fuzzer, Words

from fedptr.engines.flower.patches.message_identity import set_message_id
from fedptr.engines.flower.patches.secagg_checks import share_lengths
from fedptr.engines.flower.patches.secagg_node import ACCUSED, NONCE, RECORD, numbers_to_mask
from fedptr.engines.flower.server.remote_visits import RemoteCohort
from fedptr.engines.flower.server.roster import Member, Roster
from fedptr.engines.flower.server.secure_aggregation import CheckedGrid, DistrustError
from fedptr.engines.flower.wire.parcel import Parcel

NODES = [1, 2, 3, 4, 5]
SHAPES = [(1,), (3,)]
STAGES = ("setup", "share_keys", "collect_masked_vectors", "unmask")
WORDS: Words = {"kind": "visited", "round": 1, "attempt": 1, "size": 50, "seconds": 0.5, "log": {"steps": 3}}


@functools.cache
def public_keys() -> list[bytes]:
    """Two of each node."""
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

    return [public_key_to_bytes(generate_key_pairs()[1]) for _ in range(2 * len(NODES))]


def make_question(stage: str) -> dict[str, Any]:
    more: dict[str, dict[str, Any]] = {
        "share_keys": {str(node): [b"key", b"key"] for node in NODES},
        "collect_masked_vectors": {"srcs": NODES, "ctxts": [b"c"] * len(NODES)},
        "unmask": {"active_nids": NODES[1:], "dead_nids": NODES[:1]},
    }
    return {"stage": stage, **more.get(stage, {})}


def make_honest(stage: str, node: int) -> dict[str, Any]:
    """As far as can be seen from outside: what is sealed is rubbish here."""
    lengths, others = share_lengths(), [other for other in NODES if other != node]
    shares = [bytes([node, 0, 0, 0]) + bytes(n - 4) for n in [*[lengths.seed] * (len(NODES) - 1), lengths.key]]
    honest: dict[str, dict[str, Any]] = {
        "setup": {"pk1": public_keys()[2 * node - 2], "pk2": public_keys()[2 * node - 1]},
        "share_keys": {"dsts": others, "ctxts": [bytes(lengths.sealed)] * len(others)},
        "collect_masked_vectors": {"masked_params": [save_npy(shape) for shape in SHAPES]},
        "unmask": {"nids": [*NODES[1:], NODES[0]], "shares": shares},
    }
    return honest[stage]


def mask(fuzzer: Fuzzer, counts: Counter[str]) -> None:
    """One question of one stage to all nodes, of which some are hostile."""
    stage = fuzzer.random.choice(STAGES)

    def exchange(to: Mapping[int, Message], timeout: float) -> tuple[dict[int, Message], dict[int, str]]:
        return {node: make_reply(fuzzer, stage, node, message) for node, message in to.items()}, {}

    site, request = SimpleNamespace(round=1, size=50), SimpleNamespace(purpose="train", expected={"w": None})
    roster = Roster({i: Member("n", i, 50, 20, "") for i in NODES})
    cohort: Any = SimpleNamespace(attempt=1, roster=roster, entries_left_out={})

    def read_words(node: int, found: Words) -> Any:
        return RemoteCohort.read_words(cohort, found, cast(Any, request), node, cast(Any, site))

    courier: Any = SimpleNamespace(exchange_messages=exchange)
    grid = CheckedGrid(courier, dict.fromkeys(NODES, Parcel({})), SHAPES, 1.0, 3, read_words)
    grid.keys = {node: (public_keys()[2 * node - 2], public_keys()[2 * node - 1]) for node in NODES}
    question = RecordDict({RECORD: ConfigRecord(make_question(stage))})
    try:
        good = grid.send_and_receive([Message(question, node, "train", ttl=60.0, group_id="1") for node in NODES])
    except DistrustError:  # the others start again, without whom they do not trust
        counts["secure, started again"] += 1
        return
    assert set(grid.failures) | {reply.metadata.src_node_id for reply in good} == set(NODES)
    assert all(why.isprintable() and why for why in grid.failures.values())
    if stage == "collect_masked_vectors":
        for reply in good:
            arrays = [np.load(io.BytesIO(c)) for c in cast(Any, reply.content[RECORD])["masked_params"]]
            assert [array.shape for array in arrays] == SHAPES
    counts["secure, used"] += len(good)
    counts["secure, dropped"] += len(grid.failures)


def make_reply(fuzzer: Fuzzer, stage: str, node: int, question: Message) -> Message:
    fuzzer.messages += 1
    fuzzer.kinds[f"secure {stage}"] += 1
    content = numbers_to_mask([np.zeros(1)], 1) if stage == "collect_masked_vectors" else RecordDict({})
    told = fuzzer.write_json(fuzzer.change_words(json.loads(json.dumps(WORDS))) if node % 2 else WORDS)
    content["words"] = ConfigRecord({"json": told.encode("utf-8", "replace").decode()})
    record = make_honest(stage, node)
    with contextlib.suppress(TypeError, ValueError):  # Flower itself has no such record
        content[RECORD] = ConfigRecord(record if node % 3 else change_record(fuzzer, record))
    if fuzzer.random.random() < 0.95:
        content[NONCE] = question.content[NONCE]
    set_message_id(question, str(node))
    return Message(content, reply_to=question)


def save_npy(shape: tuple[int, ...]) -> bytes:
    out = io.BytesIO()
    np.save(out, np.zeros(shape, np.int64))
    return out.getvalue()


def change_record(fuzzer: Fuzzer, record: Words) -> Words:
    name = fuzzer.random.choice([*record, ACCUSED])
    huge = save_npy((1,)).replace(b"(1,), }" + b" " * 12, b"(99999999999999,), }")
    values = (
        [], [1], [2.5], [True], "text", 3, b"", [b""], [b"x"], [b"x"] * 1000, [7], [1, 2, 1], [2**62],
        [huge, save_npy((3,))], [save_npy((1,)), fuzzer.change_bytes(save_npy((3,)))],
        [save_npy((1,)), save_npy((3,)).replace(b"<i8", b"|O8")], [save_npy((1,)), save_npy((3,))[:-1]],
        [save_npy((1,)), save_npy((4,))], [fuzzer.change_bytes(save_npy((1,))), save_npy((3,))],
        fuzzer.change_bytes(public_keys()[0]), public_keys()[3],
    )  # fmt: skip
    record[name] = fuzzer.random.choice(values)
    if fuzzer.random.random() < 0.2:
        del record[name]
    return record
