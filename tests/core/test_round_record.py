"""The record of a round, whatever clients log."""

from __future__ import annotations

import math

import torch

from fedptr.core.round_record import Clock, describe_round
from fedptr.core.visit import Visit
from fedptr.types import RECORDED_BY_SERVER, Reply


def test_a_log_replaces_nothing_that_the_server_records_and_lists_are_not_averaged() -> None:
    x, new, clock = torch.zeros(3), torch.ones(3), Clock()
    clock.seconds = {"aggregation": 0.0, "evaluation": 0.0}
    log = {name: torch.full((3,), 7.0) for name in (*RECORDED_BY_SERVER, "train_loss", "seconds_matching", "own")}
    reply = Reply(4, 10, {"w": new})
    record = describe_round(x, new, {}, [reply], {4: Visit(reply.state, {}, log, 0.5)}, clock)
    (entry,) = record["clients"]
    assert entry["id"] == 4
    assert math.isclose(entry["cos_local"], 1.0, rel_tol=1e-6)
    assert math.isclose(entry["reach"], 7.0, rel_tol=1e-6)
    assert entry["own"] == [7.0, 7.0, 7.0]
    assert math.isnan(record["train_loss"])
    assert record["seconds"]["matching"] == 0
