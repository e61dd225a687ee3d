"""What computes a task, in words: everything that decides the last bit of a result, beside the plan and the data."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch

from fedptr.compute.blocks import BlockedTask
from fedptr.compute.compiler import UnavailableError, describe_compiler, find_compiler
from fedptr.compute.convnet_cpp import ConvNetCppTask
from fedptr.core.task import ModelTask

BACKEND = "backend"


def describe_computing(task: ModelTask) -> dict[str, str]:
    """What computes a task. Of torch.compile it is known only after a first use whether it succeeded."""
    found = {BACKEND: task.how, "torch": torch.__version__, "processor": describe_device(task.device)}
    if isinstance(task, BlockedTask):
        found |= {"block size": str(task.block), "evaluation block size": str(task.chunk)}
        found |= {f"compiled {part}": "yes" if fast else "no" for part, fast in task.compiled_parts().items()}
        if task.compiled:
            found["compiler"] = find_compiler_version()
    elif task.device == "cpu":
        found["threads"] = str(torch.get_num_threads())  # threads share every sum; blocks are summed in order
    if isinstance(task, ConvNetCppTask):
        found["convnet.cpp"] = task.library.identity
    return found


def name_backend(task: ModelTask) -> str:
    """What really computed: torch.compile may have failed, for one of its functions or for all."""
    parts = task.compiled_parts().values() if isinstance(task, BlockedTask) else ()
    if all(parts):
        return task.how
    return f"{task.how} and blocks" if any(parts) else "blocks"


def find_changes(before: dict[str, str], now: dict[str, str]) -> dict[str, tuple[str, str]]:
    """What both tell and differs, as (before, now); another backend says it all.

    >>> find_changes({"backend": "winograd", "torch": "2.0"}, {"backend": "winograd", "torch": "2.1"})
    {'torch': ('2.0', '2.1')}
    """
    both = {name: (before[name], now[name]) for name in before if name in now and before[name] != now[name]}
    return {BACKEND: both[BACKEND]} if BACKEND in both else both


@cache
def describe_device(device: str) -> str:
    """The processor, and the instructions that PyTorch uses of it; for a GPU its name."""
    if device != "cpu":
        return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    return f"{name_processor()} with {torch.backends.cpu.get_cpu_capability()}"


def name_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        found = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part"))]
        return found[0]
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def find_compiler_version() -> str:
    try:
        return describe_compiler(find_compiler())
    except UnavailableError:
        return "none"
