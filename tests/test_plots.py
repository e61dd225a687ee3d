"""Figures for papers and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from fedptr.methods import find_method
from fedptr.plots import choose_looks, draw_band, plot_learning_curves, save_figure


def test_the_axis_of_seconds_says_that_it_is_logarithmic(tmp_path: Path) -> None:
    rounds = [{"round": t, "test_accuracy": 0.1 * t, "seconds": {"total": 0.5}} for t in range(1, 6)]
    looks = choose_looks({"fedavg": find_method("fedavg").look})
    _, svg = plot_learning_curves({"fedavg": [rounds]}, looks, "digits", tmp_path / "curves")
    assert "seconds of computation (logarithmic)" in svg.read_text(), "Matplotlib writes texts as comments"


def test_a_wide_band_does_not_stretch_the_axes(tmp_path: Path) -> None:
    figure = Figure()
    axes = figure.subplots()
    x, mean = np.arange(5), np.linspace(40, 60, 5)
    axes.plot(x, mean)
    draw_band(axes, x, mean - 500, mean + 500, "#0072B2", 0.1)
    assert 35 < axes.get_ylim()[0] < 40 < 60 < axes.get_ylim()[1] < 65
    one, other = (save_figure(figure, tmp_path / name)[0] for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()
    with Image.open(one) as image:
        assert image.mode == "P"
