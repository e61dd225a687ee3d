"""DOSFL: an exact gradient of samples, labels and rates; dataset distillation for one client; the server's order."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from small_world import CLASSES, LOCAL, SHAPE, World, quick
from torch import Tensor, nn
from torch.func import functional_call

from fedptr.core import long_work
from fedptr.core.federation import Rounds, federate, last_run
from fedptr.core.local_training import Local
from fedptr.core.method import Site
from fedptr.core.randomness import Key
from fedptr.core.regression import Regression
from fedptr.core.samples import Samples
from fedptr.core.task import Task
from fedptr.errors import ClientError, UserError
from fedptr.methods.dataset_distillation import (
    DistilledSet,
    distillation_gradient,
    inverse_softplus,
    take_distilled_step,
)
from fedptr.methods.dosfl import DOSFL
from fedptr.privacy.differential import Privacy, check_privacy
from fedptr.types import Batch, Reply, State

STEPS, PASSES = 3, 2


def make_set(dtype: torch.dtype = torch.float64) -> DistilledSet:
    g = torch.Generator().manual_seed(3)
    shapes = ((STEPS, 4, *SHAPE), (STEPS, 4, CLASSES), (PASSES, STEPS))
    X, Y, raw = (torch.randn(shape, generator=g, dtype=dtype) for shape in shapes)
    return DistilledSet(X, Y, raw)


def real_batch(world: World) -> Batch:
    return Batch(world.clients[3].x, world.clients[3].y)


@pytest.mark.parametrize("masked", [(), (1,)])
def test_the_gradient_is_that_of_finite_differences(masked: tuple[int, ...]) -> None:
    world, learned = World(dtype=torch.float64), make_set()
    noise = torch.randn(learned.X.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    masks = [noise[s] if s in masked else None for s in range(STEPS)] if masked else []
    open_ = [s for s in range(STEPS) if s not in masked]

    def loss(one: DistilledSet) -> float:
        return distillation_gradient(world.task, world.task.init(), one, real_batch(world), masks)[0]

    _, gradient = distillation_gradient(world.task, world.task.init(), learned, real_batch(world), masks)
    step = 1e-6
    for name in DistilledSet._fields:
        here, found = getattr(learned, name), getattr(gradient, name)
        direction = torch.randn(here.shape, generator=torch.Generator().manual_seed(2), dtype=here.dtype)
        rows = (slice(None), open_) if name == "raw" else (open_,)
        along = torch.zeros_like(direction)
        along[rows] = direction[rows]
        up, down = (loss(learned._replace(**{name: here + s * along})) for s in (step, -step))
        assert float((found * along).sum()) == pytest.approx((up - down) / (2 * step), rel=1e-6), name
        assert float((found * (direction - along)).abs().max()) == 0, f"a masked step gets no gradient: {name}"


def logits(world: World, w: Tensor, X: Tensor) -> Tensor:
    return functional_call(world.task.model, world.task.parameters(w), (X,))


def unrolled_loss(world: World, w: Tensor, X: Tensor, Y: Tensor, raw: Tensor, real: Batch) -> Tensor:
    """Wang et al.'s loss with a graph through all steps, and nothing of ours but the task."""
    for e in range(len(raw)):
        for s in range(len(X)):
            inner = -(Y[s] * logits(world, w, X[s]).log_softmax(1)).sum(1).mean()
            (g,) = torch.autograd.grad(inner, w, create_graph=True)
            w = w - F.softplus(raw[e, s]) * g
    return F.cross_entropy(logits(world, w, real.x), real.y)


@pytest.mark.parametrize("learn_labels", [True, False])
def test_one_client_without_noise_is_dataset_distillation(learn_labels: bool) -> None:
    """Unrolled, differentiated twice by autograd, and stepped by torch's Adam; the server then has the student."""
    world = World(dtype=torch.float64)
    world.clients = world.clients[3:]
    data, epochs = world.clients[0], 7
    how = {"steps": STEPS, "passes": PASSES, "ipc": 2, "rate": 0.3, "lr": 0.05, "real_batch": 100, "halve_every": 3}
    alone = {"sigma": 0.0, "p_rm": 0.0}
    method = quick("dosfl", **how, **alone, H=0, outer_epochs=epochs, learn_labels=learn_labels)
    server, told = distil_alone(world, method)
    x = world.task.init()
    X = first_images(world, method).requires_grad_()
    y = torch.arange(CLASSES).repeat_interleave(2)
    Y = F.one_hot(y, CLASSES).double().repeat(STEPS, 1, 1).requires_grad_(learn_labels)
    raw = torch.full((PASSES, STEPS), 0.3, dtype=torch.float64).expm1().log().requires_grad_()
    adam = torch.optim.Adam([p for p in (X, Y, raw) if p.requires_grad], lr=0.05, betas=(0.5, 0.999))
    for epoch in range(epochs):
        adam.param_groups[0]["lr"] = 0.05 * 0.5 ** (epoch // 3)
        adam.zero_grad()
        unrolled_loss(world, x.clone().requires_grad_(), X, Y, raw, Batch(data.x, data.y)).backward()
        adam.step()
        Y.data.clamp_(min=0)
    torch.testing.assert_close(told["X"], X.detach().flatten(0, 1), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(told["Y"], Y.detach().flatten(0, 1), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(told["rates"], F.softplus(raw.detach()), rtol=1e-7, atol=1e-9)
    reached = unrolled_loss(world, x.clone().requires_grad_(), X, Y, raw, Batch(data.x, data.y))
    torch.testing.assert_close(world.task.loss(server["x"], Batch(data.x, data.y)), reached.detach())


def distil_alone(world: World, method: DOSFL) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The server's state after the round, and what client 0 sent."""
    sent: list[dict[str, Tensor]] = []

    class Watched(DOSFL):
        def aggregate(self, server, replies, site):
            sent.extend(reply.state for reply in replies)
            return super().aggregate(server, replies, site)

    (run,) = world.runs(Watched(**asdict(method)), rounds=1)
    return run.server, sent[0]


def first_images(world: World, method: DOSFL) -> Tensor:
    """Where the images start: what a client sends whose step size is zero."""
    _, told = distil_alone(world, replace(method, lr=0.0, H=1))
    return told["X"].unflatten(0, (method.steps, -1)).clone()


def test_without_steps_nothing_changes() -> None:
    world = World()
    (run,) = world.runs(quick("dosfl", steps=0), rounds=1)
    assert torch.equal(run.w, world.task.init())
    assert run.record["bytes_up"] == 0


def test_the_server_goes_through_passes_then_steps_then_clients() -> None:
    world = World(dtype=torch.float64)
    method = DOSFL(steps=STEPS, passes=PASSES, ipc=2)
    g = torch.Generator().manual_seed(0)
    n = STEPS * 2 * CLASSES
    states = [
        {
            "X": torch.randn(n, *SHAPE, generator=g, dtype=torch.float64),
            "Y": torch.rand(n, CLASSES, generator=g, dtype=torch.float64),
            "rates": torch.rand(PASSES, STEPS, generator=g, dtype=torch.float64),
        }
        for _ in range(2)
    ]
    w = world.task.init()
    new = method.aggregate({"x": w}, [Reply(i, 5, state) for i, state in zip((1, 3), states, strict=True)], site(world))
    for e in range(PASSES):
        for s in range(STEPS):
            for state in states:
                rows = slice(s * 2 * CLASSES, (s + 1) * 2 * CLASSES)
                v = w.clone().requires_grad_()
                world.task.loss(v, Batch(state["X"][rows], state["Y"][rows])).backward()
                w = w - state["rates"][e, s] * v.grad
    torch.testing.assert_close(new["x"], w)


def site(world: World) -> Site:
    return Site(world.task, Local(), Key(0), 0, 4)


def linear_problem() -> tuple[Regression, Tensor, Batch]:
    """A linear model, the optimum c of its squared loss on some samples, and these."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x, c = nn.Linear(5, 1, bias=False).double(), torch.randn(40, 5).double(), torch.randn(5).double()
    return Regression(model, (5,)), c, Batch(x, x @ c[:, None])


def test_one_free_sample_and_one_step_lead_a_linear_model_to_its_optimum() -> None:
    """A sample along c − x whose label makes the step as long as that; nothing is left to learn there."""
    task, c, data = linear_problem()
    x = task.init()
    X, rate = (c - x)[None, None], torch.tensor([[0.3]], dtype=torch.float64)
    learned = DistilledSet(X, X @ x[:, None] + 1 / (2 * rate), inverse_softplus(rate))  # as ∇(ŷ − y)² = 2(ŷ − y)X
    arrived = take_distilled_step(task, x, Batch(learned.X[0], learned.Y[0]), rate[0, 0])
    torch.testing.assert_close(arrived, c, rtol=1e-10, atol=1e-10)
    loss, gradient = distillation_gradient(task, x, learned, data)
    assert loss < 1e-20
    assert all(float(part.abs().max()) < 1e-8 for part in gradient)


def test_one_sample_is_learned_for_a_linear_model() -> None:
    task, _, data = linear_problem()
    g = torch.Generator().manual_seed(1)
    learned = DistilledSet(*(torch.randn(1, 1, n, generator=g).double() for n in (5, 1)), torch.zeros(1, 1).double())
    adam = torch.optim.Adam(list(learned), lr=0.05, betas=(0.5, 0.999))
    losses = []
    for _ in range(400):
        loss, gradient = distillation_gradient(task, task.init(), learned, data)
        for part, found in zip(learned, gradient, strict=True):
            part.grad = found
        adam.step()
        losses.append(loss)
    assert losses[-1] < 1e-3 * losses[0]


def test_rates_begin_where_they_are_told_to() -> None:
    assert float(F.softplus(inverse_softplus(torch.tensor(0.02, dtype=torch.float64)))) == pytest.approx(0.02)


def test_noise_and_masks_come_from_the_key_and_change_the_set() -> None:
    world = World()
    plain = {"steps": STEPS, "passes": 1, "H": 3, "sigma": 0.0, "p_rm": 0.0}
    ends = {
        name: world.weights(quick("dosfl", **{**plain, **more}), rounds=1)[0]
        for name, more in {"none": {}, "reset": {"sigma": 0.1}, "masks": {"p_rm": 0.5}}.items()
    }
    assert not torch.equal(ends["none"], ends["reset"])
    assert not torch.equal(ends["none"], ends["masks"])
    again = world.weights(quick("dosfl", **{**plain, "p_rm": 0.5}), rounds=1)[0]
    assert torch.equal(again, ends["masks"])


def test_learning_makes_the_steps_better() -> None:
    world = World(dtype=torch.float64)
    world.clients = world.clients[3:]
    (run,) = world.runs(quick("dosfl", steps=STEPS, passes=1, rate=0.3, H=150, lr=0.05, sigma=0.0, p_rm=0.0), rounds=1)
    data = real_batch(World(dtype=torch.float64))
    before, after = (float(world.task.loss(w, data)) for w in (world.task.init(), run.w))
    assert after < 0.2 * before


def test_outer_steps_are_epochs_or_as_many_as_asked_for() -> None:
    world = World()  # of 7, 5, 9 and 12 samples
    for how, counts in (({"outer_epochs": 2, "H": 0}, [4, 2, 4, 6]), ({"outer_epochs": 2, "H": 5}, [5] * 4)):
        (run,) = world.runs(quick("dosfl", real_batch=5, **how), rounds=1)
        assert [client["steps"] for client in run.record["clients"]] == counts


def test_a_diverging_rate_is_named() -> None:
    with pytest.raises(ClientError, match=r"dosfl, round 1, client 0: .*a smaller method.rate may help"):
        World().runs(quick("dosfl", steps=2, rate=1e30), rounds=1)


def test_numbers_to_predict_are_refused() -> None:
    task, x = Regression(nn.Linear(4, 1), (4,)), torch.randn(8, 4)
    with pytest.raises(UserError, match="dosfl trains classifiers, and this task has no classes; choose another"):
        last_run(federate(quick("dosfl"), task, [Samples(x, x[:, :1])], None, Rounds(rounds=1)))


class Memory:
    """A workbench that keeps copies, as a disk does."""

    def __init__(self) -> None:
        self.kept: dict[str, State] = {}

    def find(self, name: str, task: Task) -> State | None:
        return self.kept.get(name)

    def keep(self, name: str, task: Task, state: State) -> bool:
        self.kept[name] = {part: value.clone() for part, value in state.items()}
        return True


class Killed(Exception):  # noqa: N818
    """What a kill is here."""


@dataclass(frozen=True)
class Fragile(DOSFL):
    """Fails at an outer step, counted over all clients."""

    fails: ClassVar[int] = 10**9
    taken: ClassVar[list[int]] = []

    def outer_gradient(self, x: Tensor, learned: DistilledSet, k: int, site: Site) -> tuple[float, DistilledSet]:
        if len(self.taken) == self.fails:
            raise Killed
        self.taken.append(k)
        return super().outer_gradient(x, learned, k, site)


def test_a_killed_distillation_goes_on_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """With batches of real samples, resets and masks, each of which has to be drawn as before."""
    monkeypatch.setattr(long_work, "OFTEN", 0.0)
    monkeypatch.setattr(long_work, "PART", 1e9)
    world, bench = World(), Memory()
    method = Fragile(steps=2, passes=1, outer_epochs=3, real_batch=3, sigma=0.1, p_rm=0.3, halve_every=1)

    def train(bench: Memory | None) -> Tensor:
        Fragile.taken.clear()
        return last_run(federate(method, world.task, world.clients, local=LOCAL, bench=bench)).w

    whole, steps = train(None), len(Fragile.taken)
    monkeypatch.setattr(Fragile, "fails", steps // 2)
    with pytest.raises(ClientError, match="Killed"):
        train(bench)
    monkeypatch.setattr(Fragile, "fails", 10**9)
    assert torch.equal(train(bench), whole)
    assert len(Fragile.taken) == steps - steps // 2


def test_batches_of_real_samples_are_epochs() -> None:
    world = World()
    method, data = DOSFL(real_batch=5), world.clients[3]
    here = replace(site(world), data=data)
    assert len(data) == 12
    batches = [method.draw_real(k, here) for k in range(6)]
    assert [len(batch.y) for batch in batches] == [5, 5, 2] * 2
    for epoch in (batches[:3], batches[3:]):
        seen = torch.cat([batch.x for batch in epoch]).flatten(1)
        assert sorted(seen.tolist()) == sorted(data.x.flatten(1).tolist())
    assert not torch.equal(batches[0].x, batches[3].x), "each in an order of its own"


@pytest.mark.parametrize(("privacy", "why"), [
    ({"clip": 1.0, "noise": 1.0}, "sends X, Y, rates besides the model, which clip does not bound"),
    ({"secure": True}, "sends X, Y, rates, whose sum over clients means nothing"),
])  # fmt: skip
def test_no_layer_of_privacy_covers_it(privacy: dict[str, object], why: str) -> None:
    with pytest.raises(UserError, match=why):
        check_privacy(Privacy(**privacy), quick("dosfl"), Rounds(rounds=1))


def test_a_reply_of_another_shape_is_refused() -> None:
    class Short(DOSFL):
        def reply(self, w, msg, client, steps, site):
            sent, kept = super().reply(w, msg, client, steps, site)
            return {**sent, "X": sent["X"][1:]}, kept

    with pytest.raises(ClientError, match=r"dosfl, round 1, client 0: its 'X' is torch.float32 of shape \(5, "):
        World().runs(Short(steps=2, H=1), rounds=1)
