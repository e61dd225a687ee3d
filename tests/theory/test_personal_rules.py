"""Personalised methods in our engine end at their closed forms, and the public rules of others beside them do not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from oracle_table import rules

from fedptr.core.federation import Rounds, federate, last_run
from fedptr.methods import L2GD
from fedptr.theory.oracle import LOCAL, make_problem
from fedptr.theory.personal_oracle import client_quadratics, personal_models

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


def test_l2sgd_without_a_coin_minimises_what_l2gd_does_with_one_step_when_everyone_takes_part() -> None:
    """Whatever the number of local steps is; in smaller cohorts its w is not the mean of the models."""
    problem, rule = make_problem(0, clients=4, d=4), rules.TiedWithoutCoin(weighting="uniform", lam=0.5)
    ends = L2GD(lam=rule.lam).quadratic_limit(*client_quadratics(problem), 1, LOCAL.lr)
    whole, half = (
        last_run(federate(rule, problem.task, problem.clients, rounds=rounds, local=LOCAL))
        for rounds in (Rounds(rounds=60), Rounds(rounds=60, participation=0.5))
    )
    for found, end in zip((whole.w, personal_models(rule, whole, problem)), ends, strict=True):
        assert float((found - end).norm() / end.norm()) < 1e-5
    assert float((whole.w - personal_models(rule, whole, problem).mean(0)).norm()) < 1e-10
    assert float((half.w - personal_models(rule, half, problem).mean(0)).norm()) > 0.1


def test_the_docs_have_every_row() -> None:
    text = (Path(__file__).parents[2] / "docs" / "oracle.md").read_text(encoding="utf-8").partition("personal |\n")[2]
    shown = dict(re.findall(r"^\| ([^|]+) \| (.+?) \| [\de+-]+ \| [\de+-]+ \|$", text, re.MULTILINE))
    assert shown == {name: words for name, (words, _, _) in rules.PERSONAL.items()}
