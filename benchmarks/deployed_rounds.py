"""Seconds per round over TLS with three nodes on this machine, and of the same rounds in-process.

    python benchmarks/deployed_rounds.py [ROUNDS]        prints the table; a few minutes

The model is a small MLP, so nearly all of the time is what Flower and we add to training: messages, processes, polling.
The first round, in which workers import torch and read data, is shown separately. Both must end with the same bits.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from timing import quartiles

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from deployed_federation import federation
from small_plans import in_process, moving, plan_for

from fedptr.runs.experiment import prepare_experiment

METHODS = ("fedavg", "scaffold", "fedptr", "mime")  # Mime has an exchange before the broadcast


def main(rounds: int) -> None:
    print("| method | first round, s | later rounds, s | in-process, s |")
    print("|---|---:|---:|---:|")
    plans = {name: plan_for(name, rounds=rounds) for name in METHODS}
    with (
        tempfile.TemporaryDirectory() as folder,
        federation(Path(folder) / "f", plans["fedavg"], prepare_experiment(plans["fedavg"]).split) as lab,
    ):
        for name, plan in plans.items():
            lab.train(plan, name)
            here = in_process(plan)
            assert lab.summary()["weights_sha256"] == moving(here), "not the same bits"
            first, *later = (record["seconds"]["total"] for record in lab.rounds())
            there, local = (
                quartiles(later),
                quartiles([run.record["seconds"]["total"] for run in here[1:]]),
            )
            cells = (f"{first:.1f}", f"{there.median:.2f} ({there.low:.2f} to {there.high:.2f})", f"{local.median:.3f}")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
