"""From a plan to what the engine needs: the data, the split, the clients and the task."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np
import torch

from fedptr.compute import memory_estimate
from fedptr.compute.choose import choose_backend
from fedptr.core.federation import check_task
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.data.client_tests import add_client_tests
from fedptr.data.dataset import Dataset, dataset_digest, pool_parts, sampled_digest, take_subset
from fedptr.data.load import load_dataset
from fedptr.data.partition import partition
from fedptr.data.split import Split
from fedptr.data.to_samples import to_samples
from fedptr.errors import UserError
from fedptr.methods.ptr.trajectory import Trajectory
from fedptr.models.check_own_model import check_model
from fedptr.models.networks import build_model
from fedptr.runs.plan import DataPlan, Plan
from fedptr.types import Shape


@dataclass(frozen=True)
class Experiment:
    dataset: Dataset
    split: Split
    task: Classification
    clients: list[Samples]
    test: Samples
    client_tests: list[Samples] = field(default_factory=list)  # the clients' own test sets, if they have any

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """What a run knows its data by, which takes a look at every byte.

        Checkpoints of earlier versions have `data` alone, which covers a sample of the images.
        """
        return {"data": sampled_digest(self.dataset), "all data": dataset_digest(self.dataset)}


def load_data(plan: DataPlan) -> Dataset:
    """The dataset a plan names, or its subset, or that with the test images among those clients are given."""
    try:
        dataset = load_dataset(plan.name, plan.dir)
    except UserError as error:
        raise UserError(f"data: {error}") from None
    if plan.number and not plan.subset:
        raise UserError("data.number needs a size to be one of several subsets; set data.subset, or leave number at 0")
    n_test = plan.subset_test or min(plan.subset, len(dataset.test_y))
    dataset = take_subset(dataset, plan.subset, n_test, plan.seed, plan.number)
    if plan.features:
        from fedptr.runs.frozen_features import replace_by_features  # which loads a model, which loads data

        dataset = replace_by_features(dataset, plan.features)
    return pool_parts(dataset) if plan.pool == "all" else dataset


def draw_split(plan: Plan, dataset: Dataset) -> Split:
    """The plan's split of this dataset, with the clients' test sets if they have any."""
    split = partition(dataset.train_y, len(dataset.classes), plan.split)
    return add_client_tests(split, dataset, plan.split, plan.method.personalised, pooled=plan.data.pool == "all")


def prepare_experiment(plan: Plan, split: Split | None = None) -> Experiment:
    """Everything up to the first round; a plan that cannot run is refused here. A split that is there is not drawn."""
    if plan.privacy.secure:
        raise UserError(
            "privacy.secure is for `fedptr deploy`: here there is no server to hide a reply from; leave it out"
        )
    device = choose_device(plan.machine.device)
    dataset = load_data(plan.data)
    split = split or draw_split(plan, dataset)
    train, test = to_samples(dataset, device)
    if not has_own_model(plan):
        memory_estimate.check_model_memory(
            plan, image_shape(dataset), len(dataset.classes), split.sizes, len(test), device
        )
    task = make_task(plan, dataset, device)
    if has_own_model(plan):
        check_model(plan.model.name, task, isinstance(plan.method, Trajectory), plan.run.seed)
    check_task(plan.method, task)
    task = choose_backend(plan, task, len(train))
    memory_estimate.check_memory(plan, task, split.sizes, len(test))
    return Experiment(dataset, split, task, train.split(split.clients), test, client_tests(split, train, test))


def client_tests(split: Split, train: Samples, test: Samples) -> list[Samples]:
    """The clients' own test sets, in client order; none at all if the split has none."""
    if split.tests is None:
        return []
    return (test if split.tests.kind == "shares" else train).split(split.tests.clients)


def has_own_model(plan: Plan) -> bool:
    """Whether the model is the user's: those in fedptr.models.networks are known to work."""
    return ":" in plan.model.name


def make_task(plan: Plan, dataset: Dataset, device: str) -> Classification:
    """The plan's model, initialised from the run's seed."""
    classes = len(dataset.classes)
    with Key(plan.run.seed).fixed("init"):
        model = build_model(plan.model, image_shape(dataset), classes)
    try:
        task = Classification(model, image_shape(dataset), classes, device)
    except Exception as error:  # a layer that does not know its size yet, or a device that is too small
        size = "×".join(map(str, image_shape(dataset)))
        raise UserError(f"model {plan.model.name} cannot take {size} images: {error}") from error
    if plan.privacy.clip and task.initial_buffers() is not None:
        raise UserError(f"privacy.clip: {plan.model.name} has running statistics, which clip does not bound")
    return task


def image_shape(dataset: Dataset) -> Shape:
    channels, height, width = dataset.train_x.shape[1:]
    return channels, height, width


def choose_device(name: str) -> str:
    """`auto` is a CUDA GPU where there is one, else the CPU."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).tolist()  # `meta` can make numbers but not give them back
    except Exception:  # every kind of device fails in its own way
        raise UserError(f"machine.device {name!r} is not available here; use auto or cpu") from None
    return name


def label_counts(experiment: Experiment) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Samples by client and class."""
    return experiment.split.counts(experiment.dataset.train_y, len(experiment.dataset.classes))
