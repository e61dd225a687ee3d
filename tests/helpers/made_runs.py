"""Run folders made up by the real writers, without training: as many and as long as a test of the report needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedptr.atomic_files import write_text
from fedptr.core.client_states import ClientStates
from fedptr.core.federation import Run
from fedptr.data.load import load_dataset
from fedptr.data.partition import partition
from fedptr.runs import auxiliary_pictures, summary
from fedptr.runs.plan import Plan, check_plan
from fedptr.runs.rounds_file import RoundsFile

LAYERS = [f"features.{k}.{part}" for k in range(3) for part in ("weight", "bias")] + ["classifier.weight"]
BEST = {"fedavg": 0.86, "fedprox": 0.862, "scaffold": 0.89, "feddyn": 0.94, "feddc": 0.925, "fedptr": 0.91}
MATCHING = {"fedptr": "client", "fedptr-s": "server"}
SENDING = ("feddm",)


Extra = Callable[[Plan, int], dict[str, Any]]


def made_run(
    folder: Path, tables: dict[str, Any], finished: bool = True, rounds: int | None = None, extra: Extra | None = None
) -> Plan:
    """A folder as a run of this plan would leave it; unfinished ones end after `rounds`.

    `extra`: what else the record of a round holds.
    """
    plan = check_plan(tables)
    folder.mkdir(parents=True)
    write_text(folder / "plan.toml", plan.toml())
    dataset = load_dataset("digits")
    split = partition(dataset.train_y, len(dataset.classes), plan.split)
    split.save(folder / "split.json")
    rng = np.random.default_rng([plan.run.seed, len(plan.method.name), sum(map(ord, plan.method.name))])
    history = RoundsFile(folder)
    last = plan.run.rounds if finished else rounds or plan.run.rounds // 2
    for t in range(1, last + 1):
        history.append({**record(plan, t, rng), **(extra(plan, t) if extra else {})})
        if auxiliary_pictures.is_picture_due(plan.output.pictures, t, plan.run.rounds):
            auxiliary_pictures.save_picture(state(plan, t, rng), dataset, folder / auxiliary_pictures.FOLDER)
    history.close()
    if finished:
        summary.write_summary(folder, summarised(plan, history, split.sha256))
    return plan


def record(plan: Plan, t: int, rng: np.random.Generator) -> dict[str, Any]:
    """Round t: a curve that rises to the method's best, and the costs and diagnostics that a real one has."""
    name, clients = plan.method.name, plan.split.clients
    best = BEST.get(name, 0.9) - 0.02 * math.log10(getattr(plan.method, "H", 20) / 20 + 1)
    accuracy = best * (1 - math.exp(-t / 12)) + float(rng.normal(0, 0.012))
    inside: dict[str, Any] = {}
    if name in MATCHING and t > 3:
        before = 1.05 * math.exp(-t / 60) + abs(float(rng.normal(0, 0.03)))
        inside = {"match_before": before, "match_after": 0.8 * before, "beta": 0.01 + 0.0004 * t}
        inside["cos_aux"] = 0.55 + float(rng.normal(0, 0.03))
    who = MATCHING.get(name)
    parts = []
    for i in range(clients):
        part: dict[str, Any] = {"id": i, "steps": 5, "train_loss": 2.2 / t, "cos_local": 0.3}
        if inside:
            part["distances"] = [0.2 / (j + 1) ** 2 * (1 + 1 / t) if j != 1 else 0.0 for j in range(len(LAYERS))]
        parts.append({**part, **(inside if who == "client" else {})})
    seconds = {"training": 0.18, "aggregation": 0.001, "evaluation": 0.02}
    if who:
        seconds |= {"matching": 0.7 if who == "client" else 0.08, "projection": 0.08 if who == "client" else 0.01}
    seconds = {phase: value * float(rng.uniform(0.9, 1.1)) for phase, value in seconds.items()}
    size = 160_000 * (2 if name in ("scaffold", "feddc") else 1)
    return {
        "round": t, "test_accuracy": accuracy, "test_loss": 2.3 * (1.02 - accuracy), "cohort": list(range(clients)),
        "bytes_down": size, "bytes_up": size, "train_loss": 2.2 / t, "cos_local": 0.3 + float(rng.normal(0, 0.02)),
        **({"cos_aux": inside["cos_aux"]} if inside else {}), **({"reach": 0.9} if inside and who == "client" else {}),
        **({"server": inside} if who == "server" else {}),
        "clients": parts, "seconds": {**seconds, "total": 0.004 + sum(seconds.values())},
    }  # fmt: skip


def state(plan: Plan, t: int, rng: np.random.Generator) -> Run:
    """With auxiliary images where the method has any, or what clients 0, 3 and 4 sent."""
    y = torch.arange(10).repeat_interleave(5)
    X = torch.as_tensor(rng.normal(0, 1 + t / 50, (50, 1, 8, 8)), dtype=torch.float32)
    owned, x = {"X": X, "y": y}, {"x": torch.zeros(1)}
    who = MATCHING.get(plan.method.name)
    if plan.method.name in SENDING:
        owner = torch.tensor([0, 3, 4]).repeat_interleave(torch.tensor([20, 25, 5]))
        return Run(t, {**x, **owned, "owner": owner}, ClientStates({2: {}}))
    return Run(t, {**x, **(owned if who == "server" else {})}, ClientStates({2: owned} if who == "client" else {2: {}}))


def summarised(plan: Plan, history: RoundsFile, split: str) -> dict[str, Any]:
    return {
        "method": plan.method.name, "rounds": plan.run.rounds, "seed": plan.run.seed, "layers": LAYERS,
        "parameters": 19970, "weights_sha256": f"{plan.run.seed:064x}", "rounds_sha256": history.digest.hexdigest(),
        "split_sha256": split, "data_sha256": "0" * 64, "data": "digits", "device": "cpu", "threads": 1,
        "computed": "eagerly", "versions": summary.list_versions(),
    }  # fmt: skip
