"""A node that is well again is back in the next round; one that keeps failing is left out for longer and longer."""

from __future__ import annotations

import itertools

import pytest

from fedptr.engines.flower.server.rests import LONGEST, Rests
from fedptr.engines.flower.server.roster import Roster


def turns_asked(fails: list[bool] | None = None, turns: int = 70) -> list[int]:
    """In which turns a client is asked that fails whenever it is asked, or as given."""
    rests, asked = Rests(), list[int]()
    for turn in range(turns):
        rests.begin_turn()
        if rests.is_left_out(7):
            continue
        asked.append(turn)
        if fails is None or fails[len(asked) - 1]:
            rests.note_failure(7, "crashed")
        else:
            rests.note_replies([7])
    return asked


def test_after_one_failure_it_is_asked_in_the_next_round() -> None:
    assert turns_asked([True, False, True, False, True, False], turns=6) == [0, 1, 2, 3, 4, 5]


def test_failures_in_a_row_leave_it_out_for_growing_spans() -> None:
    asked = turns_asked(turns=200)
    gaps = [b - a - 1 for a, b in itertools.pairwise(asked)]
    assert gaps[:6] == [0, 1, 2, 4, 8, 16]
    assert set(gaps[6:]) == {LONGEST}


def test_one_good_reply_is_enough() -> None:
    asked = turns_asked([True, True, True, True, False, True, False, False], turns=15)
    assert asked == [0, 1, 3, 6, 11, 12, 13, 14]


def test_in_one_turn_it_fails_once() -> None:
    rests = Rests()
    rests.begin_turn()
    rests.note_failure(7, "crashed")
    rests.note_failure(7, "crashed again")
    assert not rests.is_left_out(7)  # its failure is the reason in this turn
    assert rests.failing[7].count == 1


def test_those_who_would_be_back_soonest_are_asked_when_there_are_too_few() -> None:
    rests = Rests()
    for _ in range(4):  # client 1 fails in turns 1, 2, 4; client 2 in turns 3 and 4
        rests.begin_turn()
        for i in [1] * (rests.turn in (1, 2, 4)) + [2] * (rests.turn > 2):
            rests.note_failure(i, "crashed")
    rests.begin_turn()
    assert [i for i in (1, 2, 3) if rests.is_left_out(i)] == [1, 2]
    assert rests.choose_to_ask([1, 2, 3], least=1) == [3]
    assert rests.choose_to_ask([1, 2, 3], least=2) == [2, 3]
    assert rests.choose_to_ask([1, 2, 3], least=9) == [1, 2, 3]
    assert rests.describe(1) == "is left out for 2 rounds after 3 failures in a row: it crashed"
    assert rests.describe(2) == "is left out for 1 round after 2 failures in a row: it crashed"


def test_a_node_that_is_refused_again_and_again_is_asked_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent one keeps everybody waiting for its answer. One that went away and came back is asked at once."""
    roster, now = Roster(), 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    waits = []
    for _ in range(9):
        roster.refuse(7, "says nothing")
        began = now
        while not roster.unknown_nodes({7}):
            now += 10
        waits.append(now - began)
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    roster.refuse(7, "says nothing")
    assert roster.unknown_nodes({7}) == roster.unknown_nodes(set()) == []
    assert roster.unknown_nodes({7}) == [7]
    roster.refuse(7, "says nothing")
    now += 60
    assert roster.unknown_nodes({7}) == [7]
