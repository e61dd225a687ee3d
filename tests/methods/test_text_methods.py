"""Methods on texts: all run or refuse in one sentence, and matching in the space of word vectors is exact."""

from __future__ import annotations

import pytest
import torch
from small_texts import LENGTH, VOCABULARY, WIDTH, text_world
from small_world import LOCAL, quick
from torch import nn

from fedptr.compute.blocks import BlockedTask
from fedptr.core.federation import Rounds, Run, federate
from fedptr.core.randomness import Key
from fedptr.core.task import Classification
from fedptr.errors import UserError
from fedptr.methods import all_methods
from fedptr.methods.ptr.auxiliary import Auxiliary, StudentStep, squared_distance
from fedptr.methods.ptr.by_trajectory import meta_gradient, train_student
from fedptr.methods.ptr.dsa import identity
from fedptr.methods.ptr.matching import project_model
from fedptr.models.text import TextConv, TextMean
from fedptr.types import Batch

REFUSED = {"naive", "mocha", "dosfl", "feddm", "fedd3"}


def runs(name: str, task: Classification, clients: list, rounds: int = 5, start: Run | None = None) -> list[Run]:
    how = Rounds(rounds=rounds)
    return list(federate(quick(name), task, clients, clients[0], how, LOCAL, start=start))


@pytest.mark.parametrize("name", all_methods())
def test_every_method_runs_on_texts_or_refuses(name: str) -> None:
    task, clients = text_world()
    if name in REFUSED:
        with pytest.raises(UserError) as caught:
            runs(name, task, clients)
        assert "\n" not in str(caught.value)
        return
    whole = runs(name, task, clients)
    assert bool(whole[-1].w.isfinite().all())
    if name not in ("local", "l2gd"):  # whose global model hardly moves in five rounds
        assert not torch.equal(whole[-1].w, task.init())
    again = runs(name, task, clients, start=whole[2])
    assert torch.equal(again[-1].w, whole[-1].w)


@pytest.mark.parametrize("make", [TextMean, TextConv])
def test_vectors_and_tokens_give_the_same_logits(make: type[nn.Module]) -> None:
    with Key(0).fixed("model"):
        model = make((LENGTH, VOCABULARY), 3, WIDTH)
        model.embedding.weight.data[0] = 7.0  # padding counts nothing, whatever is there
    task, clients = text_world(model)
    x, _ = clients[0].take(torch.arange(5))
    vectors = task.to_learnable(task.init(), x)
    assert vectors.shape == (5, LENGTH, WIDTH)
    assert (vectors[x == 0] == 0).all()
    assert torch.equal(model(x), model(vectors))
    other = task.init() * 2
    assert torch.equal(task.to_learnable(other, x), 2 * vectors)


@pytest.mark.parametrize("make", [TextMean, TextConv])
def test_the_gradient_of_matching_agrees_with_finite_differences(make: type[nn.Module]) -> None:
    with Key(0).fixed("model"):
        task, clients = text_world(make((LENGTH, VOCABULARY), 3, WIDTH), torch.float64)
        start = task.init()
        end = task.reachable_end(start, start + 0.1 * torch.randn(len(start), dtype=torch.float64))
    x, y = clients[3].take(torch.arange(6))
    X = task.to_learnable(start, x)
    aux = Auxiliary(X, y, torch.tensor(0.05, dtype=torch.float64), torch.zeros_like(X), torch.tensor(0.0).double())
    steps = [StudentStep(None, identity) for _ in range(4)]
    span2 = squared_distance(start, end)

    def loss(aux: Auxiliary) -> float:
        return squared_distance(train_student(task, start, aux, steps), end) / span2

    L, gX, gbeta, _ = meta_gradient(task, start, end, aux, steps)
    assert pytest.approx(loss(aux), rel=1e-12) == L
    h = 1e-6
    draw = torch.Generator().manual_seed(0)
    for _ in range(5):
        d = torch.randn(X.shape, generator=draw, dtype=torch.float64)
        measured = (loss(aux._replace(X=X + h * d)) - loss(aux._replace(X=X - h * d))) / (2 * h)
        assert float((gX * d).sum()) == pytest.approx(measured, rel=1e-5, abs=1e-9)
    measured = (loss(aux._replace(beta=aux.beta + h)) - loss(aux._replace(beta=aux.beta - h))) / (2 * h)
    assert float(gbeta) == pytest.approx(measured, rel=1e-5)


def test_the_table_of_word_vectors_is_not_matched_and_not_projected() -> None:
    task, clients = text_world()
    table = task.layers[0]
    assert table.name == "embedding.weight"
    start, end = task.init(), task.init() + 1
    reached = task.reachable_end(start, end)
    assert torch.equal(reached[: table.stop], start[: table.stop])
    assert torch.equal(reached[table.stop :], end[table.stop :])
    assert torch.equal(end, task.init() + 1), "arguments are left alone"
    X = runs("fedptr-s", task, clients, rounds=6)[-1].server["X"]
    assert X.shape == (6, LENGTH, WIDTH)
    w = project_model(task, start, X, torch.arange(3).repeat_interleave(2), 3, 0.1, 0.0, False, Key(0))
    assert torch.equal(w[: table.stop], start[: table.stop])
    assert not torch.equal(w[table.stop :], start[table.stop :])


def test_blocks_give_the_gradient_of_the_whole_batch() -> None:
    with Key(0).fixed("model"):
        model = TextMean((LENGTH, VOCABULARY), 3, WIDTH)
    task, clients = text_world(model, torch.float64)
    blocked = BlockedTask(task.model, task.shape, 3, block=3)
    batch = Batch(*clients[3].take(torch.arange(7)))
    (g, loss), (g2, loss2) = task.grad(task.init(), batch), blocked.grad(task.init(), batch)
    torch.testing.assert_close(g, g2, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(loss, loss2, rtol=1e-10, atol=0)
    a = torch.ones_like(g)
    one, two = (each.adjoint(task.init(), batch, a).by_w for each in (task, blocked))
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


def test_a_model_without_vectors_is_refused_where_it_would_be_matched() -> None:
    bag = nn.EmbeddingBag(VOCABULARY, 3)
    _, clients = text_world()
    task = Classification(bag, (LENGTH,), 3)
    assert bool(runs("fedavg", task, clients)[-1].w.isfinite().all())
    with pytest.raises(UserError, match=r"give the model a method embed\(tokens\)"):
        runs("fedptr", task, clients)
