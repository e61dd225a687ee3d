"""Estimated and measured memory of runs; for tuning the factors in fedptr/compute/memory_estimate.py.

    python benchmarks/estimated_memory.py            prints the table; about ten minutes

Each row is a run of a few rounds on random images, in a separate process. Measured is the peak of the resident memory
above its level before the first round.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from fedptr.compute import memory_estimate
from fedptr.compute.choose import choose_backend
from fedptr.core.federation import federate, last_run
from fedptr.data.dataset import Dataset
from fedptr.data.to_samples import to_samples
from fedptr.runs.experiment import make_task
from fedptr.runs.plan import check_plan
from fedptr.runs.summary import peak_memory, reset_peak_memory

Case = dict[str, Any]
PHOTO, DIGIT = (3, 32, 32), (1, 8, 8)


def training_case(shape: tuple[int, ...], batch: int, **model: Any) -> Case:
    """One client whose samples are one batch."""
    return make_case(shape, 1, batch, 1, model, {"name": "fedavg"}, {"batch": batch, "epochs": 3})


def evaluation_case(shape: tuple[int, ...], **model: Any) -> Case:
    return make_case(shape, 1, 2, 1000, model, {"name": "fedavg"}, {"batch": 2})


def matching_case(shape: tuple[int, ...], ipc: int, **model: Any) -> Case:
    return make_case(shape, 1, 2, 1, model, {"name": "fedptr", "m": 1, "H": 3, "R": 5, "ipc": ipc}, {"batch": 2})


def client_states_case(clients: int, method: str, **settings: Any) -> Case:
    """Enough clients that their states take most of the memory."""
    return make_case(DIGIT, clients, 2, 1, {"name": "mlp", "width": 256}, {"name": method, **settings}, {"batch": 2})


def make_case(shape: tuple[int, ...], clients: int, n: int, tests: int, model: Any, method: Any, local: Any) -> Case:
    machine = {"compile": "on" if model.pop("native", False) else "off", "threads": 2}
    plan = {"run": {"rounds": 4}, "model": model, "method": method, "local": local, "machine": machine}
    return {"shape": shape, "clients": clients, "n": n, "tests": tests, "plan": plan}


def make_cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for shape, widths, depth in ((PHOTO, (16, 64, 128), 3), (DIGIT, (16, 128), 2)):
        for width in widths:
            model = {"name": "convnet", "width": width, "depth": depth}
            name = f"convnet {width}, {'×'.join(map(str, shape))}"
            found |= {f"{name}, batch {batch}": training_case(shape, batch, **model) for batch in (50, 500)}
            found |= {f"{name}, 1000 test images": evaluation_case(shape, **model)}
            found |= {f"{name}, matching, ipc {ipc}": matching_case(shape, ipc, **model) for ipc in (1, 10)}
    for width in (32, 128):
        model, name = {"name": "convnet", "width": width, "native": True}, f"convnet {width} in C++, 3×32×32"
        found |= {f"{name}, batch 500": training_case(PHOTO, 500, **model)}
        found |= {f"{name}, 1000 test images": evaluation_case(PHOTO, **model)}
        found |= {f"{name}, matching, ipc {ipc}": matching_case(PHOTO, ipc, **model) for ipc in (1, 10, 50)}
    found |= {
        "mlp 128, 3×32×32, batch 500": training_case(PHOTO, 500, name="mlp"),
        "mlp 128, 3×32×32, 1000 test images": evaluation_case(PHOTO, name="mlp"),
        "mlp 128, 3×32×32, matching, ipc 10": matching_case(PHOTO, 10, name="mlp"),
        "lenet, 3×32×32, batch 500": training_case(PHOTO, 500, name="lenet"),
        "resnet18 16, 3×32×32, batch 50": training_case(PHOTO, 50, name="resnet18", width=16),
        "resnet18 16, 3×32×32, matching, ipc 1": matching_case(PHOTO, 1, name="resnet18", width=16),
        "mlp 256, 1×8×8, 200 clients, scaffold": client_states_case(200, "scaffold"),
        "mlp 256, 1×8×8, 200 clients, feddyn": client_states_case(200, "feddyn"),
        "mlp 256, 1×8×8, 200 clients, fedptr": client_states_case(200, "fedptr", ipc=1, m=1, H=1, R=2),
        "mlp 256, 1×8×8, 200 clients, fedptr-s": client_states_case(200, "fedptr-s", ipc=1, m=1, H=1, R=2),
    }
    return found


def estimate_and_measure(
    shape: tuple[int, ...], clients: int, n: int, tests: int, plan: Any
) -> tuple[memory_estimate.Estimate, int]:
    """Estimated and measured."""
    torch.set_num_threads(1)
    plan, cut, channels = check_plan(plan), clients * n, shape[0]
    x = np.random.default_rng(0).integers(0, 256, (cut + tests, *shape), dtype=np.uint8)
    y = np.arange(len(x)) % 10
    moments = ((128.0,) * channels, (64.0,) * channels)
    data = Dataset("noise", x[:cut], y[:cut], x[cut:], y[cut:], *moments, tuple("0123456789"), "")
    (train, test), task = to_samples(data), make_task(plan, data, "cpu")
    task = choose_backend(plan, task, cut) if plan.machine.compile == "on" else task  # others: whole batches
    parts = train.split(np.array_split(np.arange(cut), clients))
    reset_peak_memory()
    before = peak_memory()
    last_run(federate(plan.method, task, parts, test, plan.run, plan.local))
    peak = peak_memory() - before
    foot = memory_estimate.measure_footprint(task)
    return memory_estimate.estimate_memory(plan, foot, 10, [n] * clients, tests), peak


def print_table() -> None:
    print("| run | most of it | estimate, MB | measured, MB | ratio |", "|---|---|---:|---:|---:|", sep="\n")
    for name, asked in make_cases().items():
        command = [sys.executable, __file__, json.dumps(asked)]
        answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        needed, peak = memory_estimate.Estimate(**answer["estimate"]), answer["peak"]
        row = f"{needed.total / 1e6:.0f} | {peak / 1e6:.0f} | {needed.total / peak:.2f}"
        print(f"| {name} | {needed.most[0]} | {row} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        needed, peak = estimate_and_measure(**json.loads(sys.argv[1]))
        print(json.dumps({"estimate": asdict(needed), "peak": peak}))
    else:
        print_table()
