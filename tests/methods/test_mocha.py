"""MOCHA against closed forms: the ridge system, independent ridges, L2GD's optimum, and its own duality gap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedptr import load_dataset, load_model
from fedptr.cli.main import main
from fedptr.core.faults import Faults
from fedptr.core.federation import Rounds, Run, federate, last_run
from fedptr.core.method import Site
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.errors import UserError
from fedptr.methods.mocha import Mocha, bound_interaction, learn_relationship
from fedptr.methods.quadratic_limits import pulled_minima, weighted_centre
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.plan import load_plan
from fedptr.types import State

N, D = 4, 5
EYE = torch.eye(N, dtype=torch.float64)


@dataclass(frozen=True)
class Fixed(Mocha):
    """Σ is given and stays."""

    Sigma: Tensor = None  # type: ignore[assignment]

    def server_init(self, x: Tensor, site: Site) -> State:
        return {**super().server_init(x, site), "Sigma": self.Sigma, "rho": bound_interaction(self.Sigma)}


@dataclass(frozen=True)
class Forgetful(Mocha):
    """The official code's rule: W is not computed again after Σ has changed, and moves on by ΔBΣ/λ."""

    def relate(self, server: State, site: Site) -> State:
        Sigma = learn_relationship(server["W"], site.clients)
        return {**server, "Sigma": Sigma, "rho": bound_interaction(Sigma)}

    def with_models(self, server: State) -> State:
        moved = server["Sigma"] @ (server["B"] - server.get("old_B", torch.zeros_like(server["B"]))) / self.lam
        return {**super().with_models(server), "W": server["W"] + moved, "old_B": server["B"]}


def make_task(classes: int = 2, bias: bool = False) -> Classification:
    return Classification(nn.Linear(D, classes, bias=bias).double(), (D,), classes)


def make_clients(classes: int = 2, seed: int = 0) -> list[Samples]:
    """Clients whose labels follow hyperplanes of their own, near to those of others; with noise."""
    g = torch.Generator().manual_seed(seed)
    shared = torch.randn(classes, D, generator=g, dtype=torch.float64)
    clients = []
    for i in range(N):
        own = shared + 0.5 * torch.randn(classes, D, generator=g, dtype=torch.float64)
        x = torch.randn(12 + 5 * i, D, generator=g, dtype=torch.float64)
        clients.append(Samples(x, (x @ own.mT + torch.randn(len(x), classes, generator=g)).argmax(1)))
    return clients


def run(method: Mocha, rounds: int, clients: list[Samples] | None = None, classes: int = 2, **more: object) -> Run:
    return last_run(
        federate(method, make_task(classes), clients or make_clients(classes), rounds=Rounds(rounds=rounds), **more)
    )


def models(run: Run, classes: int = 2) -> Tensor:
    """Client, class, input."""
    return run.server["W"].view(N, classes, D)


def targets(data: Samples, k: int) -> Tensor:
    return 2.0 * (data.y == k).double() - 1


def ridge(clients: Sequence[Samples], Omega: Tensor, lam: float, k: int) -> Tensor:
    """The solution of (blkdiag(X_tᵀX_t/n_t) + λΩ⊗I) vec W = vec(X_tᵀy_t/n_t), a row per client."""
    left = torch.block_diag(*(c.x.mT @ c.x / len(c) for c in clients)) + lam * torch.kron(Omega, torch.eye(D).double())
    right = torch.cat([c.x.mT @ targets(c, k) / len(c) for c in clients])
    return torch.linalg.solve(left, right).view(N, D)


def related() -> Tensor:
    g = torch.Generator().manual_seed(3)
    root = torch.randn(N, N, generator=g, dtype=torch.float64)
    return root @ root.mT / N + 0.3 * EYE


def steps_by_hand(
    data: Samples, a: Tensor, w: Tensor, sigma: float, rho: float, method: Mocha, order: Tensor
) -> Tensor:
    """One coordinate after another, class by class, as the paper has it; changes a, and returns Δb."""
    lam, m = method.lam, len(data)
    delta, delta_b = torch.zeros_like(w), torch.zeros_like(w)
    for j in order.tolist():
        x = data.x[j]
        for k in range(len(w)):
            y, z, old = float(targets(data, k)[j]), float(x @ (w[k] + rho * delta[k])), float(a[j, k])
            curvature = rho * sigma * float(x @ x) / (lam * m)
            if method.loss == "hinge":
                change = y * min(max(y * old + (1 - y * z) / curvature, 0.0), 1.0) - old
            else:
                change = (y - z - old) / (1 + curvature)
            a[j, k] += change
            delta[k] += sigma * change * x / (lam * m)
            delta_b[k] += change * x / m
    return delta_b


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("loss", ["hinge", "squared"])
def test_rounds_by_the_printed_rule(loss: Any, weighting: Any) -> None:
    """Half of the clients in a round; Σ and ρ are learned twice, and the models that are sent belong to the new Σ."""
    clients, method = make_clients(3), Mocha(weighting, loss=loss, lam=0.3, frac=0.6, inner=2)
    duals = [torch.zeros(len(c), 3).double() for c in clients]
    B, W, Sigma, rho, came = torch.zeros(N, 3 * D).double(), torch.zeros(N, 3 * D).double(), EYE / N, 1.0, set[int]()
    for now in federate(method, make_task(3), clients, rounds=Rounds(rounds=6, participation=0.5)):
        t = now.round - 1
        if t in (2, 4):
            there = torch.tensor(sorted(came))
            left, values, _ = torch.linalg.svd(W[there], full_matrices=False)
            Sigma = EYE / N
            Sigma[there[:, None], there] = len(there) / N * (left * values) @ left.mT / values.sum()
            rho = max(float(Sigma[i].abs().sum() / Sigma[i, i]) for i in range(N))
            W = Sigma @ B / 0.3
        for i in now.record["cohort"]:
            n = len(clients[i])
            order = torch.randperm(n, generator=Key(0).at("round", t, "client", i)("coordinates"))[: math.ceil(0.6 * n)]
            sigma = float(Sigma[i, i])
            B[i] += steps_by_hand(clients[i], duals[i], W[i].view(3, D), sigma, rho, method, order).flatten()
            torch.testing.assert_close(now.clients[i]["a_i"], duals[i], atol=1e-10, rtol=1e-10)
        came |= set(now.record["cohort"])
        W = Sigma @ B / 0.3
        torch.testing.assert_close(now.server["W"], W, atol=1e-10, rtol=1e-10)
        weights = torch.tensor(
            [(len(c) if weighting == "samples" else 1.0) * (i in came) for i, c in enumerate(clients)]
        )
        torch.testing.assert_close(now.w, weights.double() / weights.sum() @ W, atol=1e-10, rtol=1e-10)
    assert rho > 1.05


def test_squared_loss_reaches_the_ridge_solution_for_any_fixed_relationship() -> None:
    Omega, clients = related(), make_clients(3)
    found = models(run(Fixed(loss="squared", lam=0.5, frac=3.0, inner=0, Sigma=Omega.inverse()), 150, clients, 3), 3)
    for k in range(3):  # one against the rest: a binary problem for each class
        torch.testing.assert_close(found[:, k], ridge(clients, Omega, 0.5, k), atol=1e-10, rtol=1e-10)


def test_without_a_learned_relationship_clients_are_independent_ridges() -> None:
    """Σ = I/m is Ω = mI: each client alone, with λm."""
    clients = make_clients()
    found = models(run(Mocha(loss="squared", lam=0.1, frac=3.0, inner=0), 100, clients))
    for i, c in enumerate(clients):
        left = c.x.mT @ c.x / len(c) + 0.1 * N * torch.eye(D).double()
        alone = torch.linalg.solve(left, c.x.mT @ targets(c, 1) / len(c))
        torch.testing.assert_close(found[i, 1], alone, atol=1e-10, rtol=1e-10)


def test_the_centring_relationship_is_l2gds_optimum() -> None:
    """Ω = I − 11ᵀ/m pulls to the mean. It has no inverse: it is the limit of Ω + εI."""
    clients, lam = make_clients(), 0.5
    A = torch.stack([c.x.mT @ c.x / len(c) for c in clients])
    c = torch.linalg.solve(A, torch.stack([data.x.mT @ targets(data, 1) / len(data) for data in clients]))
    mean = weighted_centre(torch.linalg.solve(A + lam * torch.eye(D).double(), A), c)
    optimum, off = pulled_minima(A, c, lam, mean), []
    for eps, rounds in ((0.3, 150), (0.03, 1000)):  # the smaller, the longer it takes
        Omega = EYE - 1 / N + eps * EYE
        found = models(run(Fixed(loss="squared", lam=lam, frac=1.0, inner=0, Sigma=Omega.inverse()), rounds, clients))
        torch.testing.assert_close(found[:, 1], ridge(clients, Omega, lam, 1), atol=1e-9, rtol=1e-9)
        off.append(float((found[:, 1] - optimum).norm()))
    assert off[1] < 0.15 * off[0]
    limit = ridge(clients, EYE - 1 / N, lam, 1)
    torch.testing.assert_close(limit, optimum, atol=1e-10, rtol=1e-10)


def gap(run: Run, clients: Sequence[Samples], lam: float) -> float:
    """Primal minus dual objective, both at the server's Σ, summed over classes."""
    W, B, Sigma = run.server["W"], run.server["B"], run.server["Sigma"]
    primal = lam / 2 * float((torch.linalg.pinv(Sigma, hermitian=True) * (W @ W.mT)).sum())
    dual = -float((Sigma * (B @ B.mT)).sum()) / (2 * lam)
    for i, (c, w) in enumerate(zip(clients, models(run), strict=True)):
        for k in range(2):
            y = targets(c, k)
            primal += float((1 - y * (c.x @ w[k])).clamp(min=0).mean())
            dual += float((y * run.clients[i]["a_i"][:, k]).mean())
    return primal - dual


@pytest.mark.slow
def test_the_duality_gap_closes_and_models_belong_to_their_duals() -> None:
    """Through three steps that learn Σ. After more of them 100 rounds no longer suffice (we have not found out why):
    the gap was 8e-4 after 500 rounds, and 8e-5 after 800.
    """
    clients, lam, gaps = make_clients(), 0.1, []
    method = Mocha(lam=lam, frac=5.0, inner=100)
    for now in federate(method, make_task(), clients, rounds=Rounds(rounds=400)):
        torch.testing.assert_close(now.server["W"], now.server["Sigma"] @ now.server["B"] / lam)
        for i, c in enumerate(clients):
            torch.testing.assert_close(now.server["B"][i].view(2, D), now.clients[i]["a_i"].mT @ c.x / len(c))
        gaps.append(gap(now, clients, lam))
    assert min(gaps) > -1e-9
    assert gaps[99] < 0.1 * gaps[0]
    assert gaps[-1] < 6e-5


@pytest.mark.slow
def test_without_the_second_computation_of_w_the_gap_stays_open() -> None:
    clients, lam = make_clients(), 0.1
    assert gap(run(Forgetful(lam=lam, frac=5.0, inner=100), 400, clients), clients, lam) > 1e-3


def test_stragglers_take_part_of_the_steps_and_still_arrive() -> None:
    clients, Omega = make_clients(), related()
    method = Fixed(loss="squared", lam=0.5, frac=3.0, inner=0, Sigma=Omega.inverse())
    slow = run(method, 200, clients, faults=Faults(straggle=0.7))
    taken = [entry["steps"] for entry in slow.record["clients"]]
    assert any(steps < 3 * len(c) for steps, c in zip(taken, clients, strict=True))
    torch.testing.assert_close(models(slow)[:, 1], ridge(clients, Omega, 0.5, 1), atol=1e-8, rtol=1e-8)


def test_the_relationship_is_learned_and_recorded() -> None:
    runs = list(federate(Mocha(inner=3), make_task(), make_clients(), rounds=Rounds(rounds=5)))
    shown = [now.record.get("server", {}).get("relationship") for now in runs]
    assert [bool(matrix) for matrix in shown] == [True, False, False, True, False]
    assert shown[0] == (EYE / N).tolist()
    Sigma = torch.tensor(shown[3], dtype=torch.float64)
    assert float(Sigma.trace()) == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(Sigma, runs[-1].server["Sigma"], atol=1e-6, rtol=0)
    W = runs[2].server["W"]
    square = Sigma @ Sigma
    torch.testing.assert_close(square / square.trace(), W @ W.mT / (W @ W.mT).trace(), atol=1e-4, rtol=0)


def test_a_client_that_never_came_is_related_to_none_and_uses_the_global_model() -> None:
    W = torch.zeros(3, 2, dtype=torch.float64)
    W[0], W[2] = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])
    Sigma = learn_relationship(W, 3)
    assert Sigma[1].tolist() == [0, 1 / 3, 0]
    assert float(Sigma.trace()) == pytest.approx(1)
    site = Site(make_task(), None, None, 0, 3)  # type: ignore[arg-type]
    x = torch.ones(2)
    assert Mocha().personal({"x": x, "w_i": torch.zeros(2)}, {}, site) is x


def test_the_bias_is_the_weight_of_a_constant_input() -> None:
    clients = make_clients()
    with_one = [Samples(torch.cat([c.x, torch.ones(len(c), 1).double()], 1), c.y) for c in clients]
    wide = Classification(nn.Linear(D + 1, 2, bias=False).double(), (D + 1,), 2)
    method = Mocha(inner=3)
    one = last_run(federate(method, make_task(bias=True), clients, rounds=Rounds(rounds=7)))
    other = last_run(federate(method, wide, with_one, rounds=Rounds(rounds=7)))
    matrix = other.server["W"].view(N, 2, D + 1)
    torch.testing.assert_close(one.server["W"][:, : 2 * D].view(N, 2, D), matrix[:, :, :D])
    torch.testing.assert_close(one.server["W"][:, 2 * D :], matrix[:, :, D])


@pytest.mark.parametrize("layers", [
    [nn.Linear(D, 3), nn.ReLU(), nn.Linear(3, 2)], [nn.Linear(D, 2), nn.ReLU()], [nn.Dropout(), nn.Linear(D, 2)],
    [nn.BatchNorm1d(D, affine=False), nn.Linear(D, 2)],
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:the model has BatchNorm")
def test_other_models_are_refused_in_one_sentence(layers: list[nn.Module]) -> None:
    task = Classification(nn.Sequential(*layers).double(), (D,), 2)
    with pytest.raises(UserError, match=r"mocha trains linear models only.*set model\.name = linear"):
        last_run(federate(Mocha(), task, make_clients()))


def test_the_command_line_refuses_before_anything_starts(tmp_path, capsys) -> None:
    assert main(["run", "--method", "mocha", "--model", "mlp", "--out", str(tmp_path / "run")]) == 2
    assert "mocha trains linear models only" in capsys.readouterr().err
    assert not (tmp_path / "run" / "rounds.jsonl").exists()


def test_on_the_features_of_a_frozen_model(tmp_path, capsys) -> None:
    frozen, out = tmp_path / "frozen", tmp_path / "run"
    options = "--width 8 --set model.depth=1 --set machine.threads=1 --set split.kind=iid --set split.clients=4"
    assert main(["run", "--method", "fedavg", "--rounds", "3", "--out", str(frozen), *options.split()]) == 0
    options = f"--model linear --rounds 2 --set data.features={frozen} --set machine.threads=1"
    assert main(["run", "--method", "mocha", "--out", str(out), *options.split()]) == 0
    assert "digits: 288 features of the model in" in capsys.readouterr().err
    experiment = prepare_experiment(load_plan(out))
    assert experiment.task.shape == (288, 1, 1)
    x, _ = experiment.test.take(torch.arange(5))
    task = Classification(load_model(frozen).network, (1, 8, 8), 10)
    raw = load_model(frozen).card
    images = (torch.from_numpy(load_dataset("digits").test_x[:5]).float() - raw.mean[0]) / raw.std[0]
    features = task.features(task.init(), images)
    mean, std = (torch.tensor(values) for values in (experiment.dataset.mean, experiment.dataset.std))
    torch.testing.assert_close(x.flatten(1), ((features - mean) / std).float(), rtol=1e-4, atol=1e-4)
    images = np.zeros((20, 1, 12, 12), np.uint8)
    np.savez(tmp_path / "other.npz", train_x=images, train_y=np.arange(20) % 2, test_x=images, test_y=np.arange(20) % 2)
    options = f"--dataset {tmp_path / 'other.npz'} --set data.features={frozen} --model linear"
    assert main(["run", "--method", "mocha", *options.split(), "--out", str(tmp_path / "c")]) == 2
    assert "takes 1×8×8 inputs, and other has 1×12×12" in capsys.readouterr().err
