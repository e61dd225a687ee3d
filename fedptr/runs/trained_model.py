"""The trained model of a run folder: its description (model.json), its weights, and both together, ready to predict."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedptr.atomic_files import DamagedFileError, read_tensors
from fedptr.core.client_states import ClientStates
from fedptr.core.federation import Run, count_samples, personal_model, site_of_client, site_of_round
from fedptr.core.method import Site
from fedptr.core.predictor import NAME as CARD
from fedptr.core.predictor import WEIGHTS, ModelCard, Predictor, read_weights
from fedptr.core.randomness import Key
from fedptr.core.task import Classification
from fedptr.data.dataset import Dataset
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.models.networks import ModelPlan, build_model
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.runs.experiment import Experiment, image_shape, load_data, prepare_experiment
from fedptr.runs.final_weights import advise_mending, find_damage, find_in_checkpoint, list_models, save_weights
from fedptr.runs.folder import BEST, CHECKPOINTS
from fedptr.runs.lock import locked
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
    folder: Path, task: Classification, summary: Record | None, advice: str = "", best: bool = False
) -> Run:
    """A global model of a run folder, checked against the checksums of the file and of its summary.

    `advice`: what to do if it does not fit; by default to make it again.
    """
    path = folder / (BEST if best else WEIGHTS)
    told: Any = summary or {}
    if best:
        if "best" not in told:
            raise UserError(f"{folder} kept no best round; run its plan with output.best = true")
        told = told["best"]
    advice = advice or advise_mending(folder, bool(told) and find_in_checkpoint(folder, told) is not None)
    try:
        tensors, _ = read_weights(path)
    except DamagedFileError as error:
        raise UserError(f"{path} is damaged or lost ({error}); {advice}") from None
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
        write_best(run, here, task, out)


def write_best(run: Run, accuracy: float, task: Classification, out: Path) -> None:
    told = {"rounds": run.round, "accuracy": accuracy, "weights_sha256": weights_sha256(run)}
    save_weights(run, task, out / BEST, best=json.dumps(told))


def mend_weights(folder: Path, summary: Record) -> None:
    """Makes the weights of a finished run again that are damaged or lost, and says what cannot be made again."""
    for name, told in list_models(summary).items():
        path = folder / name
        damage = find_damage(path, told)
        if not damage:
            continue
        run = find_in_checkpoint(folder, told)
        if run is not None:
            with locked(folder):
                more = {"best": json.dumps(told)} if name == BEST else {}
                save_weights(run, make_empty_task(read_card(folder), folder, None), path, **more)
            print_notice(f"{path} was made again from the last checkpoint ({damage})")
        else:
            words = "its last checkpoint does not hold it; run its plan again"
            print_notice(f"{path} is damaged or lost ({damage}), and {words}")


def mend_best(out: Path, start: Run, records: list[Record], task: Classification) -> None:
    """Makes best.safetensors again when a run is resumed, if it is damaged or lost and of the checkpoint's round."""
    scores = {record["round"]: record["test_accuracy"] for record in records if "test_accuracy" in record}
    if not scores or describe_best(out):
        return
    best = max(scores, key=lambda t: scores[t])  # the first of several
    if best == start.round:
        write_best(start, scores[best], task, out)
        print_notice(f"{out / BEST} was damaged or lost, and was made again from the checkpoint")
    else:
        print_notice(f"{out / BEST} is damaged or lost: the model of round {best} is kept nowhere else")


def describe_best(out: Path) -> Record:
    """What the summary says of the best round's weights; nothing where none were kept."""
    with contextlib.suppress(DamagedFileError):
        return {"best": json.loads(read_tensors(out / BEST)[1]["best"])}
    return {}
