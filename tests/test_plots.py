"""Figures for papers and files."""

from __future__ import annotations

from pathlib import Path

from fedptr.methods import find_method
from fedptr.plots import choose_looks, plot_learning_curves


def test_the_axis_of_seconds_says_that_it_is_logarithmic(tmp_path: Path) -> None:
    rounds = [{"round": t, "test_accuracy": 0.1 * t, "seconds": {"total": 0.5}} for t in range(1, 6)]
    looks = choose_looks({"fedavg": find_method("fedavg").look})
    _, svg = plot_learning_curves({"fedavg": [rounds]}, looks, "digits", tmp_path / "curves")
    assert "seconds of computation (logarithmic)" in svg.read_text(), "Matplotlib writes texts as comments"
