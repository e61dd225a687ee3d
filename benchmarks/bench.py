"""The figures of speed and memory, each against a reference that is run in turns with it.

    python benchmarks/bench.py                     all, about half an hour; writes results.json and RESULTS.md
    python benchmarks/bench.py --only matching     one of them; the others keep what was measured before
    python benchmarks/bench.py --quick             small sizes, to see that everything works; writes nothing
    python benchmarks/bench.py --full              FedPTR's cost also from whole rounds, which takes an hour more

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
    "fedptr": "FedPTR round",
    "clients": "100 → 10,000 clients",
    "start": "fedptr --help",
}


def measure_figure(name: str, scale: Scale) -> list[Row]:
    """The rows of one figure as far as they can be had."""
    rows: list[Row] = []
    try:
        for row in importlib.import_module(f"figure_{name}").measure_rows(scale):
            print("  " + bench_results.row_markdown(row, "").strip("| "), flush=True)
            rows.append(row)
    except Exception as error:  # whatever it is, the other figures are wanted too
        rows.append(missing_row(FIGURES[name], "", f"{type(error).__name__}: {error}"))
        print("  " + bench_results.row_markdown(rows[-1], "").strip("| "), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the figures of speed and memory.")
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
