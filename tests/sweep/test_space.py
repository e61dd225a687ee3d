"""What a sweep tries: values, ranges, grids and draws, and mistakes in them."""

from __future__ import annotations

from typing import Any

import pytest

from fedptr.errors import UserError
from fedptr.sweep.axes import Range, Values, find_axes
from fedptr.sweep.space import Space, make_spaces

DATA = {"validation": 0.2}


def spaces(names: str = "fedavg", **tables: Any) -> list[Space]:
    return make_spaces({"data": DATA, **tables}, names.split(","))


def test_a_grid_is_every_combination() -> None:
    (space,) = spaces(local={"lr": "0.1,0.01", "batch": [16, 32], "epochs": 2})
    assert space.grid() == [
        {"local.lr": 0.1, "local.batch": 16},
        {"local.lr": 0.1, "local.batch": 32},
        {"local.lr": 0.01, "local.batch": 16},
        {"local.lr": 0.01, "local.batch": 32},
    ]
    plan = space.plan_at(space.grid()[1], seed=7)
    assert (plan.local.lr, plan.local.batch, plan.local.epochs, plan.run.seed) == (0.1, 32, 2, 7)


def test_methods_vary_only_what_they_have() -> None:
    plain, ptr = spaces("fedavg,fedptr-s", method={"lam": "0,0.05"}, methods={"fedptr-s": {"m": [2, 3]}})
    assert plain.grid() == [{}]
    assert {tuple(one.values()) for one in ptr.grid()} == {(0, 2), (0, 3), (0.05, 2), (0.05, 3)}


def test_words_and_truth_values_are_values() -> None:
    tables = {"split": {"kind": "iid,shards"}, "local": {"augment": "true,false"}, "model": {"name": "mlp,linear"}}
    found = find_axes(tables, "fedavg")
    assert found["split.kind"] == Values("split.kind", ("iid", "shards"))
    assert found["local.augment"] == Values("local.augment", (True, False))
    assert found["model.name"] == Values("model.name", ("mlp", "linear"))


def test_a_path_may_have_a_comma() -> None:
    assert not find_axes({"data": {"name": "../a,b.csv"}, "split": {"file": "a,b.json"}}, "fedavg")


def test_the_order_of_sections_does_not_matter_for_one_value() -> None:
    (space,) = spaces(local={"lr": 0.1})
    assert space.grid() == [{}]


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"local": {"lrr": "1,2"}}, "local.lrr is not a setting; did you mean local.lr"),
        ({"method": {"lamm": "1,2"}}, "method.lamm is not a setting of fedavg"),
        ({"methods": {"fedavgg": {}}}, "methods.fedavgg"),
        ({"locl": {"lr": 1}}, "locl is not a section"),
        ({"local": {"lr": "0.1,"}}, "local.lr has an empty value in '0.1,'"),
        ({"local": {"lr": []}}, "local.lr is an empty list"),
        ({"local": {"lr": "0.1,0.1"}}, "local.lr names 0.1 twice"),
        ({"local": {"lr": "0.1,high"}}, "local.lr must be a number, not 'high'"),
        ({"local": {"lr": "low..high"}}, "'low..high' is not a range of numbers"),
        ({"local": {"lr": "0.1..0.01"}}, "does not rise"),
        ({"local": {"lr": "0..0.1"}}, "local.lr must be more than 0"),
        ({"local": {"epochs": "0.5..3"}}, "local.epochs takes whole numbers"),
        ({"data": {**DATA, "subset": "100,200"}}, "data.subset cannot be swept"),
        ({"run": {"seed": "1,2"}}, "run.seed cannot be swept: seeds are repetitions; use --seeds"),
        ({"machine": {"threads": "1,2"}}, "machine.threads cannot be swept"),
        ({"data": {}}, "never by the test set"),
    ],
)
def test_mistakes_are_told_in_one_sentence(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as told:
        spaces(**tables)
    assert "\n" not in str(told.value)


def test_a_range_needs_a_number_of_draws() -> None:
    (space,) = spaces(local={"lr": "0.001..0.1"})
    with pytest.raises(UserError, match="say how many settings to draw with --random N"):
        space.grid()


def test_draws_are_reproducible_and_grow() -> None:
    (space,) = spaces(local={"lr": "0.001..0.1", "batch": "16,32", "epochs": "1..4"})
    few, many, other = space.draw(5, seed=1), space.draw(9, seed=1), space.draw(9, seed=2)
    assert many[:5] == few
    assert many != other
    assert all(0.001 <= one["local.lr"] <= 0.1 and one["local.epochs"] in (1, 2, 3, 4) for one in many)
    (wider,) = spaces(local={"lr": "0.001..0.1"})
    assert [one["local.lr"] for one in wider.draw(5, seed=1)] == [one["local.lr"] for one in few]


def test_draws_from_a_grid_do_not_repeat() -> None:
    (space,) = spaces(local={"lr": "0.1,0.2,0.3", "batch": "16,32"})
    drawn = space.draw(4, seed=0)
    assert len({tuple(one.values()) for one in drawn}) == 4
    assert space.draw(6, seed=0)[:4] == drawn
    assert len(space.draw(100, seed=0)) == 6
    (whole,) = spaces(local={"epochs": "1..3"})
    assert sorted(one["local.epochs"] for one in whole.draw(50, seed=0)) == [1, 2, 3]


def test_wide_ranges_are_drawn_log_uniformly() -> None:
    wide, narrow = Range("local.lr", 0.001, 0.1), Range("local.lr", 0.1, 0.2)
    assert wide.at(0.5) == 0.01
    assert narrow.at(0.5) == 0.15
    assert "log-uniformly" in wide.describe()
    assert "log-uniformly" not in narrow.describe()
    whole = [Range("local.batch", 8, 128, whole=True).at(u / 1000) for u in range(1000)]
    assert (min(whole), max(whole)) == (8, 128)
    assert 400 < sum(value < 32 for value in whole) < 600
