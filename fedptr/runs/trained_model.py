"""The trained model of a run folder: its description (model.json), its weights, and both together, ready to predict."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse
from torch import nn

from fedptr.atomic_files import DamagedFileError, read_tensors, write_tensors
from fedptr.core.client_states import ClientStates
from fedptr.core.federation import Run, count_samples, personal_model, site_of_client, site_of_round
from fedptr.core.method import Site
from fedptr.core.predictor import NAME as CARD
from fedptr.core.predictor import WEIGHTS, ModelCard, Predictor
from fedptr.core.randomness import Key
from fedptr.core.task import Classification
from fedptr.data.dataset import Dataset
from fedptr.errors import UserError
from fedptr.models.networks import ModelPlan, build_model
from fedptr.regular_files import read_bytes
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.runs.experiment import Experiment, image_shape, load_data, prepare_experiment
from fedptr.runs.folder import BEST, CHECKPOINTS
from fedptr.runs.plan import Plan, load_plan
from fedptr.runs.rounds_file import Record
from fedptr.runs.summary import read_finished, weights_sha256
from fedptr.settings import build_settings
from fedptr.types import State

DARK = 127  # pixels that nowhere exceed this are not out of 255


def describe_model(plan: Plan, dataset: Dataset, rounds: int) -> ModelCard:
    """What model.json says of a run's model."""
    pixel_max = 0.0
    if dataset.train_x.dtype.kind == "u":
        largest = float(dataset.train_x.max()) if dataset.train_x.size else 255.0  # a server may have no images
        pixel_max = largest if 0 < largest <= DARK else 255.0
    made_by = {"method": plan.method.name, "dataset": dataset.name, "rounds": rounds}
    names = tuple(map(str, dataset.classes))
    mean, std = (tuple(map(float, values)) for values in (dataset.mean, dataset.std))
    return ModelCard(image_shape(dataset), names, mean, std, pixel_max, asdict(plan.model), made_by)


def load_model(
    folder: str | Path, client: int | None = None, best: bool = False, network: nn.Module | None = None
) -> Predictor:
    """The trained model of a run folder, which takes raw inputs.

    The last global model, or with `best` that of the best round (`output.best = true`), or the one that this client
    would use: for that the run's data and its last checkpoint are needed. `network` is for folders that `run.save`
    wrote of a module of your own: one like it, whose weights are replaced.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name the folder of a run")
    if client is not None:
        return load_client_model(folder, client)
    card = read_card(folder)
    task = make_empty_task(card, folder, network)
    run = read_final_model(folder, task, read_summary(folder), best=best)
    return Predictor(task.to_module(run.w, run.server.get("buffers")), card)


def read_card(folder: Path) -> ModelCard:
    """model.json; for a run of an earlier version, or one that is not finished, from its plan and its data."""
    if (folder / CARD).exists() or not (folder / "plan.toml").is_file():
        return ModelCard.load(folder)
    plan = load_plan(folder)
    return describe_model(plan, load_data(plan.data), plan.run.rounds)


def read_summary(folder: Path) -> Record | None:
    """None for a folder that `run.save` wrote."""
    if not (folder / "plan.toml").exists():
        return None
    try:
        return read_finished(folder)[0]
    except DamagedFileError as error:
        raise UserError(f"{error}; finish it with `fedptr resume {folder}`") from None


def make_empty_task(card: ModelCard, folder: Path, network: nn.Module | None) -> Classification:
    """The task with the network that the weights are for."""
    if network is None and card.network is None:
        raise UserError(
            f"{folder} holds the weights of a module of your own; give one like it: load_model(folder, network=…)"
        )
    if network is None:
        plan: ModelPlan = build_settings(ModelPlan, dict(card.network or {}), f"{folder / CARD}: network")
        network = build_model(plan, card.shape, len(card.classes))  # type: ignore[arg-type]
    return Classification(network, card.shape, len(card.classes))


def read_final_model(
    folder: Path, task: Classification, summary: Record | None, advice: str = "run its plan again", best: bool = False
) -> Run:
    """A global model of a run folder, checked against the checksum in its summary; `advice` if it does not fit."""
    path = folder / (BEST if best else WEIGHTS)
    told: Any = summary or {}
    if best:
        if "best" not in told:
            raise UserError(f"{folder} kept no best round; run its plan with output.best = true")
        told = told["best"]
    try:
        tensors = parse(read_bytes(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); {advice}") from None
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}); {advice}") from None
    state: State = {"x": task.init()}
    expected = {**task.parameters(state["x"]), **task.unpack_buffers(None)}
    if {name: value.shape for name, value in tensors.items()} != {name: v.shape for name, v in expected.items()}:
        raise UserError(f"{path} is of another model than the plan beside it; {advice}")
    here = {name: value.to(task.device) for name, value in tensors.items()}
    state["x"] = torch.cat([here[layer.name].reshape(-1) for layer in task.layers])
    if task.initial_buffers() is not None:
        state["buffers"] = task.pack_buffers(here)
    run = Run(told.get("rounds", 0), state, ClientStates())
    if told and weights_sha256(run) != told["weights_sha256"]:
        raise UserError(f"{path} is not the model of this run: its sha256 does not fit; {advice}")
    return run


def load_client_model(folder: Path, client: int) -> Predictor:
    """The model that a client would use after the newest checkpoint."""
    plan = load_plan(folder)
    kept = replace(plan, split=replace(plan.split, file=str(folder / "split.json")))
    experiment = prepare_experiment(kept if (folder / "split.json").is_file() else plan)
    store = CheckpointStore(folder / CHECKPOINTS)
    rounds = store.rounds()
    if not rounds:
        raise UserError(f"{folder} has no checkpoint, which holds its clients' models; run its plan again")
    try:
        run, _ = store.load(rounds[0], experiment.task.device)
    except DamagedFileError as error:
        raise UserError(f"the newest checkpoint of {folder} is damaged ({error}); `fedptr resume {folder}`") from None
    w = personal_model(plan.method, run, find_site(plan, experiment, run, client), client)
    card = describe_model(plan, experiment.dataset, run.round)
    card = replace(card, made_by={**card.made_by, "client": client})
    return Predictor(experiment.task.to_module(w, run.server.get("buffers")), card)


def find_site(plan: Plan, experiment: Experiment, run: Run, client: int) -> Site:
    """The site of a client when it is evaluated after this run."""
    sizes = count_samples(experiment.clients)
    if client not in sizes:
        raise UserError(f"there is no client {client}; clients with data are {', '.join(map(str, sizes))[:200]}")
    server = Site(experiment.task, plan.local, Key(plan.run.seed), 0, len(sizes), numbers=len(experiment.clients))
    at = site_of_round(server, plan.local, plan.run.seed, run.round - 1)
    share = len(sizes) * sizes[client] / sum(sizes.values())
    return site_of_client(at, plan.run.seed, client, experiment.clients[client], sizes[client], share)


def keep_best(run: Run, records: list[Record], task: Classification, out: Path) -> None:
    """Writes best.safetensors if no earlier round was as accurate."""
    here = run.record.get("test_accuracy")
    before = (record.get("test_accuracy", -1.0) for record in records if record["round"] < run.round)
    if here is not None and here > max(before, default=-1.0):
        tensors = {**task.parameters(run.w), **task.unpack_buffers(run.server.get("buffers"))}
        told = {"rounds": run.round, "accuracy": here, "weights_sha256": weights_sha256(run)}
        write_tensors(out / BEST, tensors, {"best": json.dumps(told)})


def describe_best(out: Path) -> Record:
    """What the summary says of the best round's weights; nothing where none were kept."""
    with contextlib.suppress(DamagedFileError):
        return {"best": json.loads(read_tensors(out / BEST)[1]["best"])}
    return {}
