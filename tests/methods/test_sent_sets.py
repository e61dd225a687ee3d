"""Methods whose clients send sets of samples: their identities, what a reply may be, and a server that trains on it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_world import CLASSES, LOCAL, SHAPE, SIZES, World, quick
from torch import nn

from fedptr.core import long_work
from fedptr.core.federation import Rounds, federate, last_run
from fedptr.core.method import EACH_SAMPLE, Entry, Site
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.core.visit import check_reply
from fedptr.errors import ClientError, ReplyError, UserError
from fedptr.methods import all_methods, make_method
from fedptr.methods.fedd3 import loss_and_gradient
from fedptr.methods.feddm import draw_neighbour, gap_and_gradient
from fedptr.methods.sent_sets import ServerTraining, pick_balanced, train_on_union, unite
from fedptr.privacy.differential import Privacy
from fedptr.runs.summary import describe_gaps, print_advice
from fedptr.types import Batch, Reply, State

SENDERS = [name for name, method in all_methods().items() if method.sends_sets]
OURS = ["feddm", "fedd3"]


def centralised(x: torch.Tensor, server: State, task: Classification, how: ServerTraining, t: int = 0) -> torch.Tensor:
    """Training on a set by torch's own optimiser on a parameter, with the keyed batches."""
    w = nn.Parameter(x.clone())
    kind = torch.optim.Adam if how.adam else torch.optim.SGD
    more = {} if how.adam else {"momentum": how.momentum}
    optimiser = kind([w], lr=how.lr, weight_decay=how.weight_decay, **more)
    order = Key(0).at("round", t, "server")("server-batches")
    for _ in range(how.epochs):
        for rows in torch.randperm(len(server["y"]), generator=order).split(how.batch):
            optimiser.zero_grad()
            task.loss(w, Batch(server["X"][rows], server["y"][rows])).backward()
            optimiser.step()
    return w.detach()


@pytest.mark.parametrize("name", OURS)
def test_the_server_keeps_the_union_in_client_order(name: str) -> None:
    run = World().runs(quick(name), rounds=2, participation=0.5)[-1]
    owner, cohort = run.server["owner"].tolist(), run.record["cohort"]
    assert owner == sorted(owner)
    assert set(owner) == set(cohort)
    assert run.server["X"].shape == (len(owner), *SHAPE)
    assert run.server["Y"].shape == (len(owner), CLASSES)
    assert torch.equal(run.server["y"], run.server["Y"].argmax(1))
    assert torch.equal(run.server["Y"].sum(1), torch.ones(len(owner)))
    assert run.record["bytes_up"] == 4 * len(owner) * (16 + CLASSES)
    assert all(run.clients[i] == {} for i in run.clients), "what was sent is not kept"


def test_images_are_of_the_clients_own_classes() -> None:
    world = World()
    for name in OURS:
        server = world.runs(quick(name), rounds=1)[0].server
        for i, data in enumerate(world.clients):
            assert set(server["y"][server["owner"] == i].tolist()) <= set(data.labels.tolist())


def test_all_data_is_centralised_training_with_adam() -> None:
    world = World(dtype=torch.float64)
    method = make_method("fedd3", mode="all", server_epochs=3, server_batch=5, server_lr=0.01)
    run = world.runs(method, rounds=1)[0]
    assert len(run.server["y"]) == sum(SIZES)
    assert torch.equal(run.server["X"], torch.cat([data.x for data in world.clients]))
    how = ServerTraining(0.01, 5, 3, adam=True, weight_decay=1e-4)
    torch.testing.assert_close(run.w, centralised(world.task.init(), run.server, world.task, how), rtol=1e-9, atol=1e-9)


def test_real_images_of_everything_make_feddm_centralised_training_per_round() -> None:
    world = World(dtype=torch.float64)
    method = make_method("feddm", H=0, ipc=100, rho=0.0, server_epochs=2, server_batch=5, server_lr=0.05)
    first, second = world.runs(method, rounds=2)
    rows = {tuple(row.tolist()) for data in world.clients for row in data.x.flatten(1)}
    assert {tuple(row.tolist()) for row in first.server["X"].flatten(1)} == rows
    assert len(first.server["y"]) == sum(SIZES)
    how = ServerTraining(0.05, 5, 2, momentum=0.9, weight_decay=5e-4)
    torch.testing.assert_close(first.w, centralised(world.task.init(), first.server, world.task, how))
    torch.testing.assert_close(second.w, centralised(first.w, second.server, world.task, how, t=1))


def test_one_image_with_the_identity_as_features_becomes_the_class_mean() -> None:
    world = World(nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES)))
    method = make_method("feddm", H=300, ipc=1, rho=0.0, lr_img=0.05, server_epochs=0)
    server = world.runs(method, rounds=1)[0].server
    for i, data in enumerate(world.clients):
        for k in data.labels.unique().tolist():
            (image,) = server["X"][(server["owner"] == i) & (server["y"] == k)]
            torch.testing.assert_close(image, data.x[data.y == k].mean(0), rtol=1e-3, atol=1e-3)


def test_without_a_radius_images_are_matched_at_the_model() -> None:
    x, noise = torch.arange(5.0), torch.Generator().manual_seed(0)
    assert torch.equal(draw_neighbour(x, 0.0, noise), x)
    for rho in (0.1, 2.0):
        step = draw_neighbour(torch.zeros(400), rho, noise)
        assert float(step.norm()) == pytest.approx(rho, rel=1e-5), "ξ is far longer than ρ"
    assert float(draw_neighbour(torch.zeros(4), 1e9, noise).norm()) < 10, "and not stretched where it is shorter"


def test_the_gradient_of_feddm_agrees_with_finite_differences() -> None:
    world = World(dtype=torch.float64)
    task, data = world.task, world.clients[3]
    X, own = data.x[:4].clone(), data.y[:4]
    classes = data.y.unique()
    own = classes[torch.arange(4) % len(classes)]

    def loss(X: torch.Tensor) -> tuple[float, torch.Tensor]:
        return gap_and_gradient(task, task.init(), X, own, data.x, data.y, classes)

    h, (_, g) = 1e-6, loss(X)
    for seed in range(4):
        d = torch.randn(X.shape, generator=torch.Generator().manual_seed(seed), dtype=X.dtype)
        measured = (loss(X + h * d)[0] - loss(X - h * d)[0]) / (2 * h)
        assert float((g * d).sum()) == pytest.approx(measured, rel=1e-5)


def test_learning_lowers_the_loss_of_both() -> None:
    world = World(dtype=torch.float64)
    for name, settings in (("feddm", {"rho": 0.0, "lr_img": 0.1, "ipc": 1}), ("fedd3", {"lr_img": 0.05, "k": 3})):
        first, last = (
            world.runs(make_method(name, H=H, server_epochs=0, **settings), rounds=1)[0].record["train_loss"]
            for H in (1, 60)
        )
        assert last < 0.7 * first, name


def test_all_images_predict_the_data_without_a_ridge() -> None:
    """S = D_i, and the ridge goes to zero: the regression interpolates, and there is nothing left to learn."""
    data = World(dtype=torch.float64).clients[3]
    Y = nn.functional.one_hot(data.y, CLASSES).double() - 1 / CLASSES
    loss, g = loss_and_gradient(data.x, Y, data.x, Y, ridge=1e-12)
    assert loss < 1e-12
    assert float(g.abs().max()) < 1e-4
    assert loss_and_gradient(data.x[:3], Y[:3], data.x, Y, ridge=1e-6)[0] > 1e-3


def test_the_server_stays_within_the_radius() -> None:
    world = World()
    for rho in (0.05, 0.5):
        run = world.runs(make_method("feddm", H=1, rho=rho, server_epochs=30, server_lr=0.1), rounds=1)[0]
        assert float((run.w - world.task.init()).norm()) == pytest.approx(rho, rel=1e-4)
    free = world.runs(make_method("feddm", H=1, rho=0.0, server_epochs=30, server_lr=0.1), rounds=1)[0]
    assert float((free.w - world.task.init()).norm()) > 0.5


def test_fedd3_sends_what_its_mode_says() -> None:
    world = World()

    def sent(mode: str, k: int = 4) -> dict[str, torch.Tensor]:
        return world.runs(make_method("fedd3", mode=mode, k=k, H=2, server_epochs=0), rounds=1)[0].server

    real = sent("real")
    rows = {tuple(row.tolist()) for data in world.clients for row in data.x.flatten(1)}
    assert {tuple(row.tolist()) for row in real["X"].flatten(1)} <= rows
    assert len(real["y"]) == 4 * 4
    for mode in ("distilled", "coreset"):
        assert torch.equal(sent(mode)["y"], real["y"])
        assert not torch.equal(sent(mode)["X"], real["X"])
    assert torch.equal(make_start(world), real["X"]), "with H = 0 what was to be distilled is real"
    assert len(sent("real", k=10)["y"]) == sum(min(10, m) for m in SIZES)


def make_start(world: World) -> torch.Tensor:
    return world.runs(make_method("fedd3", k=4, H=0, server_epochs=0), rounds=1)[0].server["X"]


def test_picks_are_balanced() -> None:
    labels = torch.tensor([2] * 50 + [0] * 3 + [1] * 10)
    generator = torch.Generator().manual_seed(0)
    picked = pick_balanced(labels, 12, generator)
    assert torch.bincount(labels[picked]).tolist() in ([3, 4, 5], [3, 5, 4])
    assert labels[picked].tolist() == sorted(labels[picked].tolist())
    assert sorted(pick_balanced(labels, 99, generator).tolist()) == list(range(63))
    starts = {tuple(pick_balanced(labels, 3, torch.Generator().manual_seed(seed)).tolist()) for seed in range(9)}
    assert len(starts) > 5


def test_training_goes_on_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's epochs are long work, too."""
    world, method = World(), make_method("feddm")
    union = unite([Reply(2, 5, {"X": torch.ones(3, *SHAPE), "Y": torch.eye(3)})])
    how = ServerTraining(0.1, 2, 6, momentum=0.9)
    kept: dict[str, dict[str, torch.Tensor]] = {}

    class Bench:
        def find(self, name, task):
            return kept.get(name)

        def keep(self, name, task, state):
            kept[name] = {part: value.clone() for part, value in state.items()}
            return True

    site = Site(world.task, LOCAL, Key(0), 0, 4)
    whole = train_on_union(world.task.init(), union, how, method, site)
    steps, grad = [], world.task.grad
    monkeypatch.setattr(long_work, "OFTEN", 0.0)
    monkeypatch.setattr(long_work, "PART", 1e9)

    def failing(w, batch):
        steps.append(1)
        if len(steps) == 8:
            raise KeyboardInterrupt
        return grad(w, batch)

    monkeypatch.setattr(world.task, "grad", failing)
    with pytest.raises(KeyboardInterrupt):
        train_on_union(world.task.init(), union, how, method, replace(site, bench=Bench()))
    again = train_on_union(world.task.init(), union, how, method, replace(site, bench=Bench()))
    assert torch.equal(again, whole)
    assert len(steps) == 8 + 6, "three epochs of two batches were kept"


ENTRIES = {"X": Entry((4, 2), torch.float32, fewer=True), "Y": Entry((4, 3), torch.float32, fewer=True)}


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_set_may_be_smaller(rows: int) -> None:
    check_reply({"X": torch.zeros(rows, 2), "Y": torch.zeros(rows, 3)}, ENTRIES)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ({"X": torch.zeros(5, 2), "Y": torch.zeros(5, 3)}, r"'X' is .* not torch.float32 of up to \(4, 2\)"),
        ({"X": torch.zeros(0, 2), "Y": torch.zeros(0, 3)}, r"not torch.float32 of up to"),
        ({"X": torch.zeros(2, 3), "Y": torch.zeros(2, 3)}, r"not torch.float32 of up to"),
        ({"X": torch.zeros(2), "Y": torch.zeros(2, 3)}, r"not torch.float32 of up to"),
        ({"X": torch.tensor(0.0), "Y": torch.zeros(2, 3)}, r"not torch.float32 of up to"),
        ({"X": torch.zeros(2, 2), "Y": torch.zeros(3, 3)}, "its entries have different numbers of rows: 2, 3"),
        ({"X": torch.zeros(2, 2).double(), "Y": torch.zeros(2, 3)}, "torch.float64"),
        ({"X": torch.full((1, 2), torch.nan), "Y": torch.zeros(1, 3)}, "not finite; a smaller method.lr_img may help"),
    ],
)
def test_what_is_no_set_is_refused(reply: dict[str, torch.Tensor], words: str) -> None:
    with pytest.raises(ReplyError, match=words):
        check_reply(reply, ENTRIES)


def test_an_entry_for_every_sample_ends_at_the_largest_client() -> None:
    entry = Entry((EACH_SAMPLE, 2), fewer=True).up_to(7)
    assert entry.shape == (7, 2)
    assert [entry.fits((n, 2)) for n in (0, 1, 7, 8)] == [False, True, True, False]
    assert Entry((3, 2)).up_to(7).shape == (3, 2)


@pytest.mark.parametrize("name", SENDERS)
def test_what_cannot_be_summed_is_not_protected(name: str) -> None:
    with pytest.raises(UserError, match=name):
        World().runs(quick(name), rounds=1, privacy=Privacy(clip=1.0, noise=1.0))


@pytest.mark.parametrize("name", SENDERS)
def test_such_a_method_has_no_local_optimiser_and_no_ptr(name: str) -> None:
    with pytest.raises(UserError, match="does not train on clients"):
        World().runs(quick(name), rounds=1, local=replace(LOCAL, optimiser="adam"))
    with pytest.raises(UserError, match=rf"{name}\+ptr"):
        make_method(f"{name}+ptr")


def test_one_round_is_the_librarys_default_for_a_one_shot_method() -> None:
    world = World()
    short = quick("fedd3", H=1)
    assert last_run(federate(short, world.task, world.clients, local=LOCAL)).round == 1
    assert last_run(federate(short, world.task, world.clients, rounds=Rounds(rounds=3), local=LOCAL)).round == 3


def test_fedd3_needs_no_model_from_the_server() -> None:
    record = World().runs(quick("fedd3"), rounds=1)[0].record
    assert record["bytes_down"] == 0
    assert record["clients"][0]["steps"] == 2


def test_images_that_diverge_are_told_from_those_that_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    for lr, told in ((0.02, False), (30.0, True)):
        method = make_method("feddm", H=6, lr_img=lr, server_epochs=0)
        records = [run.record for run in world.runs(method, rounds=2)]
        assert all(client["gap_growth"] >= 0 for record in records for client in record["clients"])
        print_advice(method, describe_gaps(records))
        assert ("try a smaller step, such as --set method.lr_img=3\n" in capsys.readouterr().err) == told
    assert describe_gaps([run.record for run in world.runs(quick("feddm", H=0), rounds=1)]) == {}


def test_a_failing_client_is_named() -> None:
    world = World()
    world.clients[1] = Samples(world.clients[1].x * torch.nan, world.clients[1].y)
    for name in OURS:
        with pytest.raises(ClientError, match=f"{name}, round 1, client 1"):
            world.runs(quick(name), rounds=1)
