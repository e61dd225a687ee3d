"""The learning rate of every round, in closed form, and that it is the rate that clients train with."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from small_world import LOCAL, World
from torch import Tensor

from fedptr.core.federation import Rounds, federate
from fedptr.core.learning_rate import depends_on_rounds, rate_of_round
from fedptr.core.local_training import Local
from fedptr.core.method import Site
from fedptr.core.task import full_gradient
from fedptr.methods.fedavg import FedAvg
from fedptr.types import State

T = 40


def rates(rounds: int = T, **settings: object) -> list[float]:
    return [rate_of_round(replace(Local(lr=0.3), **settings), t, rounds) for t in range(rounds)]


def test_decay_has_the_bits_it_had() -> None:
    assert rates(decay=0.97) == [0.3 * 0.97**t for t in range(T)]
    assert rates() == [0.3] * T


def test_cosine() -> None:
    """Torch's, of as many steps as there are rounds."""
    optimiser = torch.optim.SGD([torch.zeros(1)], 0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T, eta_min=0.2 * 0.3)
    theirs = []
    for _ in range(T):
        theirs.append(schedule.get_last_lr()[0])
        optimiser.step()
        schedule.step()
    assert rates(schedule="cosine", final_lr=0.2) == pytest.approx(theirs)
    half = rates(schedule="cosine")
    assert half[0] == 0.3
    assert half[T // 2] == pytest.approx(0.15)
    assert half[-1] == pytest.approx(0.3 * math.sin(math.pi / (2 * T)) ** 2)
    assert half[-1] > 0, "control variates divide by it"
    assert rates(schedule="cosine", final_lr=1.0) == pytest.approx([0.3] * T)


def test_step() -> None:
    found = rates(schedule="step", step_every=15, step_factor=0.1)
    assert found == pytest.approx([0.3] * 15 + [0.03] * 15 + [0.003] * 10)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "step"])
def test_warm_up(schedule: str) -> None:
    """Linear, and full in the round after it; steps count from the first round, cosine from the end of warm-up."""
    found = rates(schedule=schedule, warmup=4, step_every=20)
    assert found[:4] == pytest.approx([0.06, 0.12, 0.18, 0.24])
    assert found[4] == 0.3
    assert found[4:] == pytest.approx(
        {
            "constant": [0.3] * 36,
            "cosine": rates(36, schedule="cosine"),
            "step": [0.3] * 16 + [0.03] * 20,
        }[schedule]
    )


def test_warm_up_may_be_longer_than_the_run() -> None:
    assert rates(3, schedule="cosine", warmup=5) == pytest.approx([0.05, 0.1, 0.15])
    assert rates(5, schedule="cosine", warmup=5) == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25])


def test_all_of_them_at_once() -> None:
    found = rates(schedule="step", step_every=3, step_factor=0.5, warmup=1, decay=0.9)
    assert found[0] == pytest.approx(0.15)
    assert found[7] == pytest.approx(0.3 * 0.9**7 * 0.25)


def test_only_cosine_depends_on_the_number_of_rounds() -> None:
    for schedule in ("constant", "cosine", "step"):
        how = {"schedule": schedule, "warmup": 2, "decay": 0.9}
        assert depends_on_rounds(Local(**how)) == (rates(20, **how) != rates(30, **how)[:20])


@dataclass(frozen=True)
class Tells(FedAvg):
    """Notes the learning rate that each hook sees."""

    name: ClassVar[str] = "tells"

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        used = (msg["x"] - w).norm() / full_gradient(site.task, msg["x"], site.samples).norm()  # in one plain step
        return {"w": w, "log/rate": torch.tensor(site.local.lr), "log/used": used}, client


def test_hooks_see_the_rate_that_was_used(world: World) -> None:
    local = replace(LOCAL, batch=100, momentum=0.0, schedule="cosine", warmup=2)
    runs = federate(Tells(), world.task, world.clients, rounds=Rounds(rounds=6), local=local)
    for t, run in enumerate(runs):
        expected = rate_of_round(local, t, 6)
        for client in run.record["clients"]:
            assert client["rate"] == pytest.approx(expected)
            assert client["used"] == pytest.approx(expected, rel=1e-4)
