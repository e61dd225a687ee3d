"""How much memory this process can still use: what the machine has left, or less if a container has a limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

# By cgroup version: a container's limit, its use, and the part of that which is file cache, freed when needed.
CGROUPS = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def available_bytes(device: str) -> int | None:
    """Bytes left on a device; None if the system does not say."""
    if device.startswith("cuda"):
        unused, _ = torch.cuda.mem_get_info(device)
        return unused + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    left = read_meminfo(Path("/proc/meminfo")) if device == "cpu" else None
    if left is None:
        return None
    return min([left, *bytes_left_in_containers(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def read_meminfo(meminfo: Path) -> int | None:
    """The available bytes according to /proc/meminfo."""
    try:
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):  # not Linux
        return None


def bytes_left_in_containers(mine: Path, root: Path) -> Iterator[int]:
    """Bytes left in each control group of this process; inside a container the group's own path may be hidden."""
    try:
        lines = [line.split(":", 2) for line in mine.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers in CGROUPS:
            top = root / controllers
            group = top / path.strip("/")
            for folder in (group, *group.parents):
                if folder == top or top in folder.parents:
                    yield from bytes_left_in_group(folder, *CGROUPS[controllers])


def bytes_left_in_group(folder: Path, limit: str, usage: str, cache: str) -> Iterator[int]:
    try:
        most, used = (int((folder / name).read_text()) for name in (limit, usage))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        yield max(0, most - used + int(stat.get(cache, 0)))
    except (OSError, ValueError):  # "max", or no such group
        return
