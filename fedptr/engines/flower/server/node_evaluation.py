"""Evaluation on the nodes' own test data: the mean over nodes, weighted by how many test samples each has."""

from __future__ import annotations

import math
from typing import Any

from fedptr.engines.flower.server.remote_visits import RemoteCohort, TooFewRepliesError
from fedptr.engines.flower.wire.parcel import Parcel
from fedptr.engines.flower.wire.tensors import state_to_blocks
from fedptr.types import State


def evaluate_on_nodes(remote: RemoteCohort, server: State) -> dict[str, Any]:
    """`test_accuracy`, `test_loss`, and which clients they are from. Asks every node that is online and free."""
    roster, courier = remote.roster, remote.courier
    model = {name: value for name, value in server.items() if name in ("x", "buffers")}
    busy = courier.busy_nodes()
    here = {i: roster.nodes[i] for i in roster.note_online(courier.online_nodes()) if roster.nodes[i] not in busy}
    here = {i: node for i, node in here.items() if roster.members[i].tests}
    parcel = Parcel(remote.make_words("evaluate"), state_to_blocks(model))
    answers = courier.ask_nodes("evaluate", dict.fromkeys(here.values(), parcel), remote.rules.round_timeout)
    scores: dict[int, tuple[float, float]] = {}
    for i, node in sorted(here.items()):
        words = answers.parcels[node].words if node in answers.parcels else {}
        accuracy, loss = words.get("accuracy"), words.get("loss")
        if isinstance(accuracy, float) and isinstance(loss, float) and 0 <= accuracy <= 1 and math.isfinite(loss):
            scores[i] = accuracy, loss
    total = sum(roster.members[i].tests for i in scores)
    if not total:
        raise TooFewRepliesError("no node could evaluate the model")
    weights = {i: roster.members[i].tests / total for i in scores}
    means = [sum(weights[i] * values[k] for i, values in scores.items()) for k in (0, 1)]
    return {"test_accuracy": means[0], "test_loss": means[1], "tested": sorted(scores)}
