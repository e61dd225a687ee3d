"""Differential privacy over Flower: one release a round, whoever fails, and no cohort is drawn twice."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")
pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: pip install 'fedptr[privacy]'")

from simulated_nodes import Lab
from small_plans import TABLES

from fedptr.core.randomness import Key
from fedptr.engines.flower.wire.local_grid import LocalGrid
from fedptr.engines.flower.wire.parcel import Parcel
from fedptr.engines.flower.wire.records import from_records, to_records
from fedptr.errors import UserError
from fedptr.privacy.differential import Privacy, compute_epsilon
from fedptr.runs import plan as planning
from fedptr.runs.plan import Plan

pytestmark = pytest.mark.real

ROUNDS = 4


def plan_for(privacy: dict[str, Any] | None = None, **run: Any) -> Plan:
    method = {"name": "fedavg", "weighting": "uniform"}
    tables = {**TABLES, "run": {**TABLES["run"], "rounds": ROUNDS, **run}, "method": method}
    return planning.check_plan({**tables, "privacy": {"clip": 1.0, **(privacy or {})}})


def lab_of(folder: Path, plan: Plan) -> Lab:
    """Nodes evaluate, unless the plan hides their scores."""
    private = plan.tables()["privacy"]
    lab = Lab(folder, planning.check_plan({**plan.tables(), "privacy": {**private, "secure": False}}))
    (folder / "plan.toml").write_text(plan.toml())
    if not plan.privacy.secure:
        rules = (folder / "deploy.toml").read_text().replace('"server"', '"nodes"')
        (folder / "deploy.toml").write_text(rules)
    return lab


class WatchedGrid:
    """Wraps a grid, and keeps every model that is sent to a node, by the round that made it."""

    def __init__(self, grid: LocalGrid, fail_in: int = -1) -> None:
        self.grid, self.fail_in = grid, fail_in
        self.models: dict[int, set[bytes]] = defaultdict(set)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def push_messages(self, messages: Any) -> Any:
        for message in messages:
            parcel = from_records(message.content)
            if "x" in parcel.blocks:
                evaluating = parcel.words["purpose"] == "evaluate"
                self.models[parcel.words["round"] + evaluating].add(parcel.blocks["x"].data)
                if evaluating and parcel.words["round"] + 1 == self.fail_in:
                    raise MemoryError  # the server dies when the model has left
        return self.grid.push_messages(messages)


def spent(lab: Lab) -> tuple[int, float]:
    last = lab.records()[-1]
    return last["releases"], last["epsilon"]


def test_a_round_that_nobody_evaluates_is_not_done_again(tmp_path: Path) -> None:
    def spoil(node: int, message: Any) -> Any:
        if message.metadata.message_type == "evaluate":
            message.content = to_records(Parcel({}))
        return message

    lab = lab_of(tmp_path, plan_for())
    grid = WatchedGrid(lab.grid(spoil))
    lab.serve(grid)  # type: ignore[arg-type]
    assert all(len(record["not_evaluated"]) == 3 for record in lab.records())
    assert spent(lab) == (ROUNDS, compute_epsilon(1.0, 1.0, ROUNDS, 1e-5))
    assert [len(models) for _, models in sorted(grid.models.items())] == [1] * (ROUNDS + 1)


def test_a_server_that_dies_when_the_model_has_left_sends_the_same_again(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, plan_for())
    first = WatchedGrid(lab.grid(), fail_in=2)
    with pytest.raises(MemoryError):
        lab.serve(first)  # type: ignore[arg-type]
    second = WatchedGrid(lab.grid())
    lab.serve(second)  # type: ignore[arg-type]
    assert first.models[2] == second.models[2]
    assert len(second.models[2]) == 1
    assert spent(lab) == (ROUNDS, compute_epsilon(1.0, 1.0, ROUNDS, 1e-5))
    assert [record["round"] for record in lab.records()] == list(range(1, ROUNDS + 1))
    assert all("test_accuracy" in record for record in lab.records())


def test_replies_that_cannot_be_unmasked_add_nothing_and_the_round_counts(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, plan_for({"secure": True}))

    def lose(node: int, message: Any) -> Any:
        """In the second round nobody helps to take the masks off."""
        records = message.content.config_records if message.has_content() else {}
        unmasking = any("shares" in record for record in records.values())
        lose.rounds += unmasking  # type: ignore[attr-defined]
        return None if unmasking and 3 < lose.rounds <= 6 else message  # type: ignore[attr-defined]

    lose.rounds = 0  # type: ignore[attr-defined]
    (tmp_path / "deploy.toml").write_text((tmp_path / "deploy.toml").read_text() + "round_timeout = 1.0\n")
    lab.serve(lab.grid(lose))
    second = lab.records()[1]
    assert list(second["dropped"]) == ["0", "1", "2"]
    assert "is left out: the sum of the replies cannot be used" in second["dropped"]["0"]
    assert spent(lab) == (ROUNDS, compute_epsilon(1.0, 1.0, ROUNDS, 1e-5))


def test_cohorts_that_are_too_small_for_masks_are_refused_where_epsilon_would_not_hold(tmp_path: Path) -> None:
    plan = plan_for({"secure": True}, participation=0.5, sampling="bernoulli")
    with pytest.raises(UserError, match=r"with 3 clients and run\.participation=0\.5 a cohort of one is too likely"):
        lab_of(tmp_path, plan).serve()
    assert not (tmp_path / "rounds.jsonl").read_bytes()
    many = Privacy(clip=1.0, secure=True)
    assert many.cohort(range(1000), plan.run, Key(0))
