"""From a plan to what the engine needs: the data, the split, the clients and the task."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
import torch

from fedptr import samples
from fedptr.data.dataset import Dataset, subset
from fedptr.data.load import load
from fedptr.data.partition import partition
from fedptr.data.split import Split
from fedptr.errors import UserError
from fedptr.keys import Key
from fedptr.models import build
from fedptr.plan import DataPlan, Plan
from fedptr.samples import Samples
from fedptr.task import Classification


@dataclass(frozen=True)
class Experiment:
    dataset: Dataset
    split: Split
    task: Classification
    clients: list[Samples]
    test: Samples


def load_data(plan: DataPlan) -> Dataset:
    """The dataset a plan names, or its subset."""
    dataset = load(plan.name, plan.dir)
    n_test = plan.subset_test or min(plan.subset, len(dataset.test_y))
    return subset(dataset, plan.subset, n_test, plan.seed)


def prepare(plan: Plan) -> Experiment:
    """Everything up to the first round."""
    if plan.machine.threads:
        torch.set_num_threads(plan.machine.threads)
    device = choose_device(plan.machine.device)
    dataset = load_data(plan.data)
    split = partition(dataset.train_y, len(dataset.classes), plan.split)
    train, test = samples.of(dataset, device)
    return Experiment(dataset, split, make_task(plan, dataset, device), samples.clients(train, split.clients), test)


def make_task(plan: Plan, dataset: Dataset, device: str) -> Classification:
    """The plan's model, initialised from the run's seed; an own model is tried on two images first."""
    channels, height, width = dataset.train_x.shape[1:]
    classes = len(dataset.classes)
    with Key(plan.run.seed).fixed("init"):
        model = build(plan.model, (channels, height, width), classes)
    task = Classification(model, (channels, height, width), classes, device)
    try:
        with Key(plan.run.seed).fixed("trial"), torch.no_grad():
            model.eval()
            out = model(torch.zeros(2, channels, height, width, device=device))
    except Exception as error:
        shape = f"{channels}×{height}×{width}"
        raise UserError(f"model {plan.model.name} cannot take images of {shape}: {error}") from error
    if tuple(out.shape) != (2, classes):
        raise UserError(f"model {plan.model.name} must give {classes} numbers an image, not {tuple(out.shape[1:])}")
    return task


def choose_device(name: str) -> str:
    """`auto` is a CUDA GPU where there is one, else the CPU."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    with contextlib.suppress(RuntimeError, AssertionError):
        torch.zeros(1, device=name)
        return name
    raise UserError(f"machine.device {name!r} is not available here; use auto or cpu")


def label_counts(experiment: Experiment) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Samples by client and class."""
    return experiment.split.counts(experiment.dataset.train_y, len(experiment.dataset.classes))
