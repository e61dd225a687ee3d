"""The folder of a run or a comparison: its name, and whether it may be taken."""

from __future__ import annotations

import itertools
import re
import shutil
import sys
from pathlib import Path

from fedptr.errors import UserError
from fedptr.runs import lock
from fedptr.runs.leftovers import CHECKPOINTS as CHECKPOINTS
from fedptr.runs.leftovers import UNFINISHED

MOST_SEEDS = 1000  # of a comparison; each is a run of every method
BEST = "best.safetensors"
FAILURE = "failure.txt"
AUDIT = "audit"  # with the runs of its shadows, which are no results of their own
# Folders in which everything is ours.
WHOLE = {CHECKPOINTS, UNFINISHED, "tensorboard", "mlflow", "wandb", "node-states", AUDIT}
PICTURES = r"round\d{4,}\.(png|safetensors)"  # in auxiliary/
RUN_FILES = (
    "plan.toml",
    "split.json",
    "rounds.jsonl",
    "summary.json",
    "class_scores.json",
    "weights.safetensors",
    "model.json",
    "model.pt2",
    "model.torchscript",
    "model.onnx",
    BEST,
    "mlflow_run.txt",
    "wandb_run.txt",
    "deploy.toml",
    "flower.json",
    "status.json",
    FAILURE,
    lock.NAME,
)
COMPARISON_FILES = ("compare.toml", "compare.json", "table.md", "curves.png", "curves.svg", "report.html")
THEORY_FILES = ("theory.json", "theory.png")
NAMES = [*map(re.escape, (*RUN_FILES, *COMPARISON_FILES, *THEORY_FILES)), PICTURES]
# A file of ours, one that was put aside, or one that a kill left half-written.
OURS = re.compile(rf"(\.?)({'|'.join(NAMES)})(\.damaged|\.\d+\.tmp)?")
HALF_WRITTEN = re.compile(r"\..+\.\d+\.tmp")


def claim_folder(out: Path, force: bool) -> Path:
    """An empty folder for the results. One that holds something is replaced only when asked, and only if ours."""
    try:
        if out.is_dir() and any(out.iterdir()):
            if not force:
                words = "choose another --out, add --force to replace it, or continue with `fedptr resume`"
                raise UserError(f"{out} already holds something; {words}")
            if foreign := find_foreign_file(out):
                raise UserError(f"{foreign} was not made by fedptr, so --force does not replace {out}")
            with lock.locked(out):
                shutil.rmtree(out)
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be used for results ({error.strerror or error}); choose another --out") from None
    return out


def find_foreign_file(folder: Path) -> Path | None:
    """The first thing in a folder that no run or comparison wrote; a plan alone may have been written by hand.

    A half-written file is a sign of ours: a kill may come within the first write.
    """
    inside = list(folder.rglob("*"))
    for path in inside:
        if path.is_symlink() or not (
            path.is_dir() or WHOLE & set(path.relative_to(folder).parts[:-1]) or OURS.fullmatch(path.name)
        ):
            return path
    signs = ("rounds.jsonl", "deploy.toml", lock.NAME, *THEORY_FILES)
    return None if any(path.name in signs or HALF_WRITTEN.fullmatch(path.name) for path in inside) else folder


def new_folder_name(stem: str) -> Path:
    """runs/stem, or runs/stem-2 … where that is taken."""
    for number in range(1, sys.maxsize):
        path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        if not path.exists():
            return path
    raise AssertionError


def rename_aside(folder: Path, why: str) -> Path:
    """Gives the folder a name that nothing has yet."""
    names = (f"{folder.name}.{why}{'' if number == 1 else number}" for number in itertools.count(1))
    aside = next(path for name in names if not (path := folder.with_name(name)).exists())
    folder.rename(aside)
    return aside
