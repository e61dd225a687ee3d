"""Peak memory of one outer step, each in a separate process.

Two steps are taken: the first one triggers any compilation. Then freed memory is returned to the system, and the
figure is what the second step adds to the resident memory at its peak.
`python benchmarks/figure_memory.py ours 128 10 100` prints one figure.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Iterator

from bench_results import Goal, Row, make_row
from scale import Scale

from fedptr.runs.summary import peak_memory, reset_peak_memory


def peak_bytes(who: str, width: int, R: int, images: int) -> int:
    """Bytes a step needs at its peak, on top of what was used before."""
    from figure_matching import unrolled_work
    from our_side import make_matching_problem

    step = make_matching_problem(width, images, R).solve if who == "ours" else unrolled_work(width, images, R)
    for _ in range(2):
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
        reset_peak_memory()
        before = peak_memory()
        step()
    return peak_memory() - before


def measure_peaks(repeats: int, *arguments: object) -> list[float]:
    command = [sys.executable, __file__, *map(str, arguments)]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(repeats)]
    return [float(json.loads(output)) for output in outputs]


def measure_rows(scale: Scale) -> Iterator[Row]:
    repeats, images = 1 if scale.quick else 3, scale(100)
    for width in (scale(32), scale(128)):
        name = f"peak memory of an outer step, {images} images, width {width}"
        ours = measure_peaks(repeats, "ours", width, 10, images)
        theirs = measure_peaks(repeats, "unrolled", width, 10, images)
        longer = measure_peaks(repeats, "ours", width, 40, images)
        sizes = f"{min(ours) / 1e6:.0f} against {min(theirs) / 1e6:.0f} MB"
        parts = [a / b for a, b in zip(ours, theirs, strict=True)]
        yield make_row(f"{name}, R=10", "unrolled autograd", parts, "×", Goal("≤", 1 / 3), note=sizes)
        growth = [100 * (b / a - 1) for a, b in zip(ours, longer, strict=True)]
        yield make_row(f"{name}: growth from R=10 to R=40", "ours at R=10", growth, "%", Goal("<", 10))


if __name__ == "__main__":
    who, *numbers = sys.argv[1:]
    print(json.dumps(peak_bytes(who, *map(int, numbers))))
