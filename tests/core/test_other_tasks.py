"""Tasks besides classification: what they measure, what theory says, and that methods train them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from small_world import quick
from torch import Tensor, nn

from fedptr import Classification, Local, ModelTask, MultiLabel, Regression, Rounds, Samples, federate
from fedptr.core.federation import Run, last_run
from fedptr.errors import UserError
from fedptr.methods import all_methods, make_method
from fedptr.types import Batch

N, D = 40, 3
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(4, N, D, generator=DRAW)
TRUE = torch.tensor([1.0, -2.0, 0.5])
Y = X @ TRUE + 0.1 * torch.randn(4, N, generator=DRAW)
BITS = torch.stack([(X @ TRUE > 0), (X[..., 0] > 0)], dim=-1).float()


class Absolute(ModelTask):
    """A loss of one's own."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs[:, 0] - y).abs()


def make_task(kind: str) -> tuple[ModelTask, list[Samples]]:
    torch.manual_seed(0)
    if kind == "multi-label":
        return MultiLabel(nn.Linear(D, 2), (D,)), [Samples(x, y) for x, y in zip(X, BITS, strict=True)]
    cls = Regression if kind == "regression" else Absolute
    return cls(nn.Linear(D, 1), (D,)), [Samples(x, y) for x, y in zip(X, Y, strict=True)]


def train(kind: str, method: Any, rounds: int = 3, start: Run | None = None, **local: Any) -> Run:
    task, clients = make_task(kind)
    settings = Local(**{"lr": 0.05, "batch": 10, "momentum": 0.0, **local})
    asked = (clients[0], Rounds(rounds=rounds), settings)
    return last_run(federate(method, task, clients, *asked, start=start, client_tests=clients))


@pytest.mark.parametrize("kind", ["regression", "multi-label", "own loss"])
@pytest.mark.parametrize("name", all_methods())
def test_every_method_trains_it_or_says_why_not(kind: str, name: str) -> None:
    """And resumes exactly."""
    known = all_methods()[name].__dataclass_fields__
    method = quick(name, **{key: value for key, value in {"dsa": False, "ipc": 1}.items() if key in known})
    if method.needs_classes:
        with pytest.raises(UserError, match="trains classifiers, and this task has no classes"):
            train(kind, method)
        return
    if "ipc" in known and kind != "regression":
        with pytest.raises(UserError, match="does not say which labels FedPTR's auxiliary samples have"):
            train(kind, method)
        return
    run = train(kind, method)
    assert bool(run.w.isfinite().all())
    assert run.record["client_tests"]["id"] == [0, 1, 2, 3]
    assert "test_accuracy" not in run.record
    again = train(kind, method, start=train(kind, method, rounds=2))
    assert torch.equal(run.w, again.w)


def test_one_full_step_a_round_reaches_least_squares() -> None:
    run = train("regression", quick("fedavg"), rounds=400, batch=N, lr=0.1)
    table = np.concatenate([X.reshape(-1, D).numpy(), np.ones((4 * N, 1), np.float32)], axis=1)
    best, *_ = np.linalg.lstsq(table, Y.reshape(-1).numpy(), rcond=None)
    assert np.allclose(run.w.numpy(), best, atol=1e-5)


def test_scores_of_regression_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

    task = Regression(nn.Linear(D, 2), (D,))
    x, y = X.reshape(-1, D), torch.stack([Y.reshape(-1), 5 + X[..., 0].reshape(-1)], dim=1)
    found = task.evaluate(task.init(), Samples(x, y))
    out = task.model(x).detach()
    assert found["loss"] == pytest.approx(mean_squared_error(y, out), rel=1e-5)
    assert found["mae"] == pytest.approx(mean_absolute_error(y, out), rel=1e-5)
    assert found["r2"] == pytest.approx(r2_score(y, out, multioutput="variance_weighted"), rel=1e-4)


def test_scores_of_several_labels_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import accuracy_score, f1_score

    task = MultiLabel(nn.Linear(D, 2), (D,))
    x, y = X.reshape(-1, D), BITS.reshape(-1, 2)
    found = task.evaluate(task.init(), Samples(x, y))
    predicted = (task.model(x) > 0).int()
    assert found["exact"] == pytest.approx(accuracy_score(y, predicted))
    assert found["f1"] == pytest.approx(f1_score(y, predicted, average="micro"))


@pytest.mark.parametrize("name", ["fedavg+ptr", "scaffold+ptr"])
def test_fedptr_beside_another_method_trains_regression(name: str) -> None:
    assert bool(train("regression", make_method(name, dsa=False, ipc=1, H=1, R=2, m=1)).w.isfinite().all())


@pytest.mark.parametrize(
    ("task", "y", "words"),
    [
        (Classification(nn.Linear(D, 2), (D,), 2), Y[0], "Classification takes one class number per sample"),
        (Classification(nn.Linear(D, 1), (D,), 1), Y[0][:, None], r"float32 and shape \[40, 1\]"),
        (
            Classification(nn.Linear(D, 2), (D,), 2),
            torch.arange(N),
            "has the label 39; labels are class numbers",
        ),
        (Regression(nn.Linear(D, 1), (D,)), torch.arange(N), "Regression takes floats"),
        (MultiLabel(nn.Linear(D, 2), (D,)), 2 * BITS[0], "a row of 0s and 1s"),
        (Regression(nn.Linear(D, 2), (D,)), Y[0], r"outputs have shape \[40, 2\] and the labels \[40\]"),
    ],
)
def test_labels_that_do_not_suit_the_task_are_refused(task: ModelTask, y: Tensor, words: str) -> None:
    """Cross-entropy would take the second and train to a loss of 0."""
    with pytest.raises(UserError, match=words):
        last_run(federate(quick("fedavg"), task, [(X[0], y)], rounds=Rounds(rounds=1)))


def test_the_trained_module_is_there() -> None:
    run = train("regression", quick("fedavg"))
    assert run.model(X[0]).shape == (N, 1)
    with pytest.raises(UserError, match="only a Classification is saved with its classes"):
        run.save("nowhere")


@pytest.mark.parametrize(
    ("losses", "shape"),
    [(lambda outputs, y: (outputs[:, 0] - y).abs().mean(), "[]"), (lambda outputs, y: outputs - y, "[10, 10]")],
)
def test_a_loss_that_is_not_one_a_sample_is_refused(losses: Any, shape: str) -> None:
    task = type("Own", (ModelTask,), {"losses": staticmethod(losses)})(nn.Linear(D, 1), (D,))
    with pytest.raises(UserError, match=f"Own.losses gives shape {re.escape(shape)} for 10 samples; it must give one"):
        last_run(federate(make_method("fedavg"), task, [Samples(X[0], Y[0])], None, Rounds(1), Local(batch=10)))


@pytest.mark.parametrize("parent", [Classification, Regression, MultiLabel])
def test_a_known_task_may_have_another_loss(parent: Any) -> None:
    """Twice the parent's loss: twice its gradient, and twice what is reported."""

    class Twice(parent):  # type: ignore[misc]
        def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
            return 2 * super().losses(outputs, y)

    model, more = nn.Linear(D, 2), {"classes": 2} if parent is Classification else {}
    once, twice = (cls(model, (D,), **more) for cls in (parent, Twice))
    y = BITS[0][:, 0].long() if parent is Classification else BITS[0]
    w = once.init()
    torch.testing.assert_close(twice.grad(w, Batch(X[0], y))[0], 2 * once.grad(w, Batch(X[0], y))[0])
    told, other = (task.evaluate(w, Samples(X[0], y))["loss"] for task in (once, twice))
    assert other == pytest.approx(2 * told)
