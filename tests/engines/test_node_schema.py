"""The schema of what nodes send, who of the first nodes decides, and how status shows their names."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

from fuzz_node_messages import fuzz
from rich.console import Console

from fedptr.core.method import Entry
from fedptr.core.visit import Request
from fedptr.engines.flower.server.deploy_plan import DeployRules
from fedptr.engines.flower.server.first_agreement import Sifted, sift_offers
from fedptr.engines.flower.server.remote_visits import RemoteCohort
from fedptr.engines.flower.server.secure_aggregation import MODULUS, holds_whole_numbers
from fedptr.engines.flower.setup import show_status
from fedptr.engines.flower.wire.agreement import Offer
from fedptr.engines.flower.wire.parcel import parse_words
from fedptr.engines.flower.wire.schema import MOST_ENTRIES, MOST_NOTES, check_log, check_visited, read_hello
from fedptr.errors import ReplyError, UserError

pytestmark = pytest.mark.real

NORTH = Offer("north", 50, ("cat", "dog"), (3, 8, 8), (120.0,) * 3, (60.0,) * 3)
SOUTH, WEST, EAST = (replace(NORTH, name=name) for name in ("south", "west", "east"))
LARGE = replace(NORTH, name="large", shape=(3, 9, 9))


def sift(*offers: Offer, min_nodes: int = 2, **rules: Any) -> Sifted:
    return sift_offers(offers, DeployRules(min_nodes=min_nodes, **rules), None)


def test_more_than_half_of_the_first_nodes_decide_the_shape() -> None:
    found = sift(LARGE, NORTH, SOUTH)
    assert found.agreed is not None
    assert found.agreed.shape == (3, 8, 8)
    assert list(found.refused) == [0]
    assert "images of 3×9×9" in found.refused[0]


def test_while_nodes_are_divided_nobody_is_refused() -> None:
    found = sift(LARGE, NORTH)
    assert (found.agreed, found.refused) == (None, {})
    assert "large has 3×9×9" in found.divided
    assert sift(LARGE, NORTH, SOUTH, min_nodes=3).agreed is None


def test_the_plan_may_state_the_shape() -> None:
    found = sift(NORTH, SOUTH, LARGE, min_nodes=1, shape="3x9x9")
    assert found.agreed is not None
    assert found.agreed.shape == (3, 9, 9)
    assert list(found.refused) == [0, 1]
    for wrong in ("3x9x9x9", "0x9x9", "a", "3x-1x9", "1x99999999x1"):
        with pytest.raises(UserError, match=r"deploy\.shape is .*; write channels, height and width as 3x32x32"):
            sift(NORTH, SOUTH, shape=wrong)


@pytest.mark.parametrize("odd", [{"std": (1e6,) * 3}, {"std": (1e-6,) * 3}, {"mean": (1e5, 0.0, 0.0)}])
def test_one_node_does_not_decide_the_normalisation(odd: dict[str, Any]) -> None:
    found = sift(replace(EAST, **odd), NORTH, SOUTH)
    assert found.agreed is not None
    assert (found.agreed.mean, found.agreed.std) == (NORTH.mean, NORTH.std)
    assert list(found.refused) == [0]


def test_dark_and_bright_photographs_are_alike() -> None:
    dark = replace(EAST, mean=(5.0,) * 3, std=(2.0,) * 3)
    assert sift(dark, replace(dark, name="d"), NORTH).refused == {}


def test_all_classes_together_are_bounded() -> None:
    many = replace(WEST, classes=tuple(f"c{k}" for k in range(9)))
    some = replace(EAST, classes=("cat", "eel"))
    found = sift(many, NORTH, some, max_classes=10)
    assert found.agreed is not None
    assert found.agreed.classes == ("cat", "dog", "eel")
    assert "it has 9 classes, not fitting: with it there are more than deploy.max_classes = 10" in found.refused[0]
    assert sift(many, NORTH, some, max_classes=12).refused == {}


def test_a_log_has_bounds() -> None:
    found, notes = check_log({"steps": 1, **{f"e{k}": [1.0] for k in range(100)}})
    assert len(found) == MOST_ENTRIES
    assert len(notes) == 1
    found, notes = check_log({"a": [1.0] * 4000, "b": [1.0] * 4000})
    assert list(found) == ["a"]
    found, notes = check_log({f"wrong {k}": 1 for k in range(50)})
    assert (found, len(notes), notes[-1]) == ({}, MOST_NOTES + 1, "sent 45 more entries that were left out")
    assert check_log([1])[0] == {}
    assert check_log({"lam": 0.5, "acc/top-5": [0.1, 2]})[0] == {"lam": 0.5, "acc/top-5": [0.1, 2]}


@pytest.mark.parametrize("seconds", [True, -1.0, float("nan"), float("inf"), 10**400, [1.0], "1", None])
def test_seconds_are_a_number(seconds: Any) -> None:
    with pytest.raises(ReplyError, match="sent a 'seconds' that is"):
        check_visited({"kind": "visited", "round": 1, "seconds": seconds}, {"round": 1})


def test_a_name_may_be_in_any_script() -> None:
    words = {"name": "東京　北", "number": 0, "data": "0" * 64, "shape": [1, 8, 8], "mean": [1], "std": [1.5]}
    words |= {"size": 3, "tests": 0, "classes": ["گربه\u200cها", "猫", "кот"]}
    assert read_hello(words, 10, 10)["classes"] == words["classes"]
    for wrong in ("\x1b[31m", "a\nb", "\u202etac", " ", "\u2028"):
        with pytest.raises(ReplyError, match="sent a 'name' that is"):
            read_hello({**words, "name": wrong}, 10, 10)


def test_words_with_half_a_character_are_refused() -> None:
    for text in ('{"a": "\\ud800"}', b'{"a": "\xed\xa0\x80"}', '{"\\uDC00": 1}', b"\xff"):
        with pytest.raises(ReplyError, match="not a JSON object"):
            parse_words(text)
    assert parse_words('{"a": "\\ud83d\\ude00"}') == {"a": "😀"}


def save(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def test_masked_numbers_are_compared_with_what_is_expected_before_they_take_memory() -> None:
    good = save(np.array([0, MODULUS - 1, 3]))
    assert holds_whole_numbers(good, (3,))
    assert not holds_whole_numbers(good, (2,))
    bad = [b"", good[:-1], good + b"1", save(np.array([-1, 0, 1])), save(np.array([MODULUS, 0, 1])), save(np.ones(3))]
    bad += [good.replace(b"<i8", b"|O8"), good.replace(b"(3,)", b"(((("), b"\x93NUMPY\x03\x00" + good[8:]]
    bad += [good.replace(b"(3,), }" + b" " * 12, b"(30000000000000,), }")]
    assert not any(holds_whole_numbers(content, (3,)) for content in bad)


def test_status_shows_names_as_they_are() -> None:
    node = {"number": 0, "name": "[red]north[/]", "samples": 3, "online": True, "last_seen": None}
    now = {"phase": "round 1 :boom:", "nodes": [node], "refused": ["\x1b[2Jnode [bold]x\n"], "problem": "\x07[i]"}
    now |= {"dropped": {"0": "[link=file:///etc]y"}, "entries_left_out": {"0": ["north sent a 'id'"]}}
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system="truecolor", **show_status.PLAIN)
    show_status.print_status(console, json.loads(json.dumps(now)), 3, True, None)
    text = out.getvalue()
    for words in ("[red]north[/]", ":boom:", "\\x1b[2Jnode [bold]x", "\\x07[i]", "[link=file:///etc]y", "sent a 'id'"):
        assert words in text
    assert "\x1b[2J" not in text
    assert "\x1b]8" not in text


@pytest.mark.slow
def test_messages_changed_at_random_do_nothing_but_be_dropped(tmp_path: Path) -> None:
    *_, (fuzzer, counts) = fuzz(3000, 0, tmp_path)
    assert fuzzer.messages >= 3000
    assert min(counts[name] for name in ("replies used", "replies dropped", "entries left out", "agreements")) > 10


def test_buffers_that_would_end_in_infinity_are_refused() -> None:
    request = Request("train", torch.zeros(3), {}, {"w": Entry((3,)), "buffers": Entry((2,))})
    cohort: Any = SimpleNamespace(rules=DeployRules())
    RemoteCohort.check_bounds(cohort, {"w": torch.ones(3), "buffers": torch.full((2,), 1e8)}, request)
    with pytest.raises(ReplyError, match=r"sent 'buffers' of up to 1e\+38, more than 1e\+09"):
        RemoteCohort.check_bounds(cohort, {"w": torch.ones(3), "buffers": torch.tensor([0.0, -1e38])}, request)


def test_samples_have_no_length_as_models_have() -> None:
    """As many samples as there are may be far longer than a model; none of their numbers may be absurd."""
    entries = {"X": Entry((4, 4), plain=True), "Y": Entry((4, 4), fewer=True), "rates": Entry((4,))}
    request = Request("train", torch.zeros(3), {}, entries)
    cohort: Any = SimpleNamespace(rules=DeployRules())
    for name in entries:
        long, absurd = {name: torch.full((4, 4), 900.0)}, {name: torch.full((4, 4), 1e10)}
        if name == "rates":
            with pytest.raises(ReplyError, match="of norm "):
                RemoteCohort.check_bounds(cohort, long, request)
            continue
        RemoteCohort.check_bounds(cohort, long, request)
        with pytest.raises(ReplyError, match=r"of up to 1e\+10, more than 1000"):
            RemoteCohort.check_bounds(cohort, absurd, request)
