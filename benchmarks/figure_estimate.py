"""How far `fedptr estimate` is from what then happens, on ten different plans: seconds, and memory.

Each plan is estimated in a process of its own, then run in another, in turns. The value is how many times too long or
too short the estimate was, whichever it is.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench_results import Goal, Row, make_row
from run_python import run_python
from scale import Scale

PLANS = {
    "FedAvg, digits": ["--method", "fedavg", "--dataset", "digits", "--rounds", "40"],
    "FedPTR, digits": ["--method", "fedptr", "--dataset", "digits", "--rounds", "20"],
    "SCAFFOLD, digits, half of the clients": ["--method", "scaffold", "--dataset", "digits", "--participation", "0.5"],
    "Ditto, digits, own test sets": ["--method", "ditto", "--dataset", "digits", "--rounds", "20"],
    "FedAvg, digits, 100 clients, 10 %": [
        "--method", "fedavg", "--dataset", "digits", "--clients", "100", "--alpha", "1", "--min-size", "2",
        "--participation", "0.1", "--rounds", "60",
    ],
    "FedPTR-S, CIFAR-10": ["--method", "fedptr-s", "--dataset", "cifar10", "--subset", "5000", "--rounds", "20"],
    "MOON, CIFAR-10": ["--method", "moon", "--dataset", "cifar10", "--subset", "2000", "--rounds", "5"],
    "FedSAM, LeNet, Fashion-MNIST": [
        "--method", "fedsam", "--dataset", "fashion-mnist", "--subset", "5000", "--model", "lenet", "--rounds", "8",
    ],
    "FedAvg, CIFAR-10, five epochs": [
        "--method", "fedavg", "--dataset", "cifar10", "--subset", "2000", "--epochs", "5", "--rounds", "4",
    ],
    "DynaFed, digits": [
        "--method", "dynafed", "--dataset", "digits", "--rounds", "14", "--set", "method.L=6", "--set", "method.H=60",
    ],
}  # fmt: skip
ESTIMATE = """
import json, sys
from fedptr.cli.estimate import build_estimate
from fedptr.cli.main import build_parser
e = build_estimate(build_parser().parse_args(["estimate", *sys.argv[1:]]))
print(json.dumps([e.seconds, e.memory]))
"""


def measure_rows(scale: Scale) -> Iterator[Row]:
    for name, options in list(PLANS.items())[: 2 if scale.quick else None]:
        off, more, notes = [], [], []
        for _ in range(1 if scale.quick else 3):
            guess, took = estimate(options), run(options)
            off.append(max(guess[0] / took[0], took[0] / guess[0]))
            more.append(took[1] / guess[1])
            notes.append(f"{guess[0]:.1f} s estimated, {took[0]:.1f} s taken")
        yield make_row(f"estimate of {name}: seconds", "the run", off, "×", Goal("≤", 1.5), note=notes[-1])
        yield make_row(f"estimate of {name}: memory", "the estimate", more)


def estimate(options: list[str]) -> list[float]:
    found: list[float] = json.loads(run_python("-c", ESTIMATE, *options)[0])
    return found


def run(options: list[str]) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run_python("-m", "fedptr", "run", *options, "--out", str(out))
        summary = json.loads((out / "summary.json").read_text())
    return [summary["seconds"], summary["peak_memory_bytes"]]
