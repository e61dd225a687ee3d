"""Parts of a model that stay with their client: what is shared, what is kept, and what theory says of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_plans import TABLES
from small_world import quick
from torch import Tensor, nn

from fedptr import Classification, Local, Regression, Rounds, Samples, federate, load_model
from fedptr.cli.main import main
from fedptr.compute.blocks import BlockedTask
from fedptr.core.federation import Run, last_run
from fedptr.core.own_part import HOOKS, OWN, join_parts
from fedptr.core.task import ModelTask
from fedptr.data.load import load_dataset
from fedptr.errors import UserError
from fedptr.methods import all_methods
from fedptr.methods.fedavg import FedAvg
from fedptr.runs.plan import Plan, check_plan

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(3, 20, 6, generator=DRAW)
Y = torch.randint(3, (3, 20), generator=DRAW)
CLIENTS = [Samples(x, y) for x, y in zip(X, Y, strict=True)]
REFUSED = "cannot keep a part of the model with each client"


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def make_task(local: str = "2.*") -> Classification:
    return Classification(make_model(), (6,), 3, local=local)


def train(
    method: Any, task: ModelTask, clients: Any = CLIENTS, rounds: int = 3, start: Run | None = None, **settings: Any
) -> Run:
    local = Local(**{"lr": 0.1, "batch": 8, **settings})
    asked = (clients[0], Rounds(rounds=rounds), local)
    return last_run(federate(method, task, clients, *asked, start=start, client_tests=clients))


def own_model(run: Run, i: int) -> Tensor:
    """A client's whole model."""
    task = run.task
    assert isinstance(task, ModelTask)
    return join_parts(task, run.w, run.clients[i][OWN])


def is_eligible(name: str) -> bool:
    method = quick(name)
    plain = all(getattr(type(method), hook) is getattr(FedAvg, hook) for hook in HOOKS)
    return plain and not method.personalised and not method.effort.full


@pytest.mark.parametrize("name", all_methods())
def test_a_method_shares_a_part_and_resumes_exactly_or_says_why_not(name: str) -> None:
    method, task = quick(name), make_task()
    if method.needs_linear:
        return  # a linear model has no part to share
    if not is_eligible(name):
        with pytest.raises(UserError, match=REFUSED):
            train(method, task)
        return
    run = train(method, task, rounds=4)
    again = train(method, make_task(), rounds=4, start=train(method, make_task(), rounds=2))
    assert torch.equal(run.w, again.w)
    assert all(torch.equal(run.clients[i][OWN], again.clients[i][OWN]) for i in range(3))
    assert run.w.shape == (35,)
    assert run.record["bytes_up"] == 3 * 4 * 35 * len(method.sent), "what is kept is not sent"
    assert run.record["personal_loss"] < run.record["client_loss"]
    assert not torch.allclose(run.clients[0][OWN], run.clients[1][OWN], atol=1e-3), "every client has its own"


def test_the_usual_methods_are_among_them() -> None:
    eligible = {name for name in all_methods() if is_eligible(name)}
    assert {"fedavg", "fedprox", "scaffold", "feddyn", "feddc", "fedavgm", "fedadam"} <= eligible
    assert not {"local", "ditto", "apfl", "fedptr", "moon", "mime", "fedsam"} & eligible


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_a_client_alone_trains_the_whole_model(name: str) -> None:
    """With nobody to share with, what is kept and what is shared are FedAvg's model, bit for bit."""
    extra = {"mu": 0.0} if name == "fedprox" else {}
    run = train(quick(name, **extra), make_task(), CLIENTS[:1], clip=0.5, weight_decay=0.01)
    whole = train(quick("fedavg"), make_task(""), CLIENTS[:1], clip=0.5, weight_decay=0.01)
    assert torch.allclose(own_model(run, 0), whole.w, rtol=0, atol=1e-6)
    if name == "fedavg":
        assert torch.equal(own_model(run, 0), whole.w)


class Idle(nn.Module):
    """A model with a parameter that nothing depends on, to be shared."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.idle = make_model(), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + 0 * self.idle
        return out


def test_all_that_counts_kept_is_the_method_without_federation() -> None:
    """Bit for bit."""
    run = train(quick("fedavg"), Classification(Idle(), (6,), 3, local="body.*"))
    alone = train(quick("local"), make_task(""))
    for i in range(3):
        assert torch.equal(run.clients[i][OWN], alone.clients[i]["w_i"])
    assert run.w.tolist() == [1.0]
    personal = (found.record["client_tests"]["personal_accuracy"] for found in (run, alone))
    assert next(personal) == next(personal)


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_it_is_what_torch_computes(mu: float) -> None:
    """FedPer (and FedProx on the shared part) with modules and optimisers, full batches and three steps a round."""
    method = quick("fedprox", mu=mu, weighting="uniform")
    run = train(method, make_task(), rounds=3, batch=20, epochs=3, momentum=0.9)
    models = [make_model() for _ in range(3)]
    for _ in range(3):
        for model, x, y in zip(models, X, Y, strict=True):
            first = [p.detach().clone() for p in model[0].parameters()]
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for _ in range(3):
                optimiser.zero_grad()
                near = sum((p - q).square().sum() for p, q in zip(model[0].parameters(), first, strict=True))
                (nn.functional.cross_entropy(model(x), y) + mu / 2 * near).backward()
                optimiser.step()
        with torch.no_grad():
            for parts in zip(*(model[0].parameters() for model in models), strict=True):
                mean = torch.stack(parts).mean(0)
                for part in parts:
                    part.copy_(mean)
    for i, model in enumerate(models):
        expected = nn.utils.parameters_to_vector(model.parameters())
        torch.testing.assert_close(own_model(run, i), expected, rtol=0, atol=1e-5)


def test_least_squares_with_intercepts_of_ones_own_reaches_the_joint_optimum() -> None:
    """Everyone, one full step a round: min over w and all b_i of Σ_i ‖X_i w + b_i − y_i‖², in closed form."""
    x = X.double()
    true = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0, 1.0], dtype=torch.float64)
    y = x @ true + torch.tensor([5.0, -3.0, 0.0], dtype=torch.float64)[:, None] + 0.1 * Y
    clients = [Samples(a, b) for a, b in zip(x, y, strict=True)]
    task = Regression(nn.Linear(6, 1).double(), (6,), local="bias")
    run = train(quick("fedavg"), task, clients, rounds=600, batch=20, momentum=0.0)
    which = np.kron(np.eye(3), np.ones((20, 1)))  # an intercept for every client
    best, *_ = np.linalg.lstsq(np.concatenate([x.reshape(-1, 6).numpy(), which], axis=1), y.reshape(-1).numpy())
    assert np.allclose(run.w.numpy(), best[:6], atol=1e-9)
    assert np.allclose([float(run.clients[i][OWN]) for i in range(3)], best[6:], atol=1e-9)


def test_the_global_model_has_the_initial_part() -> None:
    run = train(quick("fedavg"), make_task())
    first, found = make_model().state_dict(), run.model.state_dict()
    assert all(torch.equal(found[name], first[name]) == name.startswith("2.") for name in first)


def test_blocks_give_the_same_training() -> None:
    plain = train(quick("scaffold"), make_task())
    blocked = BlockedTask(make_model(), (6,), 3, block=3, threads=2, local="2.*")
    run = train(quick("scaffold"), blocked)
    torch.testing.assert_close(own_model(run, 1), own_model(plain, 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("local", "freeze", "words"),
    [
        ("9.*", "", r"local: 9\.\* matches no parameter"),
        ("*", "", "leaves no parameter to share; use the method `local`"),
        ("2.*", "2.*", r"local: 2\.\* matches no parameter; the model has 0.weight, 0.bias$"),
    ],
)
def test_wrong_patterns_are_refused(local: str, freeze: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Classification(make_model(), (6,), 3, local=local, freeze=freeze)


@pytest.mark.filterwarnings("ignore:the model has BatchNorm")
def test_running_statistics_are_refused() -> None:
    task = Classification(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), (6,), 3, local="2.*")
    with pytest.raises(UserError, match="but not running statistics"):
        train(quick("fedavg"), task)


def plan_with(name: str = "fedavg") -> Plan:
    return check_plan({**TABLES, "model": {"name": "mlp", "width": 8, "local": "5.*"}, "method": {"name": name}})


def test_a_run_folder_has_every_clients_model(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(plan_with().toml())
    out, other = tmp_path / "run", tmp_path / "other"
    assert main(["run", str(tmp_path / "plan.toml"), "--out", str(out)]) == 0
    last = json.loads((out / "rounds.jsonl").read_text().splitlines()[-1])["client_tests"]
    images = torch.from_numpy(load_dataset("digits").test_x)
    seen = [load_model(out, client=i)(images) for i in last["id"]]
    assert not torch.equal(seen[0], seen[1])
    body = [dict(load_model(out, client=i).network.named_parameters())["1.weight"] for i in last["id"]]
    assert torch.equal(body[0], body[1])
    assert load_model(out)(images).isfinite().all()
    summary = json.loads((out / "summary.json").read_text())
    assert summary["clients_personal"]["weighted"] > summary["clients_global"]["weighted"]
    assert "diverged" not in summary
    assert main(["run", str(tmp_path / "plan.toml"), "--rounds", "2", "--out", str(other)]) == 0
    assert main(["resume", str(other), "--rounds", "4"]) == 0
    assert (other / "weights.safetensors").read_bytes() == (out / "weights.safetensors").read_bytes()
    again = json.loads((other / "rounds.jsonl").read_text().splitlines()[-1])["client_tests"]
    assert again == last
