"""Scores by client for made-up runs, put together by the library's own writer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from made_runs import Extra

from fedptr.core.client_scores import record_scores
from fedptr.runs.plan import Plan


def scores_by_client(gain: float | None = None, every: int = 1) -> Extra:
    """Every client has its own level, the last one the lowest. `gain`: of personal models; None for global methods."""

    def told(plan: Plan, t: int) -> dict[str, Any]:
        if t % every:
            return {}
        n = plan.split.clients
        rng = np.random.default_rng([t, plan.run.seed, sum(map(ord, plan.method.name))])
        who = np.random.default_rng(plan.split.seed)
        sizes = who.integers(20, 200, n)
        level = 0.9 - 0.6 * np.sort(who.random(n)) ** 3
        level[-1] = 0.15
        right = {"right": level * (1 - np.exp(-t / 8))}
        if gain is not None:
            right["personal_right"] = right["right"] + gain * (1 - right["right"]) + rng.normal(0, 0.08, n)
        replies = {}
        for i in range(n):
            reply = {"tests": sizes[i]}
            for name, share in right.items():
                reply[name] = np.clip(round(sizes[i] * (share[i] + rng.normal(0, 0.02))), 0, sizes[i])
                reply[name.replace("right", "loss")] = 2.0 * (sizes[i] - reply[name])
            replies[i] = {name: torch.tensor(float(value)) for name, value in reply.items()}
        return record_scores(replies)

    return told
