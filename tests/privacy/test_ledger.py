"""Every model that leaves the server is counted before it leaves, however a run is interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedptr.cli.main import main
from fedptr.core import federation
from fedptr.core.federation import Run
from fedptr.privacy import ledger
from fedptr.privacy.differential import compute_epsilon
from fedptr.runs.checkpoint import CheckpointStore

pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: pip install 'fedptr[privacy]'")

SETS = ("privacy.clip=1", "method.weighting=uniform", "machine.threads=1", "run.sampling=bernoulli")
ROUNDS, q = 5, 0.5


class KilledError(BaseException):
    """Nobody catches it, as nobody catches a kill."""


def run_private(out: Path, *more: str) -> int:
    sets = [part for one in (*SETS, *more) for part in ("--set", one)]
    asked = ["--method", "fedavg", "--model", "linear", "--rounds", str(ROUNDS), "--participation", str(q)]
    return main(["run", *asked, "--out", str(out), *sets])


def kill_at(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, round_: int, after: bool = False) -> list[Any]:
    """Kills the run when it calls this function in this round, before or after its work; returns what it was given."""
    original: Callable[..., Any] = getattr(place, name)
    seen: list[Any] = []

    def killed(*args: Any, **kwargs: Any) -> Any:
        run = next((arg for arg in args if isinstance(arg, Run)), None)
        if run is None or run.round != round_ or seen:
            return original(*args, **kwargs)
        seen.append(run)
        if after:
            original(*args, **kwargs)
        raise KilledError

    monkeypatch.setattr(place, name, killed)
    return seen


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]


def check_result(out: Path, releases: int) -> None:
    """The run is complete, and has spent the ε of this many releases."""
    assert [record["round"] for record in records(out)] == list(range(1, ROUNDS + 1))
    summary = json.loads((out / "summary.json").read_text())
    assert summary["privacy"]["releases"] == releases
    assert summary["privacy"]["epsilon"] == compute_epsilon(q, 1.0, releases, 1e-5)
    assert json.loads((out / ledger.NAME).read_text())["releases"] == releases


def test_a_run_left_alone_releases_a_model_a_round(tmp_path: Path) -> None:
    assert run_private(tmp_path) == 0
    check_result(tmp_path, ROUNDS)
    assert [record["releases"] for record in records(tmp_path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("round_", [3, ROUNDS])
def test_a_model_that_was_about_to_leave_is_the_one_that_a_resume_continues_with(
    round_: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluation shows the model to nodes. Another model for the same round would be a second release."""
    seen = kill_at(monkeypatch, federation, "evaluate_run", round_)
    with pytest.raises(KilledError):
        run_private(tmp_path)
    assert len(records(tmp_path)) == round_ - 1
    evaluated: list[Run] = []
    monkeypatch.undo()
    original = federation.evaluate_run
    monkeypatch.setattr(federation, "evaluate_run", lambda *args: evaluated.append(args[1]) or original(*args))
    assert main(["resume", str(tmp_path)]) == 0
    assert evaluated[0].round == round_
    assert torch.equal(evaluated[0].w, seen[0].w)
    assert {"test_accuracy", "cohort", "train_loss"} <= set(records(tmp_path)[round_ - 1])
    check_result(tmp_path, ROUNDS)


@pytest.mark.parametrize("after", [False, True], ids=["before the checkpoint", "after the checkpoint"])
def test_a_kill_around_the_checkpoint_never_counts_too_little(
    after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = kill_at(monkeypatch, CheckpointStore, "save", 3, after)
    with pytest.raises(KilledError):
        run_private(tmp_path)
    assert seen
    monkeypatch.undo()
    assert main(["resume", str(tmp_path)]) == 0
    check_result(tmp_path, ROUNDS if after else ROUNDS + 1)


def test_a_round_that_is_done_again_after_damage_is_another_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_at(monkeypatch, federation, "next_round", 4)
    with pytest.raises(KilledError):
        run_private(tmp_path)
    monkeypatch.undo()
    newest = tmp_path / "checkpoint" / "server-4.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert main(["resume", str(tmp_path)]) == 0
    check_result(tmp_path, ROUNDS + 1)


def test_a_cohort_is_not_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may draw until a cohort suits has no Poisson sampling, and ε is another."""
    kill_at(monkeypatch, federation, "exchange_messages", 2)
    with pytest.raises(KilledError):
        run_private(tmp_path, "split.clients=40", "split.min_size=1")
    drawn = json.loads((tmp_path / ledger.NAME).read_text())["cohort"]
    assert drawn
    monkeypatch.undo()
    assert main(["resume", str(tmp_path)]) == 0
    assert records(tmp_path)[2]["cohort"] == drawn
    assert len({tuple(record["cohort"]) for record in records(tmp_path)}) > 1
    check_result(tmp_path, ROUNDS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is missing"),
        ("", "is damaged"),
        ("[" * 10**5, "is damaged"),
        ('{"releases": -1, "cohort": null}', "is damaged"),
        ('{"releases": 9, "cohort": ["0"]}', "is damaged"),
        ('{"releases": 2, "cohort": null}', "is older than the run"),
    ],
)
def test_a_run_does_not_continue_without_its_count(
    content: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kill_at(monkeypatch, federation, "next_round", 3)
    with pytest.raises(KilledError):
        run_private(tmp_path)
    monkeypatch.undo()
    path = tmp_path / ledger.NAME
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    lines = (tmp_path / "rounds.jsonl").read_bytes()
    assert main(["resume", str(tmp_path)]) == 2
    assert f"{path} {words}" in capsys.readouterr().err
    assert (tmp_path / "rounds.jsonl").read_bytes() == lines


def test_a_run_from_before_there_was_a_count_may_have_released_one_model_more(tmp_path: Path) -> None:
    start = Run(3, {}, {})  # type: ignore[arg-type]
    assert ledger.open_ledger(tmp_path, start, {}).releases == 4
    assert ledger.read_ledger(tmp_path / ledger.NAME).releases == 4


def test_noise_from_the_seed_is_repeated_and_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_at(monkeypatch, federation, "evaluate_run", 3)
    with pytest.raises(KilledError):
        run_private(tmp_path / "hit", "privacy.randomness=seed")
    monkeypatch.undo()
    assert main(["resume", str(tmp_path / "hit")]) == 0
    assert run_private(tmp_path / "alone", "privacy.randomness=seed") == 0
    one, other = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("hit", "alone"))
    assert one["weights_sha256"] == other["weights_sha256"]
    assert one["privacy"] == other["privacy"]
    assert not (tmp_path / "hit" / ledger.NAME).exists()
