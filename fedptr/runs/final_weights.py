"""weights.safetensors and best.safetensors: plain safetensors that show whether they are still what was written.

Their metadata has a checksum of the file (`sha256`) and one of the model (`weights_sha256`), which is in summary.json,
too. Files of earlier versions have none. What is lost or damaged is made again from the last checkpoint, if that holds
the same model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedptr.atomic_files import DamagedFileError
from fedptr.core.client_states import ClientStates
from fedptr.core.federation import Run
from fedptr.core.predictor import NAME as CARD
from fedptr.core.predictor import WEIGHTS, read_weights, write_weights
from fedptr.core.task import ModelTask
from fedptr.runs.checkpoint import INDEX, CheckpointStore
from fedptr.runs.folder import BEST, CHECKPOINTS
from fedptr.runs.rounds_file import Record
from fedptr.runs.summary import weights_sha256

Told = dict[str, Any]  # of a model: `rounds` and `weights_sha256`


def save_weights(run: Run, task: ModelTask, path: Path, **more: str) -> None:
    """The global model, by parameter name, with `more` metadata."""
    write_weights(
        path, task.named_tensors(run.w, run.server.get("buffers")), {"weights_sha256": weights_sha256(run), **more}
    )


def list_models(summary: Record) -> dict[str, Told]:
    """The files of weights that a finished run has, and what its summary tells of them."""
    best = summary.get("best")
    return {WEIGHTS: summary, **({BEST: best} if isinstance(best, dict) else {})}


def find_damage(path: Path, told: Told) -> str:
    """Why a file of weights is not the one that was written; empty where it is.

    A run from an archive has no weights and no model.json, and has not lost them.
    """
    if not path.exists() and not path.with_name(CARD).exists():
        return ""
    try:
        _, header = read_weights(path)
    except DamagedFileError as error:
        return str(error)
    expected = told.get("weights_sha256")
    if header.get("weights_sha256", expected) != expected:
        return f"{path.name} holds another model"
    return ""


def find_in_checkpoint(folder: Path, told: Told) -> Run | None:
    """The model that was told of, from the last checkpoint; None if that is of another round, or not sound."""
    try:
        tensors, _ = CheckpointStore(folder / CHECKPOINTS).read_server(told["rounds"])
    except DamagedFileError:
        return None
    server = {name.removeprefix("server/"): value for name, value in tensors.items() if name != INDEX}
    run = Run(told["rounds"], server, ClientStates())
    return run if "x" in server and weights_sha256(run) == told.get("weights_sha256") else None


def describe_damage(folder: Path, summary: Record | None) -> list[str]:
    """A sentence about every file of a finished run's weights that is damaged or lost, with what to do."""
    found = []
    for name, told in list_models(summary).items() if summary else ():
        if damage := find_damage(folder / name, told):
            advice = advise_mending(folder, find_in_checkpoint(folder, told) is not None)
            found.append(f"{folder / name} is damaged or lost ({damage}); {advice}")
    return found


def advise_mending(folder: Path, again: bool) -> str:
    """What to do about weights that are damaged or lost; `again`: the last checkpoint holds them."""
    return f"make it again with `fedptr resume {folder}`" if again else "run its plan again"
