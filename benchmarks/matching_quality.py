"""How well does matching match? The loss after it, along the trajectories of several methods, rates and datasets.

    python benchmarks/matching_quality.py [--rounds 12] [--H 5] [--only cifar10,0.1] [--ways paper,gradient]

At a loss of 0 the student arrives where the global model did; at 1 it might as well not have moved. For each trajectory
several servers watch the same models: `paper` matches with the paper's step sizes, `auto` with `beta` and `lr_img`
"auto" and `reach = 1`, `plain` without augmentation, `segment` from starts on the segment besides; `gradient` matches
gradients, `soft` with learned labels, `ema` with averaged images, `styles` with factorised ones. The table has medians
over the rounds: the loss after matching, which is another one for gradients; the cosine between the projected step and
the step that the global model then took; the ratio of their lengths; and the seconds of the processor for matching and
projecting.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fedptr.core.federation import federate
from fedptr.core.method import Site
from fedptr.core.randomness import Key
from fedptr.core.round_record import cosine_similarity
from fedptr.methods.fedptr_s import FedPTRS
from fedptr.runs import plan as planning
from fedptr.runs.experiment import Experiment, prepare_experiment

DATA, RATES, METHODS = ("cifar10", "fashion-mnist"), (0.01, 0.1), ("fedavg", "scaffold", "feddyn", "fedagm")
AUTO = FedPTRS(mtt_max_loss=1e9, beta="auto", lr_img="auto")
GRADIENT = FedPTRS(
    mtt_max_loss=1e9, matching="gradient", H=20, ipc=3, dsa=False, lr_img="auto", projection_lr="beta"
)  # fmt: skip
SERVERS = {
    "paper": FedPTRS(mtt_max_loss=1e9),
    "auto": replace(AUTO, reach=1.0),
    "plain": replace(AUTO, dsa=False),
    "segment": replace(AUTO, dsa=False, starts="segment"),
    "gradient": GRADIENT,
    "soft": replace(GRADIENT, labels="soft"),
    "ema": replace(GRADIENT, ema=0.5),
    "styles": replace(GRADIENT, styles=3),
}
COLUMNS = ("loss", "cosine", "reach", "seconds")
IMAGES, CLIENTS = 5_000, 10


def make_plan(data: str, rate: float, method: str, rounds: int) -> planning.Plan:
    """A tenth of the paper's size, with the same number of local steps per round."""
    return planning.check_plan(
        {
            "run": {"rounds": rounds},
            "data": {"name": data, "subset": IMAGES, "subset_test": 1000},
            "split": {"clients": CLIENTS, "alpha": 0.01, "min_size": 200},
            "model": {"name": "convnet", "width": 32},
            "local": {"lr": rate, "batch": 50},
            "machine": {"threads": 1, "compile": "on"},
            "method": {"name": method},
        }
    )


def global_models(plan: planning.Plan, experiment: Experiment) -> Iterator[Tensor]:
    """The global models w^0 … w^T."""
    yield experiment.task.init()
    for run in federate(plan.method, experiment.task, experiment.clients, None, plan.run, plan.local):
        yield run.w


def watch_trajectory(
    server: FedPTRS, models: list[Tensor], plan: planning.Plan, experiment: Experiment
) -> dict[str, float]:
    """Medians of a server's matching and projection along these models."""
    seen: dict[str, list[float]] = {name: [] for name in COLUMNS}
    site = Site(experiment.task, plan.local, Key(0).at("server"), 0, CLIENTS)
    memory = server.memory(models[0], site)
    for t, (x, following) in enumerate(itertools.pairwise(models)):
        here = Site(experiment.task, plan.local, Key(0).at("round", t, "server"), t, CLIENTS)
        began = time.process_time()
        target, memory, log = server.advance(memory, x, here)
        if target is not None:
            seen["seconds"].append(time.process_time() - began)
            seen["loss"].append(float(log["log/match_after"]))
            seen["cosine"].append(cosine_similarity(target - x, following - x))
            seen["reach"].append(float((target - x).norm() / (following - x).norm()))
    return {name: statistics.median(values) for name, values in seen.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--H", type=int, default=5, help="outer steps of every trajectory matching")
    parser.add_argument("--only", default="", help="datasets, rates and methods to run; by default all")
    parser.add_argument("--ways", default="", help="servers to run; by default all")
    args = parser.parse_args()
    ways = {name: server for name, server in SERVERS.items() if not args.ways or name in args.ways.split(",")}
    wanted = set(filter(None, args.only.split(",")))
    torch.set_num_threads(1)
    names = [f"{name}, {way}" for name in COLUMNS for way in ways]
    print(f"| data | rate | trajectory | {' | '.join(names)} |")
    print("|---|---|---|" + "---:|" * len(names))
    for data, rate, method in itertools.product(DATA, RATES, METHODS):
        kinds = [{data} & wanted or not wanted & set(DATA), {str(rate)} & wanted or not wanted & set(map(str, RATES))]
        if not all(kinds) or (wanted & set(METHODS) and method not in wanted):
            continue
        plan = make_plan(data, rate, method, args.rounds)
        experiment = prepare_experiment(plan)
        models = list(global_models(plan, experiment))
        matching = [replace(way, H=args.H) if way.matching == "trajectory" else way for way in ways.values()]
        found = [watch_trajectory(server, models, plan, experiment) for server in matching]
        cells = [f"{each[name]:.2f}" for name in COLUMNS for each in found]
        print(f"| {data} | {rate} | {method} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
