"""`model.init`: a model that starts from the weights of a file instead of random ones.

The file is safetensors with parameters and buffers by name, such as weights.safetensors of a run; a run's folder stands
for that file. Nothing is unpickled. Every name and shape must fit; what `model.init_except` means by its patterns is
not taken from the file, and keeps the values that the seed gives it, such as a new last layer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedptr.atomic_files import DamagedFileError, compute_checksum, unpack_tensors
from fedptr.core.model_parts import list_names, match_names
from fedptr.core.predictor import WEIGHTS
from fedptr.core.task import ModelTask
from fedptr.errors import UserError
from fedptr.models.networks import ModelPlan
from fedptr.regular_files import expand_home, read_bytes
from fedptr.tensor_bytes import copy_to_cpu
from fedptr.types import State

CONVERT = (
    'python -c "import sys, torch, safetensors.torch as s; '
    's.save_file(torch.load(sys.argv[1], weights_only=True), sys.argv[2])" OLD.pt NEW.safetensors'
)
PICKLES = (b"PK\x03\x04", b"\x80")  # how files of torch.save begin


def load_initial_weights(model: nn.Module, plan: ModelPlan) -> list[str]:
    """Replaces the model's weights by those of `model.init`; returns the names that keep their values."""
    if not plan.init:
        if plan.init_except:
            raise UserError("model.init_except is for a model that starts from a file; set model.init, or leave it out")
        return []
    path = find_weights(plan.init)
    given, own = parse_weights(read_weights_file(path), path), tensors_of(model)
    kept = set(match_names(plan.init_except, {**own, **given}, "model.init_except"))
    check_fit(path, plan, given, own, kept, known=set(model.state_dict()))
    with torch.no_grad():
        for name, value in own.items():
            if name not in kept and name in given:
                value.copy_(given[name])
    return [name for name in own if name in kept]


def digest_initial_weights(plan: ModelPlan) -> str:
    """The sha256 of the file that `model.init` names; empty if it names none."""
    return hashlib.sha256(read_weights_file(find_weights(plan.init))).hexdigest() if plan.init else ""


def digest_first_model(task: ModelTask) -> str:
    """The sha256 of all that a model starts with: server and nodes must have the same where nodes are not sent it."""
    return compute_checksum(copy_to_cpu(task.named_tensors(task.init())), {})


def find_weights(init: str) -> Path:
    """The file itself: of a run's folder, its final weights."""
    path = expand_home(init)
    return path / WEIGHTS if path.is_dir() else path


def read_weights_file(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        words = "name a safetensors file, or the folder of a finished run"
        raise UserError(f"model.init {path} cannot be read ({error.strerror}); {words}") from None


def parse_weights(content: bytes, path: Path) -> State:
    """The tensors of a safetensors file, by name."""
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        if "sha256" in header.get("__metadata__", {}):  # a file of ours shows whether it is damaged
            return unpack_tensors(content, path.name)[0]
        return safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        if content.startswith(PICKLES):  # only now: a sound file may begin like one
            words = "which can run code when it is read; convert it once with"
            raise UserError(f"model.init {path} is a pickle, {words}: {CONVERT}") from None
        raise UserError(f"model.init {path} is not a sound safetensors file; name another") from None
    except DamagedFileError as error:
        raise UserError(f"model.init {path} is damaged ({error}); name another") from None


def tensors_of(model: nn.Module) -> State:
    """The parameters and buffers of a model, by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def check_fit(
    path: Path, plan: ModelPlan, given: Mapping[str, Tensor], own: Mapping[str, Tensor], kept: set[str], known: set[str]
) -> None:
    """Raises one sentence with all names that do not fit; `known`: names of the model's state_dict, tied ones too."""
    missing = [name for name in own if name in known and name not in given and name not in kept]
    unexpected = [name for name in given if name not in own and name not in known and name not in kept]
    common = [name for name in own if name in given and name not in kept]
    shaped = [name for name in common if given[name].shape != own[name].shape]
    sizes = [f"{name} ({show_shape(given[name])}, not {show_shape(own[name])})" for name in shaped]
    lists = {"it lacks ": missing, "it has in addition ": unexpected, "of another shape: ": sizes}
    words = "; ".join(what + list_names(names, 6) for what, names in lists.items() if names)
    if words:
        first = (missing + shaped + unexpected)[0]
        raise UserError(
            f"model.init {path} does not fit the model {plan.name}: {words}; use the model it is of, or name such "
            f"parts in model.init_except, such as {first.rpartition('.')[0] or first}.*, to keep their random values"
        )
    if wrong := [name for name in common if not bool(given[name].isfinite().all())]:
        raise UserError(f"model.init {path}: {list_names(wrong, 6)} has numbers that are not finite; name another file")


def show_shape(value: Tensor) -> str:
    return "×".join(map(str, value.shape)) or "a number"
