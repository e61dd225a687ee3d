"""A recipe's curves: every line is named, and every name can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedptr.reproduce import figures
from fedptr.reproduce.outcome import gather
from fedptr.reproduce.recipe import cells, load


@pytest.mark.parametrize("name", ["global-methods", "tuning", "table1"])
def test_a_legend_stays_within_its_figure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load(name)
    wanted = list(cells(recipe, "smoke", 1, Path()))
    rounds = [{"round": t, "test_accuracy": 0.1 * t} for t in range(1, 6)]  # as many as the scale has
    summary = {"accuracy": 0.2, "seconds": 1.0, "bytes_per_round": 1e6, "rounds": len(rounds)}
    outcome = gather(recipe, "smoke", 1, wanted, {cell.folder: (summary, rounds) for cell in wanted}, {})
    made: list[Any] = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: made.append(figure) or [])
    figures.plot(outcome, Path("curves"))
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
