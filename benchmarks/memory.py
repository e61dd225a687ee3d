"""x"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import torch

from fedptr import memory, samples
from fedptr.data.dataset import Dataset
from fedptr.federation import federate, last
from fedptr.keys import Key
from fedptr.models import build
from fedptr.plan import check
from fedptr.summary import peak_memory, reset_peak_memory
from fedptr.task import Classification


def one(case: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    shape, classes = tuple(case.pop("shape")), 10
    n_clients, n, tests = case.pop("clients"), case.pop("n"), case.pop("tests")
    plan = check(case)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n_clients * n + tests, *shape), dtype=np.uint8)
    y = np.arange(len(x)) % classes
    cut = n_clients * n
    data = Dataset("d", x[:cut], y[:cut], x[cut:], y[cut:], (128.0,), (64.0,), tuple("0123456789"), "")
    train, test = samples.of(data)
    clients = train.split(np.array_split(np.arange(cut), n_clients))
    with Key(0).fixed("init"):
        task = Classification(build(plan.model, shape, classes), shape, classes)
    parts, states = memory.estimate(plan, memory.blueprint(plan, shape, classes), [n] * n_clients, tests)
    reset_peak_memory()
    before = peak_memory()
    last(federate(plan.method, task, clients, test if tests > 1 else test, plan.run, plan.local))
    foot = memory.footprint(memory.blueprint(plan, shape, classes))
    print(json.dumps({"measured": peak_memory() - before, "parts": parts, "states": states, "foot": foot._asdict()}))


C, D = (3, 32, 32), (1, 8, 8)
MATCH = {"H": 2, "R": 3}
CASES = []
for shape, widths in ((C, (16, 64, 128)), (D, (16, 128))):
    for w in widths:
        for batch in (50, 500):
            CASES.append(
                dict(
                    shape=shape,
                    clients=1,
                    n=batch,
                    tests=1,
                    model={"name": "convnet", "width": w, "depth": 3 if shape == C else 2},
                    local={"batch": batch, "epochs": 3},
                    method={"name": "fedavg"},
                    run={"rounds": 2},
                )
            )
        CASES.append(
            dict(
                shape=shape,
                clients=1,
                n=2,
                tests=1000,
                model={"name": "convnet", "width": w, "depth": 3 if shape == C else 2},
                local={"batch": 2},
                method={"name": "fedavg"},
                run={"rounds": 2},
            )
        )
        for ipc in (1, 10):
            CASES.append(
                dict(
                    shape=shape,
                    clients=1,
                    n=2,
                    tests=1,
                    model={"name": "convnet", "width": w, "depth": 3 if shape == C else 2},
                    local={"batch": 2},
                    method={"name": "fedptr", "ipc": ipc, **MATCH},
                    run={"rounds": 5},
                )
            )

if __name__ == "__main__":
    if len(sys.argv) > 1:
        one(json.loads(sys.argv[1]))
    else:
        for case in CASES:
            done = subprocess.run([sys.executable, __file__, json.dumps(case)], capture_output=True, text=True)
            if done.returncode:
                print(done.stderr[-500:])
                continue
            r = json.loads(done.stdout)
            M = 1e6
            f = r["foot"]
            print(
                case["shape"][1],
                case["model"]["width"],
                "b",
                case["local"]["batch"],
                "n",
                case["n"],
                "t",
                case["tests"],
                case["method"].get("ipc", ""),
                "meas %.1f" % (r["measured"] / M),
                {k: round(v / M, 1) for k, v in r["parts"].items()},
                "st %.1f" % (r["states"] / M),
                {k: round(v / 1e3, 1) for k, v in f.items()},
                flush=True,
            )
