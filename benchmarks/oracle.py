"""The oracle table: our methods, and the update rules other libraries' code amounts to, on problems with known optimum.

    python benchmarks/oracle.py            prints the table; docs/oracle.md holds its output

Each rule below was read from the named project's source and is written as the smallest change to ours that gives it;
the projects themselves are not run. What counts is the relative distance to the optimum, the worst of three
random problems, when everyone takes part and when three clients in ten do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedptr.core.method import Method, Oracle, Site
from fedptr.methods import all_methods
from fedptr.methods.feddyn import FedDyn
from fedptr.methods.scaffold import Scaffold
from fedptr.theory.oracle import error, problem
from fedptr.types import Reply, State

ROUNDS = {1.0: 150, 0.3: 500}


@dataclass(frozen=True)
class ForgottenControls(Scaffold):
    """The client's new c_i is never written back, so c_i stays zero."""

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        reply, _ = super().reply(w, msg, client, steps, site)
        return reply, client


@dataclass(frozen=True)
class UnusedControls(Scaffold):
    """The corrected gradient is written to detached copies, so training never sees it."""

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        return None


@dataclass(frozen=True)
class ControlsFromWeights(Scaffold):
    """Control variates start at the model's weights instead of zero, on the server and on every client."""

    def server_init(self, x: Tensor, site: Site) -> State:
        return {"x": x, "c": x}

    def client_init(self, x: Tensor, site: Site) -> State:
        return {"c_i": x}


@dataclass(frozen=True)
class LinearTermOnly(FedDyn):
    """The quadratic term is lost: α⟨w, r_i − x⟩ without α‖w‖²/2."""

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        return self.alpha * (client["r_i"] - msg["x"])


@dataclass(frozen=True)
class UnsquaredNorm(FedDyn):
    """The penalty is (α/2)‖w − x‖ while the dual update assumes its square."""

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        d = w - msg["x"]
        unit: Tensor = d / d.norm().clamp(min=1e-12)
        return self.alpha * (unit / 2 + client["r_i"])


@dataclass(frozen=True)
class DetachedPenalty(FedDyn):
    """The penalty is built from detached parameters: it has no gradient."""

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor | None:
        return None


@dataclass(frozen=True)
class CohortMean(Scaffold):
    """The server adds the cohort's mean Δc without the factor |S|/N."""

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        return super().aggregate(server, replies, replace(site, clients=len(replies)))


def uniform(method: type[Method], settings: Mapping[str, Any]) -> Method:
    """All clients count alike, as in the optimum that is asked for."""
    return method(**{"weighting": "uniform", **settings})


OURS: dict[str, tuple[Oracle, Method]] = {
    theory.row: (theory, uniform(method, theory.settings))
    for method in all_methods().values()
    for theory in method.oracle
}
ALPHA = 1.0
PEERS: dict[str, tuple[str, Method]] = {
    "SCAFFOLD as in FL-bench": ("c_i is never written back", ForgottenControls()),
    "SCAFFOLD as in FedLab": ("the correction never reaches training", UnusedControls()),
    "SCAFFOLD as in Flower's niid_bench": ("c starts at the weights", ControlsFromWeights()),
    "SCAFFOLD as in NVFlare": ("mean Δc, without the factor \\|S\\|/N: a deviation, not a break", CohortMean()),
    "FedDyn as in FL-bench": ("the quadratic term is missing", LinearTermOnly(alpha=ALPHA)),
    "FedDyn as in PFLlib": ("the norm is not squared", UnsquaredNorm(alpha=ALPHA)),
    "FedDyn as in FedLab": ("the penalty has no gradient", DetachedPenalty(alpha=ALPHA)),
}


def worst(method: Method, participation: float, rounds: int, seeds: int = 3) -> float:
    """The largest relative error over random problems; infinite where a rule diverges, none where it does not run."""
    if method.everyone and participation < 1:
        return float("nan")
    try:
        return max(error(method, problem(seed), participation, rounds) for seed in range(seeds))
    except RuntimeError:  # a client's model was no longer finite
        return float("inf")


def table() -> str:
    def cell(value: float) -> str:
        return "–" if math.isnan(value) else "diverges" if value > 1e6 else f"{value:.0e}"

    lines = ["| rule | what theory says, or what is different | 100 % | 30 % |", "|---|---|---:|---:|"]
    rows = {name: (theory.because, method) for name, (theory, method) in OURS.items()} | PEERS
    for name, (words, method) in rows.items():
        lines.append(
            f"| {name} | {words} | " + " | ".join(cell(worst(method, part, n)) for part, n in ROUNDS.items()) + " |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table())
