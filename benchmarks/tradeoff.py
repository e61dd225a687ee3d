"""What cheaper matching costs in accuracy: one run per setting, on a part of CIFAR-10 with very different clients.

    python benchmarks/tradeoff.py [SEEDS]     goes on where it was stopped; writes results/speed/

Every setting has the same data, split, model, seed and number of rounds; only the matching differs.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from fedptr.compare import one
from fedptr.history import Record
from fedptr.plan import check

OUT = Path(__file__).parents[1] / "results" / "speed"
PLAN: dict[str, Any] = {
    "run": {"rounds": 20, "checkpoint_every": 5},
    "data": {"name": "cifar10", "subset": 10_000, "subset_test": 2_000},
    "split": {"clients": 10, "kind": "dirichlet", "alpha": 0.01},
    "model": {"name": "convnet", "width": 32},
    "local": {"batch": 100},
    "machine": {"compile": "on"},
}
# In the order in which they are run: should time be short, the last ones are missing.
SETTINGS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "S, H=3": {"name": "fedptr-s", "H": 3},
    "S, H=20 (paper)": {"name": "fedptr-s", "H": 20},
    "clients, H=4, p=4": {"name": "fedptr", "H": 4, "mtt_every": 4},
    "S, H=5, p=4": {"name": "fedptr-s", "H": 5, "mtt_every": 4},
    "S, H=20, stop 0.02": {"name": "fedptr-s", "H": 20, "mtt_stop": 0.02},
    "S, H=20, 25 images a step": {"name": "fedptr-s", "H": 20, "aux_batch": 25},
    "clients, H=2, p=4": {"name": "fedptr", "H": 2, "mtt_every": 4},
}


def folder(name: str, seed: int) -> Path:
    kept = "".join(c for c in name if c.isalnum() or c in " .=").replace(" ", "-")
    return OUT / kept / f"seed{seed}"


def line(name: str, runs: list[tuple[Record, list[Record]]]) -> dict[str, Any]:
    """One setting's row; the first rounds, which compile and do not match yet, do not count as seconds."""
    accuracies = [100 * float(summary["accuracy"]) for summary, _ in runs]
    seconds = [statistics.mean(r["seconds"]["total"] for r in records[4:]) for _, records in runs]
    training = [statistics.mean(r["seconds"]["visits"] for r in records[4:]) for _, records in runs]
    return {
        "setting": name,
        "accuracy": statistics.mean(accuracies),
        "accuracies": accuracies,
        "seconds": statistics.mean(seconds),
        "visits": statistics.mean(training),
    }


def plot(rows: list[dict[str, Any]]) -> None:
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for row in rows:
        axes.scatter(row["seconds"], row["accuracy"], s=40)
        axes.annotate(row["setting"], (row["seconds"], row["accuracy"]), xytext=(5, 4), textcoords="offset points")
    axes.set(
        xlabel="seconds per round",
        ylabel="test accuracy, mean of the last five rounds (%)",
        title="Cheaper matching: CIFAR-10 (10,000 images), Dirichlet 0.01",
        xscale="log",
    )
    axes.grid(alpha=0.3)
    figure.savefig(OUT / "tradeoff.png", dpi=150)


def main(seeds: int) -> None:
    done: dict[str, list[tuple[Record, list[Record]]]] = {}
    for seed in range(seeds):
        for name, method in SETTINGS.items():
            plan = check({**PLAN, "run": {**PLAN["run"], "seed": seed}, "method": method})
            done.setdefault(name, []).append(one(plan, folder(name, seed)))
            rows = [line(known, runs) for known, runs in done.items()]
            (OUT / "tradeoff.json").write_text(json.dumps(rows, indent=2) + "\n")
            plot(rows)
            print(f"{name}, seed {seed}: {rows[-1]['accuracy']:.1f} %, {rows[-1]['seconds']:.2f} s a round", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
