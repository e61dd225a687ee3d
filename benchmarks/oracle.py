"""The oracle table: our methods, and the update rules in other libraries' code, on problems with a known optimum.

    python benchmarks/oracle.py            prints the table; docs/oracle.md holds its output

Each rule below was read from the named project's source and is written as the smallest change to ours that gives it;
the projects themselves are not run. The table has the relative distance to the optimum, the largest of three random
problems, with all clients and with three in ten taking part in a round. The second table has the same for methods that
give every client a model of its own: how far the global and the clients' models are from their closed form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedptr.core.federation import Rounds, federate, last_run, site_of_client
from fedptr.core.local_training import TrainedModel, local_sgd
from fedptr.core.method import Method, Oracle, Site
from fedptr.core.randomness import Key
from fedptr.methods import all_methods
from fedptr.methods.apfl import APFL
from fedptr.methods.ditto import Ditto
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.feddyn import FedDyn
from fedptr.methods.finetune import FineTune
from fedptr.methods.l2gd import L2GD
from fedptr.methods.local import LocalOnly
from fedptr.methods.per_fedavg import PerFedAvg
from fedptr.methods.pfedme import PFedMe
from fedptr.methods.scaffold import Scaffold
from fedptr.theory.oracle import LOCAL, QuadraticProblem, make_problem, measure_error
from fedptr.theory.personal_oracle import LimitErrors, client_quadratics, personal_models
from fedptr.types import Batch, Reply, State

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


@dataclass(frozen=True)
class AliasedTheta(PFedMe):
    """The list of personal parameters is the list of the live ones, which hold y at the end of a round."""

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"w": w}, {"theta": w}


@dataclass(frozen=True)
class ForgottenTheta(PFedMe):
    """What the server keeps as a client's own model is sent back as it came, so it stays the initial one."""

    def train(self, msg: State, client: State, site: Site, buffers: State) -> tuple[TrainedModel, State]:
        trained, _ = super().train(msg, client, site, buffers)
        return trained, client


@dataclass(frozen=True)
class GlobalScored(PFedMe):
    """The model that is scored as a client's own is the global one."""

    def personal(self, msg: State, client: State, site: Site) -> Tensor:
        return msg["x"]


@dataclass(frozen=True)
class FrozenServer(GlobalScored):
    """β = 0 besides, which is the default there."""

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        return server


@dataclass(frozen=True)
class OtherFactor(L2GD):
    """θ has 1 − p where the rule has p: αλ/(n(1−p)), which is lr·λ."""

    def factor(self, steps: int, site: Site) -> float:
        return steps * site.local.lr * self.lam


@dataclass(frozen=True)
class FirstCountedTwice(L2GD):
    """The sum of the models starts with the first client's, which is added again."""

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        x = super().aggregate(server, replies, site)["x"]
        return {**server, "x": x + replies[0].state["w"] / len(replies)}


@dataclass(frozen=True)
class TiedWithoutCoin(FedAvg):
    """No coin: every local step is tied to w, which moves by |S|/N of the way to the mean of the cohort's models."""

    lam: float = 0.5

    def client_init(self, x: Tensor, site: Site) -> State:
        return {"x_i": x}

    def start(self, msg: State, client: State) -> Tensor:
        return client["x_i"]

    def pull(self, w: Tensor, msg: State, client: State, site: Site) -> Tensor:
        return self.lam * (w - msg["x"])

    def reply(self, w: Tensor, msg: State, client: State, steps: int, site: Site) -> tuple[State, State]:
        return {"w": w}, {"x_i": w}

    def personal(self, msg: State, client: State, site: Site) -> Tensor:
        return client["x_i"]

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        x = server["x"]
        return {**server, "x": x + len(replies) / site.clients * (self.mean(replies) - x)}


@dataclass(frozen=True)
class OtherMixture(APFL):
    """αv + αy, whose parts do not add up to one; the client uses the right mixture."""

    def train(self, msg: State, client: State, site: Site, buffers: State) -> tuple[TrainedModel, State]:
        return AlphaTwice(**vars(self)).train(msg, client, site, buffers)


@dataclass(frozen=True)
class AlphaTwice(APFL):
    def mixture(self, alpha: float | Tensor, v: Tensor, y: Tensor) -> Tensor:
        return alpha * (v + y)


@dataclass(frozen=True)
class OverwrittenBranch(APFL):
    """v trains on its own loss, and the mixture replaces it after every round."""

    def train(self, msg: State, client: State, site: Site, buffers: State) -> tuple[TrainedModel, State]:
        trained, _ = FedAvg.train(self, msg, client, site, buffers)
        v = local_sgd(client["v"], site.task.grad, site.samples, site, buffers).w
        return trained, {"v": self.mixture(self.alpha, v, trained.w)}

    def personal(self, msg: State, client: State, site: Site) -> Tensor:
        return client["v"]


@dataclass(frozen=True)
class TwoGlobalSteps(APFL):
    """The optimiser of both branches steps twice on a batch, so the global branch moves twice along its gradient."""

    def gradient(self, w: Tensor, batch: Batch, msg: State, client: State, site: Site) -> tuple[Tensor, Tensor]:
        g, loss = super().gradient(w, batch, msg, client, site)
        return 2 * g, loss


def with_uniform_weighting(method: type[Method], settings: Mapping[str, Any]) -> Method:
    """The method with the same weight for all clients, as in the optimum."""
    return method(**{"weighting": "uniform", **settings})


OURS: dict[str, tuple[Oracle, Method]] = {
    theory.row: (theory, with_uniform_weighting(method, theory.settings))
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


EQUAL: dict[str, Any] = {"weighting": "uniform"}
TIED = EQUAL | {"lam": 1.0, "gamma": 0.2}
OWN = EQUAL | {"alpha": 0.75}  # FedRep's default; at 0.5 its mixture is right by chance
COIN: dict[str, Any] = {"lam": 0.5, "p": 0.4}


def adapting(variant: Literal["FO", "HF", "exact"]) -> PerFedAvg:
    return PerFedAvg(**EQUAL, variant=variant, a=0.1)


# What ends at the closed form that it declares, and rules of others, each beside the method that it should be.
PERSONAL: dict[str, tuple[str, Method, Method]] = {
    "local": ("ends at the clients' own optima", LocalOnly(**EQUAL), LocalOnly(**EQUAL)),
    "FedAvg, fine-tuned": ("ends there", FineTune(**EQUAL), FineTune(**EQUAL)),
    **{f"Per-FedAvg, {v}": ("ends there", adapting(v), adapting(v)) for v in ("FO", "HF", "exact")},
    "Ditto, λ = 1": ("ends there", Ditto(**EQUAL), Ditto(**EQUAL)),
    "pFedMe": ("ends there", PFedMe(**TIED), PFedMe(**TIED)),
    "pFedMe, θ reset": ("ends there", PFedMe(**TIED, reset=True), PFedMe(**TIED, reset=True)),
    "L2GD, K = 5": ("its mean over the coin ends there", L2GD(**COIN), L2GD(**COIN)),
    "APFL, α = 0.5": ("ends there", APFL(**EQUAL), APFL(**EQUAL)),
    "Ditto as in PFLlib, its default μ = 0": ("clients train alone", Ditto(**EQUAL, lam=0.0), Ditto(**EQUAL)),
    "pFedMe as in its own repository": ("y is scored, not θ", AliasedTheta(**TIED), PFedMe(**TIED)),
    "pFedMe as in PFLlib": ("the global model is scored, not θ", GlobalScored(**TIED), PFedMe(**TIED)),
    "pFedMe as in PFLlib, its default β = 0": (
        "the server keeps its first model",
        FrozenServer(**TIED),
        PFedMe(**TIED),
    ),
    "pFedMe as in FL-bench": ("θ is never stored: the initial model is scored", ForgottenTheta(**TIED), PFedMe(**TIED)),
    "L2GD as in FedRep, its factor": ("θ with 1−p for p is another λ", OtherFactor(**COIN), L2GD(**COIN)),
    "L2GD as in FedRep, its mean": ("the first client counts twice", FirstCountedTwice(**COIN), L2GD(**COIN)),
    "L2SGD as in Ditto's repository": (
        "no coin: ends where L2GD does with K = 1",
        TiedWithoutCoin(**EQUAL, lam=COIN["lam"]),
        L2GD(**COIN),
    ),
    "APFL as in FedRep, α = 0.75": ("trains αv + αy", OtherMixture(**OWN), APFL(**OWN)),
    "APFL as in PFLlib": ("v on its own loss, then overwritten", OverwrittenBranch(**EQUAL), APFL(**EQUAL)),
    "APFL as in FL-bench": ("the global branch steps twice", TwoGlobalSteps(**EQUAL), APFL(**EQUAL)),
}


def personal_errors(method: Method, right: Method, problem: QuadraticProblem, rounds: int = 500) -> LimitErrors:
    """How far a rule's global and personal models end from the closed form of the method that it should be."""
    A, c = client_quadratics(problem)
    limit = right.quadratic_limit(A, c, LOCAL.epochs, LOCAL.lr)
    assert limit is not None
    if isinstance(method, L2GD):
        found = average_over_coin(method, problem, rounds)
    else:
        run = last_run(federate(method, problem.task, problem.clients, rounds=Rounds(rounds=rounds), local=LOCAL))
        found = run.w, personal_models(method, run, problem)
    ends = problem.task.init() if limit[0] is None else limit[0], limit[1]
    return LimitErrors(*(float((got - end).norm() / end.norm()) for got, end in zip(found, ends, strict=True)))


def average_over_coin(method: L2GD, problem: QuadraticProblem, rounds: int) -> tuple[Tensor, Tensor]:
    """L2GD's mean and models, moved in every round by the mean of what both sides of the coin do."""
    n = len(problem.clients)
    server = Site(problem.task, LOCAL, Key(0), 0, n, numbers=n)
    # A local round after which models are sent, and the round that draws them together.
    t = next(t for t in range(1, 1000) if not method.silent(replace(server, round=t)))
    models, x = problem.task.init().expand(n, -1), problem.task.init()
    for _ in range(rounds):
        replies = [Reply(i, 1, {"w": x_i}) for i, x_i in enumerate(models)]
        x = method.aggregate({"x": x}, replies, replace(server, round=t))["x"]
        rows = []
        for i, (x_i, data) in enumerate(zip(models, problem.clients, strict=True)):
            site = site_of_client(replace(server, round=t), 0, i, data, len(data), 1.0)
            client: State = {"x_i": x_i, "steps": torch.tensor(LOCAL.epochs)}
            alone = method.train({}, client, site, {})[0].w
            drawn = method.train({"x": x}, client, replace(site, round=t + 1), {})[0].w
            rows.append((1 - method.p) * alone + method.p * drawn)
        models = torch.stack(rows)
    return x, models


def format_personal_table(seeds: int = 3) -> str:
    lines = ["| rule | what theory says, or what is different | global | personal |", "|---|---|---:|---:|"]
    for name, (words, method, right) in PERSONAL.items():
        errors = [personal_errors(method, right, make_problem(seed, clients=4, d=4)) for seed in range(seeds)]
        worst = [max(column) for column in zip(*errors, strict=True)]
        lines.append(f"| {name} | {words} | {worst[0]:.0e} | {worst[1]:.0e} |")
    return "\n".join(lines)


def worst_error(method: Method, participation: float, rounds: int, seeds: int = 3) -> float:
    """The largest relative error over random problems; infinite if the rule diverges, NaN if it needs all clients."""
    if method.everyone and participation < 1:
        return float("nan")
    try:
        return max(measure_error(method, make_problem(seed), participation, rounds) for seed in range(seeds))
    except RuntimeError:  # a client's model was no longer finite
        return float("inf")


def format_table() -> str:
    def format_cell(value: float) -> str:
        return "–" if math.isnan(value) else "diverges" if value > 1e6 else f"{value:.0e}"

    lines = ["| rule | what theory says, or what is different | 100 % | 30 % |", "|---|---|---:|---:|"]
    rows = {name: (theory.because, method) for name, (theory, method) in OURS.items()} | PEERS
    for name, (words, method) in rows.items():
        lines.append(
            f"| {name} | {words} | "
            + " | ".join(format_cell(worst_error(method, part, n)) for part, n in ROUNDS.items())
            + " |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(format_table())
    print()
    print(format_personal_table())
