"""The trained model of a run folder: its description (model.json), its weights, and both together, ready to predict."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedptr.atomic_files import DamagedFileError, read_tensors
from fedptr.core.client_states import ClientStates
from fedptr.core.federation import Run, count_samples, personal_model, site_of_client, site_of_round
from fedptr.core.method import Site
from fedptr.core.model_parts import freeze_parts
from fedptr.core.predictor import NAME as CARD
from fedptr.core.predictor import WEIGHTS, ModelCard, Predictor, read_weights
from fedptr.core.randomness import Key
from fedptr.core.task import ModelTask
from fedptr.data.dataset import Dataset
from fedptr.errors import UserError
from fedptr.headline import headline_of_rounds
from fedptr.messages import print_notice
from fedptr.models.initial_weights import digest_initial_weights
from fedptr.models.networks import ModelPlan, build_model
from fedptr.models.text import learnable_shape
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.runs.experiment import Experiment, image_shape, load_data, make_task, prepare_experiment
from fedptr.runs.final_weights import advise_mending, find_damage, find_in_checkpoint, list_models, save_weights
from fedptr.runs.folder import BEST, CHECKPOINTS
from fedptr.runs.lock import locked
from fedptr.runs.plan import Plan, load_plan
from fedptr.runs.rounds_file import Record
from fedptr.runs.summary import read_finished, weights_sha256
from fedptr.settings import build_settings
from fedptr.types import State

NOT_ALWAYS = (
    "init",
    "init_except",
    "freeze",
    "local",
)  # settings of a model that model.json has only where they are used
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
    unit, network = (dataset.target, dataset.label_mean, dataset.label_std), describe_network(plan.model)
    if dataset.vocabulary:
        return ModelCard(dataset.shape, names, (), (), 0.0, network, made_by, *unit, text=True)
    return ModelCard(image_shape(dataset), names, mean, std, pixel_max, network, made_by, *unit)


def describe_network(plan: ModelPlan) -> dict[str, Any]:
    """The settings with which the network is built again; where its first weights came from is not one."""
    told = asdict(replace(plan, init="", init_except=""))
    return {name: value for name, value in told.items() if value or name not in NOT_ALWAYS}


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


def make_empty_task(card: ModelCard, folder: Path, network: nn.Module | None) -> ModelTask:
    """The task with the network that the weights are for."""
    if network is None and card.network is None:
        raise UserError(
            f"{folder} holds the weights of a module of your own; give one like it: load_model(folder, network=…)"
        )
    if network is None:
        plan: ModelPlan = build_settings(ModelPlan, dict(card.network or {}), f"{folder / CARD}: network")
        network = build_model(plan, card.shape, card.outputs)
        freeze_parts(network, plan.freeze, f"{folder / CARD}: freeze")
    local = str((card.network or {}).get("local", ""))
    shape = learnable_shape(network, card.shape) if card.text else card.shape
    return ModelTask(network, shape, local=local)


def read_final_model(
    folder: Path, task: ModelTask, summary: Record | None, advice: str = "", best: bool = False
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
    expected = task.named_tensors(task.init())
    if {name: value.shape for name, value in tensors.items()} != {name: v.shape for name, v in expected.items()}:
        raise UserError(f"{path} is of another model than the plan beside it; {advice}")
    here = {name: value.to(task.device) for name, value in tensors.items()}
    state: State = {"x": torch.cat([here[layer.name].reshape(-1) for layer in task.layers])}
    for name, value in task.held.items():
        value.copy_(here[name])
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
    task, w = personal_model(plan.method, run, find_site(plan, experiment, run, client), client)
    assert isinstance(task, ModelTask)
    card = describe_model(plan, experiment.dataset, run.round)
    card = replace(card, made_by={**card.made_by, "client": client})
    return Predictor(task.to_module(w, run.server.get("buffers")), card)


def find_site(plan: Plan, experiment: Experiment, run: Run, client: int) -> Site:
    """The site of a client when it is evaluated after this run."""
    sizes = count_samples(experiment.clients)
    if client not in sizes:
        raise UserError(f"there is no client {client}; clients with data are {', '.join(map(str, sizes))[:200]}")
    server = Site(experiment.task, plan.local, Key(plan.run.seed), 0, len(sizes), numbers=len(experiment.clients))
    at = site_of_round(server, plan.local, plan.run, run.round - 1)
    share = len(sizes) * sizes[client] / sum(sizes.values())
    return site_of_client(at, plan.run.seed, client, experiment.clients[client], sizes[client], share)


def keep_best(run: Run, records: list[Record], task: ModelTask, out: Path) -> None:
    """Writes best.safetensors if no earlier round was as good."""
    name = headline_of_rounds([run.record]).test
    here = run.record.get(name)
    before = (record.get(name, -math.inf) for record in records if record["round"] < run.round)
    if here is not None and here > max(before, default=-math.inf):
        write_best(run, here, task, out)


def write_best(run: Run, score: float, task: ModelTask, out: Path) -> None:
    key = headline_of_rounds([run.record]).key
    told = {"rounds": run.round, key: score, "weights_sha256": weights_sha256(run)}
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
                save_weights(run, make_first_task(folder, told["rounds"]), path, **more)
            print_notice(f"{path} was made again from the last checkpoint ({damage})")
        else:
            words = "its last checkpoint does not hold it; run its plan again"
            print_notice(f"{path} is damaged or lost ({damage}), and {words}")


def make_first_task(folder: Path, round_: int) -> ModelTask:
    """The task of a run; with the weights that it began with where some are frozen, as no checkpoint has these."""
    empty = make_empty_task(read_card(folder), folder, None)
    if not empty.held:
        return empty
    plan = load_plan(folder)
    header = CheckpointStore(folder / CHECKPOINTS).read_server(round_)[1]
    if header.get("initial weights", "") != digest_initial_weights(plan.model):
        raise UserError(f"model.init {plan.model.init} changed since {folder} was run; its frozen parts are lost")
    return make_task(plan, load_data(plan.data), "cpu")


def mend_best(out: Path, start: Run, records: list[Record], task: ModelTask) -> None:
    """Makes best.safetensors again when a run is resumed, if it is damaged or lost and of the checkpoint's round."""
    name = headline_of_rounds(records).test
    scores = {record["round"]: record[name] for record in records if name in record}
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
