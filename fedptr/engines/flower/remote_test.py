"""Evaluation on the nodes' own test data: the mean over nodes, weighted by how many test samples each has."""

from __future__ import annotations

import math
from typing import Any

from fedptr.engines.flower.parcel import Parcel
from fedptr.engines.flower.tensors import pack
from fedptr.engines.flower.visits import Remote, TooFewError
from fedptr.task import State


def evaluate(remote: Remote, server: State) -> dict[str, Any]:
    """`test_accuracy`, `test_loss`, and which clients they are from. Every node that is there is asked."""
    roster, courier = remote.roster, remote.courier
    model = {name: server[name] for name in ("x", "buffers") if name in server}
    busy = courier.busy()
    here = {i: roster.nodes[i] for i in roster.see(courier.online()) if roster.nodes[i] not in busy}
    here = {i: node for i, node in here.items() if roster.members[i].tests}
    parcel = Parcel(remote.words("evaluate"), pack(model))
    answers = courier.ask("evaluate", dict.fromkeys(here.values(), parcel), remote.rules.round_timeout)
    scores = {}
    for i, node in sorted(here.items()):
        words = answers.parcels[node].words if node in answers.parcels else {}
        values = words.get("accuracy"), words.get("loss")
        if all(isinstance(v, float) and math.isfinite(v) for v in values) and 0 <= values[0] <= 1:
            scores[i] = values
    total = sum(roster.members[i].tests for i in scores)
    if not total:
        raise TooFewError("no node could evaluate the model")
    weights = {i: roster.members[i].tests / total for i in scores}
    accuracy, loss = (sum(weights[i] * values[k] for i, values in scores.items()) for k in (0, 1))
    return {"test_accuracy": accuracy, "test_loss": loss, "tested": sorted(scores)}
