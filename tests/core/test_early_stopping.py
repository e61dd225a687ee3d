"""`run.target` and `run.patience` in the library: where a run stops, and that a resume stops at the same round."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_world import LOCAL, World

from fedptr.atomic_files import DamagedFileError
from fedptr.core.early_stopping import BestScore, headline_score, why_stopped
from fedptr.core.federation import Rounds, Run, federate
from fedptr.errors import UserError
from fedptr.methods import FedAvg, make_method
from fedptr.privacy.differential import Privacy
from fedptr.runs.checkpoint import CheckpointStore, read_best

SLOW = replace(LOCAL, lr=0.01)
LONG = 30


def scores(runs: list[Run]) -> list[float]:
    return [run.record["test_accuracy"] for run in runs]


def expected_stop(found: list[float], target: float, patience: int) -> int:
    """The round at which a run with these scores ends, told in the plainest way."""
    for t in range(1, len(found) + 1):
        past = found[:t]
        if target and max(past) >= target:
            return t
        if patience and t - 1 - past.index(max(past)) >= patience:
            return t
    return len(found)


CASES = [
    Rounds(rounds=LONG, target=0.6),
    Rounds(rounds=LONG, patience=3),
    Rounds(rounds=LONG, target=0.9, patience=4),
    Rounds(rounds=LONG, patience=2, eval_every=3),
    Rounds(rounds=LONG, target=1.0),
]


@pytest.mark.parametrize("rounds", CASES)
def test_it_stops_where_it_should_and_so_does_every_resume(rounds: Rounds, world: World, tmp_path: Path) -> None:
    asked = (FedAvg(), world.task, world.clients, world.test)
    free = list(federate(*asked, replace(rounds, target=0.0, patience=0), SLOW))
    found = [run.record["test_accuracy"] for run in free if "test_accuracy" in run.record]
    end = min(LONG, expected_stop(found, rounds.target, rounds.patience) * rounds.eval_every)
    whole = list(federate(*asked, rounds, SLOW))
    assert len(whole) == end
    assert all(torch.equal(a.w, b.w) for a, b in zip(whole, free, strict=False)), "only the end is another"
    assert bool(why_stopped(whole[-1], rounds)) == (end < LONG)
    store = CheckpointStore(tmp_path)
    for run in whole:
        store.save(run, {})
        loaded, _ = CheckpointStore(tmp_path).load(run.round)
        assert loaded.best == run.best
        for start in (run, loaded):
            rest = list(federate(*asked, rounds, SLOW, start=start))
            assert [one.round for one in rest] == list(range(run.round + 1, end + 1))
            if rest:
                assert torch.equal(rest[-1].w, whole[-1].w)
                assert rest[-1].best == whole[-1].best


def test_some_of_these_cases_stop_early(world: World) -> None:
    """Else the test above would say nothing."""
    ends = [len(list(federate(FedAvg(), world.task, world.clients, world.test, rounds, SLOW))) for rounds in CASES]
    assert len({end for end in ends if end < LONG}) >= 3
    assert LONG in ends


def test_the_reason_is_said(world: World) -> None:
    asked = (FedAvg(), world.task, world.clients, world.test)
    for rounds, words in (
        (Rounds(rounds=LONG, target=0.4), r"the test score 0\.\d{4} reached run.target = 0.4"),
        (
            Rounds(rounds=LONG, patience=1),
            r"no new best in 1 evaluations \(run.patience\); the best score was 0\.\d{4}",
        ),
    ):
        *_, last = federate(*asked, rounds, LOCAL)
        reason = why_stopped(last, rounds)
        assert re.fullmatch(words, reason), reason


def test_a_run_that_reaches_its_target_in_the_last_round_is_not_stopped(world: World) -> None:
    first = next(iter(federate(FedAvg(), world.task, world.clients, world.test, Rounds(rounds=5), LOCAL)))
    rounds = Rounds(rounds=1, target=first.record["test_accuracy"])
    (only,) = federate(FedAvg(), world.task, world.clients, world.test, rounds, LOCAL)
    assert why_stopped(only, rounds) == ""
    assert list(federate(FedAvg(), world.task, world.clients, world.test, replace(rounds, rounds=5), start=only)) == []


def test_it_continues_with_another_target(world: World) -> None:
    asked = (FedAvg(), world.task, world.clients, world.test)
    *_, last = federate(*asked, Rounds(rounds=9, patience=1), SLOW)
    assert last.round < 9
    rest = list(federate(*asked, Rounds(rounds=9), SLOW, start=last))
    assert rest[-1].round == 9
    assert torch.equal(rest[-1].w, world.weights(FedAvg(), rounds=9, local=SLOW)[-1])


def test_an_evaluation_that_a_longer_run_does_not_make_does_not_count(world: World) -> None:
    """The last round is evaluated in any case; a run made longer ends as if it had been that long from the start."""
    asked = (FedAvg(), world.task, world.clients, world.test)
    for patience in (1, 2, 3):
        longer = Rounds(rounds=12, patience=patience, eval_every=2)
        whole = list(federate(*asked, longer, SLOW))
        shorter = list(federate(*asked, replace(longer, rounds=5), SLOW))
        rest = [] if why_stopped(shorter[-1], longer) else list(federate(*asked, longer, SLOW, start=shorter[-1]))
        assert [run.round for run in shorter + rest] == [run.round for run in whole]
        assert whole[-1].best == (shorter + rest)[-1].best


def test_a_round_that_was_saved_before_its_evaluation(world: World, tmp_path: Path) -> None:
    """As differential privacy saves it: the evaluation after the resume decides."""
    asked = (FedAvg(), world.task, world.clients, world.test)
    rounds = Rounds(rounds=LONG, target=0.6)
    whole = list(federate(*asked, rounds, SLOW))
    before, last = whole[-2], whole[-1]
    record = {name: value for name, value in last.record.items() if not name.startswith("test_")}
    CheckpointStore(tmp_path).save(replace(last, record=record, evaluated=False, best=before.best), {})
    loaded, _ = CheckpointStore(tmp_path).load(last.round)
    (again,) = federate(*asked, rounds, SLOW, start=loaded)
    assert (again.round, again.best, scores([again])) == (last.round, last.best, scores([last]))


def test_personalised_methods_and_privacy_are_judged_by_the_global_model(world: World) -> None:
    private = Privacy(clip=1.0, noise=0.1, randomness="seed")
    for method, privacy in ((make_method("ditto"), None), (FedAvg(weighting="uniform"), private)):
        runs = world.runs(method, LONG, SLOW, privacy=privacy, target=0.6, sampling="bernoulli")
        reached = [score >= 0.6 for score in scores(runs)]
        assert not any(reached[:-1])
        assert reached[-1] or len(runs) == LONG


def test_without_a_test_set_there_is_nothing_to_stop_by(world: World) -> None:
    for rounds in (Rounds(target=0.5), Rounds(patience=2)):
        with pytest.raises(UserError, match=r"^run\.target and run\.patience need a test set; give one"):
            next(federate(FedAvg(), world.task, world.clients, rounds=rounds))
    runs = federate(
        FedAvg(), world.task, world.clients, rounds=Rounds(rounds=LONG, target=0.3), client_tests=world.clients
    )
    assert list(runs)[-1].record["client_accuracy"] >= 0.3, "the clients' own test sets do"


def test_a_score_that_is_no_number_is_no_new_best() -> None:
    assert BestScore(0.5, 1).after(math.nan) == BestScore(0.5, 2)
    assert BestScore().after(math.nan) == BestScore(-math.inf, 1)
    assert headline_score({}) is None


def test_what_no_checkpoint_holds_is_damage() -> None:
    assert read_best({}) == BestScore()
    assert read_best({"best": "[0.5, 2]"}) == BestScore(0.5, 2)
    for text in ("", "[", "{}", "[1]", "[0.5, 1.5]", '["x", 1]', "[0.5, true]", "3"):
        with pytest.raises(DamagedFileError):
            read_best({"best": text})
