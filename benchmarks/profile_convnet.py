"""Where the ConvNet's C++ spends its time, on one core: the table in docs/speed.md. Needs `perf`.

python benchmarks/profile_convnet.py 32        the argument is the width
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from our_side import make_fast_task
from workload import make_images

from fedptr.types import Batch

IMAGES, SECONDS = 48, 8
KINDS = {
    "matrix products": ("rows_times", "rows_while", "panels", "product", "times_packed", "transposed_times"),
    "transforms": ("products_to_tiles", "tile_to_products", "image_to_factors", "factors_to_image", "columns", "fold"),
    "norm, ReLU, pooling": ("forward", "backward"),
}


def repeat_work(width: int, what: str) -> None:
    """Computes gradients or adjoints for some seconds."""
    torch.set_num_threads(1)
    task = make_fast_task(width)
    task.threads = 1  # type: ignore[attr-defined]
    w, batch = task.init(), Batch(*make_images(IMAGES))
    works: dict[str, Callable[[], object]] = {
        "gradient": lambda: task.grad(w, batch),
        "adjoint": lambda: task.adjoint(w, batch, w),
    }
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        works[what]()


def kind_of_symbol(symbol: str) -> str:
    name = re.sub(r"<.*", "", symbol).split()[-1].split("(")[0]
    return next((known for known, names in KINDS.items() if name in names), "the rest")


def main(width: int) -> None:
    print("| |", " | ".join([*KINDS, "the rest"]), "|")
    for what in ("gradient", "adjoint"):
        with tempfile.TemporaryDirectory() as folder:
            data = str(Path(folder) / "perf.data")
            me = [sys.executable, __file__, str(width), what]
            subprocess.run(["perf", "record", "-q", "-o", data, *me], check=True, stderr=subprocess.DEVNULL)
            report = ["perf", "report", "-i", data, "--stdio", "--sort", "dso,symbol", "--percent-limit", "0.01"]
            lines = subprocess.run(report, capture_output=True, text=True, check=True).stdout.splitlines()
        spent = dict.fromkeys([*KINDS, "the rest"], 0.0)
        for line in lines:
            found = re.match(r"\s*([\d.]+)%\s+convnet-\S+\s+\[\.\]\s+(.*)", line)
            if found:
                spent[kind_of_symbol(found[2])] += float(found[1])
        total = sum(spent.values())
        print(f"| {what}, width {width} |", " | ".join(f"{100 * part / total:.0f} %" for part in spent.values()), "|")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        repeat_work(int(sys.argv[1]), sys.argv[2])
    else:
        main(int(sys.argv[1]))
