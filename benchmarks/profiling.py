"""Where the time of the compiled gradient and adjoint goes, on one core: the table in docs/speed.md.

python benchmarks/profiling.py 32        a width; compiles its code anew, with names for the profiler
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch._inductor.config
from torch.profiler import profile
from work import CLASSES, SHAPE, network, photos

from fedptr import heap
from fedptr.blocks import Blocked, block_size
from fedptr.task import Batch

REPEATS = 10


def kind(name: str) -> str:
    if "cpp_fused" in name:
        return "fused"
    return "convolutions" if "convolution" in name else "else"


def main(width: int) -> None:
    torch._inductor.config.cpp.enable_kernel_profile = True
    heap.keep()
    torch.set_num_threads(1)
    block = block_size(width * 32 * 32 * 4, [500, 100])
    task = Blocked(network(width), SHAPE, CLASSES, block=block, compiled=True)
    w, batch = task.init(), Batch(*photos(block))
    works: dict[str, Callable[[], object]] = {
        "gradient": lambda: task.grad(w, batch),
        "adjoint": lambda: task.adjoint(w, batch, w),
    }
    for name, f in works.items():
        for _ in range(3):
            f()
        with profile() as profiled:
            for _ in range(REPEATS):
                f()
        spent = dict.fromkeys(("convolutions", "fused", "else"), 0.0)
        for event in profiled.key_averages():
            spent[kind(event.key)] += event.self_cpu_time_total / 1000 / REPEATS
        total = sum(spent.values())
        parts = " | ".join(f"{100 * part / total:.0f} %" for part in spent.values())
        print(f"| {name}, width {width} | {parts} | {total:.0f} ms for {block} images", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
