"""What `fedptr theory` found: tables for the terminal, theory.json and theory.png."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedptr.atomic_files import write_text
from fedptr.methods import all_methods
from fedptr.plots import DOTS, Look
from fedptr.runs.rounds_file import to_json_values
from fedptr.theory.theorem import RateResult

LAST = 3  # the slope of the last few T is shown too: a rate is about large T


def group_by_problem(results: Sequence[RateResult]) -> list[tuple[str, list[tuple[str, list[RateResult]]]]]:
    """problem -> method -> one result per seed"""
    order = [result.problem for result in results]
    ordered = sorted(results, key=lambda r: order.index(r.problem))  # stable: methods keep the order in which they ran
    found = []
    for problem, group in groupby(ordered, key=lambda r: r.problem):
        same = list(group)
        names = list(dict.fromkeys(r.method for r in same))
        found.append((problem, [(name, [r for r in same if r.method == name]) for name in names]))
    return found


def geometric_mean(values: Sequence[float]) -> float:
    """Over seeds; geometric, as slopes are those of logarithms."""
    return math.exp(fmean(math.log(value) for value in values)) if min(values) > 0 else 0.0


def print_rates(results: Sequence[RateResult], console: Console) -> None:
    """Prints the measured rates, then the conditions of the theorem."""
    T = [trace.T for trace in results[0].traces]
    seeds = 1 + max(result.seed for result in results)
    rates = Table(
        title="min ‖∇L(w)‖² after T rounds" + (f", geometric mean of {seeds} seeds" if seeds > 1 else ""),
        caption="slope: of log against log T. The theorem's bound has −1; steeper agrees with it.",
        box=SIMPLE_HEAD,
    )
    rates.add_column("T =")
    for heading in (*map(str, T), "slope", f"last {LAST}"):
        rates.add_column(heading, justify="right", no_wrap=True)
    for problem, methods in group_by_problem(results):
        rates.add_row(problem, style="bold")
        for name, runs in methods:
            G = [geometric_mean([run.traces[k].G for run in runs]) for k in range(len(T))]
            slopes = [f"{fmean(run.slope(last) for run in runs):.2f}" for last in (0, LAST)]
            rates.add_row(f"  {name}", *(f"{g:.1e}" for g in G), *slopes)
        rates.add_section()
    console.print(rates)
    for result in results:
        if result.seed == 0 and result.conditions:
            held = Table(
                "condition", "held", "by what", title=f"The theorem's conditions: {result.method} on {result.problem}"
            )
            for what, words in result.conditions.items():
                answer, _, why = words.partition(": ")
                held.add_row(what, answer, why, style="bold" if answer == "no" else "")
            console.print(held)


def write_rates(results: Sequence[RateResult], out: Path) -> None:
    """Writes theory.json and theory.png."""
    lines = [{**asdict(r), "slope": r.slope(), "slope_last": r.slope(LAST)} for r in results]
    write_text(out / "theory.json", json.dumps(to_json_values(lines), indent=2, ensure_ascii=False) + "\n")
    plot_rates(results, out / "theory.png")


def plot_rates(results: Sequence[RateResult], path: Path) -> None:
    """Draws a panel for each problem: the measured gradients, the proof's bound, and a line with the stated rate."""
    from matplotlib.figure import Figure

    problems = group_by_problem(results)
    figure = Figure(figsize=(4.4 * len(problems), 4.6), layout="constrained")
    panels = figure.subplots(1, len(problems), squeeze=False)[0]
    for axes, (problem, methods) in zip(panels, problems, strict=True):
        for name, runs in methods:
            T = [trace.T for trace in runs[0].traces]
            G = [geometric_mean([run.traces[k].G for run in runs]) for k in range(len(T))]
            declared = all_methods()[name].look if name in all_methods() else None
            colour, dashes, _ = declared or Look("#e69f00", DOTS)
            axes.plot(T, G, color=colour, linestyle=dashes, marker="o", markersize=4, label=name)
            bounds = [geometric_mean([run.traces[k].bound for run in runs]) for k in range(len(T))]
            if name == "fedptr" and any(map(math.isfinite, bounds)):
                axes.plot(T, bounds, color=colour, linewidth=1, alpha=0.6, label="bound of fedptr, from the proof")
        start = geometric_mean([run.traces[0].G for _, runs in methods for run in runs])
        axes.plot(T, [start * T[0] / t for t in T], color="0.6", linewidth=1, linestyle=":", label="stated rate, 1/T")
        axes.set(xscale="log", yscale="log", xlabel="communication rounds T", title=problem)
        axes.set_xticks(T, [str(t) for t in T])
        axes.minorticks_off()
        axes.grid(color="0.92", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("min over t ≤ T of ‖∇L(w$^t$)‖²")
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle("Convergence on smooth problems, η = 1/(λ√T), against the rate of FedPTR's theorem", fontsize=11)
    figure.savefig(path, dpi=150)
