"""Measures speed and memory, each figure in turns with a reference.

    python benchmarks/bench.py                     all figures, about half an hour; writes results.json and RESULTS.md
    python benchmarks/bench.py --only matching     one figure; the others keep their last results
    python benchmarks/bench.py --quick             small sizes, to check that everything works; writes nothing
    python benchmarks/bench.py --full              also FedPTR's cost from whole rounds, which takes another hour

Our side of every figure is in our_side.py. A figure that cannot be measured is reported with the reason.
"""

from __future__ import annotations

import argparse
import importlib
import time

import bench_results
from bench_results import Row, missing_row
from scale import Scale

FIGURES = {
    "training": "local training",
    "matching": "matching outer step",
    "memory": "peak memory of an outer step",
    "round": "FedAvg round",
    "side": "clients side by side",
    "fedptr": "FedPTR round",
    "cheap": "FedPTR round with the recommended cheap setting",
    "digits": "FedPTR round on digits",
    "sizes": "images of other sizes",
    "visits": "visits of tiny clients",
    "models": "local training of LeNet and ResNet-18",
    "clients": "100 → 100,000 clients",
    "start": "fedptr --help",
    "estimate": "fedptr estimate",
}


def measure_figure(name: str, scale: Scale) -> list[Row]:
    """The rows of one figure; a failure ends them with a row that says why."""
    rows: list[Row] = []
    try:
        for row in importlib.import_module(f"figure_{name}").measure_rows(scale):
            print("  " + bench_results.row_markdown(row, "").strip("| "), flush=True)
            rows.append(row)
    except Exception as error:  # whatever it is, the other figures are still measured
        rows.append(missing_row(FIGURES[name], "", f"{type(error).__name__}: {error}"))
        print("  " + bench_results.row_markdown(rows[-1], "").strip("| "), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures speed and memory.")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES), metavar="NAME", help="figures")
    parser.add_argument("--quick", action="store_true", help="small sizes; nothing is written")
    parser.add_argument("--full", action="store_true", help="FedPTR's cost from whole rounds too")
    asked = parser.parse_args()
    scale = Scale(asked.quick, asked.full)
    if asked.quick:
        print("Small sizes and few repeats: this shows that the benchmarks work, and its values mean nothing.")
    for name in asked.only:
        print(f"{name}: {FIGURES[name]} …", flush=True)
        began = time.perf_counter()
        rows = measure_figure(name, scale)
        if not asked.quick:
            found = {**bench_results.read_results(), name: bench_results.make_entry(rows, time.perf_counter() - began)}
            bench_results.write_results({known: found[known] for known in FIGURES if known in found})


if __name__ == "__main__":
    main()
