"""Secure aggregation with a node that sends rubbish: it is named and left out, and the others go on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from simulated_nodes import Lab
from small_plans import TABLES, in_process

from fedptr.engines.flower.patches import secagg_masks
from fedptr.engines.flower.patches.secagg_checks import share_lengths
from fedptr.engines.flower.patches.secagg_node import ACCUSED, NONCE, RECORD
from fedptr.engines.flower.server.secure_aggregation import rounding_step
from fedptr.errors import UserError
from fedptr.runs import plan as planning
from fedptr.runs.plan import Plan

pytestmark = pytest.mark.real

EVIL = 103  # client 2
STAGES = {"pk1": "setup", "ctxts": "share", "masked_params": "collect", "shares": "unmask"}
Change = Callable[[str, RecordDict], Any]


def plan_for(clients: int, secure: bool = True) -> Plan:
    tables = {**TABLES, "run": {"rounds": 1, "on_failure": "drop"}}
    tables["split"] = {**TABLES["split"], "clients": clients}
    method = {"name": "fedavg", "weighting": "uniform"}
    return planning.check_plan({**tables, "method": method, "privacy": {"secure": secure, "range": 1.0}})


def stage_of(message: Any) -> str:
    record = message.content.config_records.get(RECORD) if message.has_content() else None
    return next((name for key, name in STAGES.items() if record is not None and key in record), "")


def serve(folder: Path, change: Change, clients: int = 4, silent: int = 0, rules: str = "") -> dict[str, Any]:
    """The record of a round in which one node's messages of the protocol are changed: `change(stage, content)`."""

    def hand_over(node: int, message: Any) -> Any:
        if node == silent and stage_of(message) == "collect":
            return None
        if node == EVIL and stage_of(message):
            change(stage_of(message), message.content)
        return message

    lab = Lab(folder, plan_for(clients, secure=False), rules or "min_replies = 2\npatience = 1.0\n")
    (folder / "plan.toml").write_text(plan_for(clients).toml())
    lab.serve(lab.grid(hand_over, clients))
    (record,) = lab.records()
    return record


def check_mean(found: torch.Tensor, complete: bool) -> None:
    """The mean of all four clients' models, or of fewer; never numbers with masks on them."""
    full = in_process(plan_for(4, secure=False))[0].w
    assert torch.allclose(found, full, atol=20 * rounding_step(1.0)) == complete
    assert float((found - full).norm()) < 1.0


def setting(stage: str, **entries: Any) -> Change:
    """Changes entries of a record: to a value, or by a function of the old one."""

    def change(now: str, content: RecordDict) -> None:
        if now == stage:
            record: Any = content.config_records[RECORD]
            for name, value in entries.items():
                record[name] = value(record[name]) if callable(value) else value

    return change


def garble(share: bytes) -> bytes:
    """With the index that it had."""
    return share[:4] + os.urandom(len(share) - 4)


def sealed_rubbish() -> bytes:
    return os.urandom(share_lengths().sealed)


KEY = public_key_to_bytes(generate_key_pairs()[1])
OTHER = public_key_to_bytes(ec.generate_private_key(ec.SECP256R1()).public_key())
EARLY: dict[str, tuple[Change, str]] = {
    "no keys": (setting("setup", pk1=b"x"), "no valid public keys"),
    "a key that is too long": (setting("setup", pk1=b"x" * 10**6), "no valid public keys"),
    "a key of another type": (setting("setup", pk1=3), "no valid 'pk1'"),
    "keys of another curve": (setting("setup", pk2=OTHER), "no valid public keys"),
    "the same key twice": (setting("setup", pk1=KEY, pk2=KEY), "sent twice"),
    "a list of keys": (setting("setup", pk1=[KEY, KEY]), "no valid public keys"),
    "shares for strangers": (setting("share", dsts=lambda old: [7, *old[1:]]), "other nodes than"),
    "shares for one twice": (setting("share", dsts=lambda old: [old[0], old[0], *old[2:]]), "other nodes than"),
    "a share too few": (setting("share", dsts=lambda old: old[1:], ctxts=lambda old: old[1:]), "other nodes than"),
    "short shares": (setting("share", ctxts=lambda old: [part[:-4] for part in old]), "another length"),
    "too few numbers": (setting("collect", masked_params=[b"rubbish"]), "another shape"),
    "numbers that are none": (setting("collect", masked_params=lambda old: [b"rubbish"] * len(old)), "another shape"),
    "huge numbers": (setting("collect", masked_params=lambda old: [bytes(10**6)] * len(old)), "another shape"),
}


@pytest.mark.parametrize("what", EARLY)
def test_what_can_be_seen_at_once_costs_the_node_alone(what: str, tmp_path: Path, models: list[torch.Tensor]) -> None:
    change, reason = EARLY[what]
    record = serve(tmp_path, change)
    assert reason in record["dropped"]["2"]
    assert len(record["clients"]) == 3
    check_mean(models[0], complete=False)


@pytest.mark.parametrize(
    "change",
    [
        setting("share", ctxts=lambda old: [sealed_rubbish() for _ in old]),
        setting("share", ctxts=lambda old: [sealed_rubbish(), *old[1:]]),
        setting("share", ctxts=lambda old: [*old[1:], old[0]]),
    ],
    ids=["for nobody", "not for one", "for others"],
)
def test_shares_that_cannot_be_opened(change: Change, tmp_path: Path, models: list[torch.Tensor]) -> None:
    record = serve(tmp_path, change)
    assert record["dropped"] == {"2": "client 2 sent shares that another node cannot open"}
    assert len(record["clients"]) == 3
    check_mean(models[0], complete=False)


@pytest.mark.parametrize("accused", [[[101, 102, 104]], [[101], [102], [104]]], ids=["at once", "one by one"])
def test_a_node_that_accuses_the_others_is_left_out_itself(accused: list[list[int]], tmp_path: Path) -> None:
    left = list(accused)

    def accuse(stage: str, content: RecordDict) -> None:
        if stage == "collect":
            content[RECORD] = ConfigRecord({ACCUSED: left.pop(0)})

    record = serve(tmp_path, accuse)
    assert list(record["dropped"]) == ["2"]
    assert len(record["clients"]) == 3


def test_shares_that_do_not_fit_each_other(
    tmp_path: Path, models: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are encrypted as they should be, so that only the sum shows what they are worth."""
    half = secagg_masks.import_with_masks(secagg_masks.NODE)
    share_keys, create_shares = half._share_keys, half.create_shares

    def share(state: Any, configs: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if state.nid == EVIL:
                patch.setattr(half, "create_shares", lambda *how: [garble(s) for s in create_shares(*how)])
            return share_keys(state, configs)

    monkeypatch.setattr(half, "_share_keys", share)
    record = serve(tmp_path, lambda stage, content: None)
    assert record["dropped"] == {"2": "client 2 gave the others shares that do not fit each other"}
    check_mean(models[0], complete=False)


WORDS: dict[str, dict[str, Any]] = {
    "another round": {"round": 7},
    "another size": {"size": 10**6},
    "seconds that are none": {"seconds": "long"},
}


@pytest.mark.parametrize("what", WORDS)
def test_words_that_are_not_right(what: str, tmp_path: Path, models: list[torch.Tensor]) -> None:
    def change(stage: str, content: RecordDict) -> None:
        if stage == "collect":
            words = json.loads(str(content.config_records["words"]["json"]))
            content["words"] = ConfigRecord({"json": json.dumps({**words, **WORDS[what]})})

    assert "sent" in serve(tmp_path, change)["dropped"]["2"]
    check_mean(models[0], complete=False)


def test_a_reply_without_flowers_own_records_is_enough(tmp_path: Path, models: list[torch.Tensor]) -> None:
    """Without them Flower's half would fail for all."""

    def change(stage: str, content: RecordDict) -> None:
        if stage == "collect":
            for name in [name for name in content if name.startswith("fitres")]:
                del content[name]

    assert "dropped" not in serve(tmp_path, change)
    check_mean(models[0], complete=True)


@pytest.mark.parametrize("stage", ["setup", "share", "collect"])
@pytest.mark.parametrize("nonce", [None, "0" * 32, 7])
def test_a_reply_without_the_nonce_of_its_question(stage: str, nonce: Any, tmp_path: Path) -> None:
    def change(now: str, content: RecordDict) -> None:
        if now == stage:
            content[NONCE] = ConfigRecord({} if nonce is None else {"nonce": nonce})

    assert "somebody who was not asked" in serve(tmp_path, change)["dropped"]["2"]


UNMASKING: dict[str, Change] = {
    "shares of strangers": setting("unmask", nids=lambda old: [5, *old[1:]]),
    "short shares": setting("unmask", shares=lambda old: [b"x" for _ in old]),
    "no shares": setting("unmask", shares=[], nids=[]),
    "wrong shares": setting("unmask", shares=lambda old: [garble(part) for part in old]),
    "one wrong share": setting("unmask", shares=lambda old: [garble(old[0]), *old[1:]]),
    "another index": setting("unmask", shares=lambda old: [bytes([9, 0, 0, 0]) + part[4:] for part in old]),
    "a repeated index": setting("unmask", shares=lambda old: [bytes([1, 0, 0, 0]) + part[4:] for part in old]),
}


@pytest.mark.parametrize("what", UNMASKING)
def test_shares_that_are_wrong_in_the_end(what: str, tmp_path: Path, models: list[torch.Tensor]) -> None:
    """The node's numbers were in the sum already; the others' shares suffice to take the masks off."""
    record = serve(tmp_path, UNMASKING[what])
    assert len(record["clients"]) == 4
    ((told,),) = record["entries_left_out"].values()
    assert "share" in told
    check_mean(models[0], complete=True)


def test_wrong_shares_of_the_key_of_a_node_that_was_lost(tmp_path: Path, models: list[torch.Tensor]) -> None:
    """One of five is silent when masked numbers are collected, so its private key is put together."""
    rules = "min_replies = 2\npatience = 30.0\nround_timeout = 1.0\n"
    record = serve(tmp_path, UNMASKING["wrong shares"], clients=5, silent=101, rules=rules)
    assert list(record["dropped"]) == ["0"]
    full = in_process(plan_for(5, secure=False))[0].w
    assert float((models[0] - full).norm()) < 1.0


def test_with_too_few_left_the_round_does_not_count(tmp_path: Path) -> None:
    """Of three one is gone from the start; a node of the two that are left sends rubbish."""

    def change(stage: str, content: RecordDict) -> None:
        setting("share", ctxts=lambda old: [sealed_rubbish() for _ in old])(stage, content)

    rules = "min_replies = 1\npatience = 0.5\nround_timeout = 0.5\n"
    with pytest.raises(UserError, match=r"too few nodes|takes 2 to 1023 nodes"):
        serve(tmp_path, change, clients=3, silent=101, rules=rules)
