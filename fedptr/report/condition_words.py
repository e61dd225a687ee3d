"""An experimental condition in words: a short heading, and a sentence or two about how it was trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedptr.data.partition import SplitPlan
from fedptr.messages import count_noun
from fedptr.runs.plan import Plan
from fedptr.runs.same_run import Settings

IN_HEADING = {"data.name", "data.subset", "split.clients", "run.rounds"}
OF_SPLIT = {"split.kind", "split.alpha", "split.shards", "split.classes", "split.sigma", "split.file"}
WORDS = {
    "data.number": "subset number",
    "data.subset_test": "test images",
    "data.validation": "validation part",
    "local.augment": "augmentation",
    "local.batch": "batch size",
    "local.clip": "gradients clipped at",
    "local.decay": "learning-rate decay",
    "local.epochs": "local epochs",
    "local.lr": "learning rate",
    "local.momentum": "momentum",
    "local.optimiser": "optimiser",
    "local.schedule": "learning-rate schedule",
    "local.warmup": "warm-up rounds",
    "local.weight_decay": "weight decay",
    "model.depth": "depth",
    "model.name": "model",
    "model.width": "width",
    "run.participation": "participation",
    "split.test": "test sets of the clients",
}
OPTIMISERS = {"adam": "Adam", "adamw": "AdamW"}
WITH_WIDTH = ("convnet", "mlp", "resnet18")
OFF = {
    "data.validation": "tested on the test set",
    "local.clip": "no gradient clipping",
    "local.momentum": "no momentum",
    "local.weight_decay": "no weight decay",
}


def write_heading(plan: Plan, unusual: Settings) -> str:
    """What is trained on what, for how long, and in which settings this differs from the rest of the page."""
    images = f" ({plan.data.subset:,} training images)" if plan.data.subset else ""
    parts = [
        Path(plan.data.name).stem + images,
        count_noun(plan.split.clients, "client") if plan.split.clients else "a client for every user",
        count_noun(plan.run.rounds, "round"),
    ]
    if unusual.keys() & OF_SPLIT:
        parts.append(name_split(plan.split))
    parts += [name_setting(name, value) for name, value in unusual.items() if name not in IN_HEADING | OF_SPLIT]
    return ", ".join(parts)


def describe_training(plan: Plan) -> str:
    """How the data is spread over the clients, who takes part, and how clients train."""
    share, model = plan.run.participation, plan.model
    who = "all clients take part" if share == 1 else f"{100 * share:g} % of the clients take part"
    width = f" of width {model.width}" if model.width and model.name in WITH_WIDTH else ""
    local, epochs = plan.local, count_noun(plan.local.epochs, "epoch")
    optimiser = "" if local.optimiser == "sgd" else f"{OPTIMISERS[local.optimiser]}, "
    schedule = "" if local.schedule == "constant" else f" ({local.schedule} schedule)"
    part = f"{100 * plan.data.validation:g} % of the training samples, held out, stand in for the test set"
    tested = f" {part}: accuracies here are not on the test set." if plan.data.validation else ""
    training = f"{optimiser}learning rate {local.lr:g}{schedule}, batches of {local.batch}, {epochs} a round"
    return (
        f"{describe_split(plan.split)} In every round {who}. Model: {model.name}{width}. "
        f"Local training: {training}.{tested}"
    )


def find_unusual(tables: Sequence[Settings]) -> list[Settings]:
    """Of every table, the settings that are not what most tables have.

    >>> find_unusual([{"lr": 1, "m": 0}, {"lr": 1, "m": 0}, {"lr": 2, "m": 0}])
    [{}, {}, {'lr': 2}]
    """
    usual = find_usual(tables)
    return [{name: value for name, value in one.items() if value != usual.get(name)} for one in tables]


def find_usual(tables: Sequence[Settings]) -> Settings:
    """The value of each setting that most tables have; of several that are as frequent, the first.

    Only of settings that all tables have.
    """
    shared = [name for name in tables[0] if all(name in one for one in tables)]
    usual: Settings = {}
    for name in shared:
        values = {repr(one[name]): one[name] for one in reversed(tables)}
        usual[name] = values[Counter(repr(one[name]) for one in tables).most_common(1)[0][0]]
    return usual


def name_setting(name: str, value: Any) -> str:
    if value == 0 and name in OFF:
        return OFF[name]
    if name == "run.participation":
        return f"{100 * value:g} % participation"
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{WORDS[name]} {shown}" if name in WORDS else f"{name} = {shown}"


def name_split(split: SplitPlan) -> str:
    if split.file:
        return f"split from {Path(split.file).name}"
    return {
        "dirichlet": f"Dirichlet split α = {split.alpha:g}",
        "dirichlet-by-client": f"Dirichlet split by client α = {split.alpha:g}",
        "shards": f"{count_noun(split.shards, 'shard')} per client",
        "classes": f"{count_noun(split.classes, 'class', 'classes')} per client",
        "quantity": f"clients of different sizes, σ = {split.sigma:g}",
        "iid": "evenly mixed (iid)",
        "users": "split by user",
    }[split.kind]


def describe_split(split: SplitPlan) -> str:
    if split.file:
        return f"The split is read from {Path(split.file).name}."
    smaller = "the smaller, the more the clients differ"
    return {
        "dirichlet": f"Dirichlet draws spread every class over the clients (α = {split.alpha:g}; {smaller}).",
        "dirichlet-by-client": f"A Dirichlet draw is every client’s mix of classes (α = {split.alpha:g}; {smaller}).",
        "shards": f"Samples are sorted by class and cut, and every client has {count_noun(split.shards, 'shard')}.",
        "classes": f"Every client has samples of {count_noun(split.classes, 'class', 'classes')}.",
        "quantity": f"Clients differ in the number of their samples (log-normal, σ = {split.sigma:g}).",
        "iid": "Samples are spread evenly over the clients (iid).",
        "users": "Every client has the samples of whole users.",
    }[split.kind]
