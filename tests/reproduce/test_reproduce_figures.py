"""A recipe's curves: every line is named, and every name can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedptr.reproduce import figures
from fedptr.reproduce.outcome import collect_results
from fedptr.reproduce.recipe import load_recipe, make_cells


@pytest.mark.parametrize("name", ["global-methods", "tuning", "table1"])
def test_a_legend_stays_within_its_figure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(name)
    wanted = list(make_cells(recipe, "smoke", 1, Path()))
    rounds = [{"round": t, "test_accuracy": 0.1 * t} for t in range(1, 6)]  # as many as the scale has
    summary = {"accuracy": 0.2, "seconds": 1.0, "bytes_per_round": 1e6, "rounds": len(rounds)}
    outcome = collect_results(recipe, "smoke", 1, wanted, {cell.folder: (summary, rounds) for cell in wanted}, {})
    made: list[Any] = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: made.append(figure) or [])
    figures.plot_curves(outcome, Path("curves"))
    (figure,) = made
    figure.canvas.draw()
    legends = [*figure.legends, *(axes.legend_ for axes in figure.axes if axes.legend_)]
    names = [column.name for column in recipe.columns]
    assert legends
    for legend in legends:
        assert [text.get_text() for text in legend.get_texts()] == names
        box = legend.get_window_extent()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.width
        assert box.y1 <= figure.bbox.height


def test_a_band_is_the_confidence_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("table1").select(["fedavg", "cifar10", "a001", "p100"])
    wanted = list(make_cells(recipe, "smoke", 3, Path()))
    summary = {"accuracy": 0.2, "seconds": 1.0, "bytes_per_round": 1e6, "rounds": 5}
    done = {
        cell.folder: (summary, [{"round": t, "test_accuracy": 0.1 * (1 + cell.plan.run.seed)} for t in range(1, 6)])
        for cell in wanted
    }
    made: list[Any] = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: made.append(figure) or [])
    figures.plot_curves(collect_results(recipe, "smoke", 3, wanted, done, {}), Path("curves"))
    (figure,) = made
    (axes,) = figure.axes
    (line,), (band,) = axes.get_lines(), axes.collections
    assert line.get_ydata() == pytest.approx([20.0] * 5)  # of 10, 20 and 30 %
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((20 - 24.84, 20 + 24.84), abs=0.01)
    assert "mean and 95 % confidence interval of 3 seeds" in figure.get_suptitle()
