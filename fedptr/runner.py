"""Runs a plan and writes its folder.

plan.toml            the complete plan; `fedptr run DIR/plan.toml` repeats the run exactly
split.json           which sample belongs to which client
rounds.jsonl         one line a round
summary.json         the result, its cost, and what it was made with
weights.safetensors  the final global model, by parameter name
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

import fedptr
from fedptr.errors import UserError
from fedptr.experiment import Experiment
from fedptr.federation import Run, federate
from fedptr.plan import Plan

Record = dict[str, Any]
RUN_FILES = ("plan.toml", "split.json", "rounds.jsonl", "summary.json", "weights.safetensors")
OURS = {*RUN_FILES, "compare.json", "table.md", "curves.png", "curves.svg"}
LAST = 5  # the paper's headline number is the mean accuracy of so many last rounds


def execute(
    plan: Plan, experiment: Experiment, out: Path, show: Callable[[Record], None]
) -> tuple[Record, list[Record]]:
    """Trains into an empty folder; returns the summary and every round's record. `show` gets them as they come."""
    (out / "plan.toml").write_text(plan.toml(), encoding="utf-8")
    experiment.split.save(out / "split.json")
    reset_peak_memory()
    began, run, records = time.perf_counter(), None, []
    with (out / "rounds.jsonl").open("w", encoding="utf-8") as lines:
        for run in federate(plan.method, experiment.task, experiment.clients, experiment.test, plan.run, plan.local):
            lines.write(json.dumps(jsonable(run.record), allow_nan=False) + "\n")
            lines.flush()
            records.append(run.record)
            show(run.record)
    assert run is not None
    save_weights(run, experiment, out / "weights.safetensors")
    summary = summarise(plan, experiment, run, records, time.perf_counter() - began)
    (out / "summary.json").write_text(json.dumps(jsonable(summary), indent=2) + "\n", encoding="utf-8")
    return summary, records


def summarise(plan: Plan, experiment: Experiment, run: Run, records: list[Record], seconds: float) -> Record:
    accuracies = [record["test_accuracy"] for record in records if "test_accuracy" in record]
    return {
        "method": plan.method.name,
        "dataset": experiment.dataset.name,
        "rounds": run.round,
        "seed": plan.run.seed,
        "accuracy": sum(accuracies[-LAST:]) / len(accuracies[-LAST:]),
        "accuracy_best": max(accuracies),
        "accuracy_final": accuracies[-1],
        "loss_final": records[-1]["test_loss"],
        "seconds": seconds,
        "seconds_per_round": seconds / len(records),
        "bytes_per_round": sum(record["bytes_up"] + record["bytes_down"] for record in records) / len(records),
        "peak_memory_bytes": peak_memory(),
        "parameters": len(run.w),
        "weights_sha256": weights_sha256(run),
        "split_sha256": experiment.split.sha256,
        "split_draws": experiment.split.draws,
        "data": experiment.dataset.source,
        "device": experiment.task.device,
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    return {
        "fedptr": fedptr.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
    }


def weights_sha256(run: Run) -> str:
    """Of the flat vector's bytes, and of the buffers' where the model has any."""
    digest = hashlib.sha256(run.w.cpu().numpy().tobytes())
    if "buffers" in run.server:
        digest.update(run.server["buffers"].cpu().numpy().tobytes())
    return digest.hexdigest()


def save_weights(run: Run, experiment: Experiment, path: Path) -> None:
    task = experiment.task
    tensors = {**task.parameters(run.w), **task.unpack_buffers(run.server.get("buffers"))}
    # Not save_file, whose files only their owner may read.
    path.write_bytes(safetensors.torch.save({name: tensor.cpu().clone() for name, tensor in tensors.items()}))


def claim(out: Path, force: bool) -> Path:
    """An empty folder for the results. One that holds something is replaced only when asked, and only if ours."""
    try:
        if out.is_dir() and any(out.iterdir()):
            if not force:
                raise UserError(f"{out} already holds something; choose another --out, or add --force to replace it")
            if foreign := not_ours(out):
                raise UserError(f"{foreign} was not made by fedptr, so --force does not replace {out}")
            shutil.rmtree(out)
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be used for results ({error.strerror or error}); choose another --out") from None
    return out


def not_ours(folder: Path) -> Path | None:
    """The first thing in a folder that no run or comparison wrote; a plan alone may have been written by hand."""
    inside = list(folder.rglob("*"))
    foreign = (path for path in inside if path.is_symlink() or not (path.is_dir() or path.name in OURS))
    return next(foreign, None if any(path.name == "rounds.jsonl" for path in inside) else folder)


def fresh_name(stem: str) -> Path:
    """runs/stem, or runs/stem-2 … where that is taken."""
    for number in range(1, sys.maxsize):
        path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        if not path.exists():
            return path
    raise AssertionError


def jsonable(value: Any) -> Any:
    """JSON has no NaN or infinity: null stands for both."""
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def reset_peak_memory() -> None:
    """So that a comparison's later runs are not charged with an earlier one's peak (Linux only)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_memory() -> int:
    try:
        status = Path("/proc/self/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
    except (OSError, StopIteration):
        import resource  # not on Windows, which has no /proc either

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
