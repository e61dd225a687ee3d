"""Personalised methods in our engine end at their closed forms, and the public rules of others beside them do not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from oracle_table import rules

from fedptr.theory.oracle import make_problem

OURS = [name for name, (_, method, right) in rules.PERSONAL.items() if method == right]
PEERS = [name for name in rules.PERSONAL if name not in OURS]


@pytest.mark.parametrize("name", OURS)
def test_ends_at_its_closed_form(name: str) -> None:
    _, method, right = rules.PERSONAL[name]
    assert max(rules.personal_errors(method, right, make_problem(0, clients=4, d=4), 250)) < 1e-10


@pytest.mark.parametrize("name", PEERS)
def test_another_rule_gives_clients_other_models(name: str) -> None:
    _, method, right = rules.PERSONAL[name]
    assert rules.personal_errors(method, right, make_problem(0, clients=4, d=4), 60).personal > 1e-2


def test_the_docs_have_every_row() -> None:
    text = (Path(__file__).parents[2] / "docs" / "oracle.md").read_text(encoding="utf-8").partition("personal |\n")[2]
    shown = dict(re.findall(r"^\| ([^|]+) \| (.+?) \| [\de+-]+ \| [\de+-]+ \|$", text, re.MULTILINE))
    assert shown == {name: words for name, (words, _, _) in rules.PERSONAL.items()}
