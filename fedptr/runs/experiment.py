"""From a plan to what the engine needs: the data, the split, the clients and the task."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from fedptr.compute import memory_estimate
from fedptr.compute.choose import choose_backend
from fedptr.compute.clients_at_once import choose_clients_at_once
from fedptr.core.federation import check_task
from fedptr.core.model_parts import freeze_parts
from fedptr.core.multi_label import MultiLabel
from fedptr.core.randomness import Key
from fedptr.core.regression import Regression
from fedptr.core.samples import Samples
from fedptr.core.task import Classification, ModelTask
from fedptr.data.client_tests import add_client_tests
from fedptr.data.dataset import Dataset, dataset_digest, pool_parts, sampled_digest, take_subset
from fedptr.data.load import load_dataset
from fedptr.data.partition import partition
from fedptr.data.split import Split
from fedptr.data.to_samples import to_samples
from fedptr.data.validation import hold_out_validation, read_split_file
from fedptr.errors import UserError
from fedptr.models.check_own_model import check_model
from fedptr.models.initial_weights import digest_initial_weights, load_initial_weights
from fedptr.models.networks import build_model
from fedptr.models.text import learnable_shape
from fedptr.runs.plan import DataPlan, Plan


@dataclass(frozen=True)
class Experiment:
    dataset: Dataset
    split: Split
    task: ModelTask
    clients: Sequence[Samples]
    test: Samples
    client_tests: Sequence[Samples] = ()  # the clients' own test sets, if they have any
    initial: str = ""  # the sha256 of the file of initial weights, if there is one
    at_once: int = 1  # clients that train at the same time in this process

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """What a run knows its data and its initial weights by, which takes a look at every byte.

        Checkpoints of earlier versions have `data` alone, which covers a sample of the images.
        """
        weights = {"initial weights": self.initial} if self.initial else {}
        return {"data": sampled_digest(self.dataset), "all data": dataset_digest(self.dataset), **weights}


def load_data(plan: DataPlan) -> Dataset:
    """The dataset a plan names, or its subset, or that with the test images among those clients are given.

    With a validation part, this takes the place of the test images, and nothing is taken from these.
    """
    try:
        dataset = load_dataset(plan.name, plan.dir, plan.task, plan.text)
    except UserError as error:
        raise UserError(f"data: {error}") from None
    if plan.number and not plan.subset:
        raise UserError("data.number needs a size to be one of several subsets; set data.subset, or leave number at 0")
    n_test = 0 if plan.validation else plan.subset_test or min(plan.subset, len(dataset.test_y))
    dataset = take_subset(dataset, plan.subset, n_test, plan.seed, plan.number)
    if plan.validation:
        dataset = hold_out_validation(dataset, plan.validation, plan.seed)
    if plan.features:
        from fedptr.runs.frozen_features import replace_by_features  # which loads a model, which loads data

        dataset = replace_by_features(dataset, plan.features)
    return pool_parts(dataset) if plan.pool == "all" else dataset


def draw_split(plan: Plan, dataset: Dataset) -> Split:
    """The plan's split of this dataset, with the clients' test sets if they have any."""
    groups = dataset.label_groups()
    if plan.split.file and dataset.held_out is not None:
        split = read_split_file(plan.split, dataset)
    else:
        split = partition(groups.train, len(groups.names), plan.split, dataset.users, dataset.user_names)
    return add_client_tests(split, dataset, plan.split, plan.personalised, pooled=plan.data.pool == "all")


def prepare_experiment(plan: Plan, split: Split | None = None) -> Experiment:
    """Everything up to the first round; a plan that cannot run is refused here. A split that is there is not drawn."""
    if plan.privacy.secure:
        raise UserError(
            "privacy.secure is for `fedptr deploy`: here there is no server to hide a reply from; leave it out"
        )
    device = choose_device(plan.machine.device)
    dataset = load_data(plan.data)
    split = split or draw_split(plan, dataset)
    plan = replace(plan, split=replace(plan.split, clients=len(split.clients)))  # which 0 leaves to the users
    train, test = to_samples(dataset, device)
    if not has_own_model(plan):
        memory_estimate.check_model_memory(plan, image_shape(dataset), dataset.outputs, split.sizes, len(test), device)
    task = make_task(plan, dataset, device)
    if has_own_model(plan):
        text = dataset.shape if dataset.vocabulary else ()
        check_model(plan.model.name, task, plan.method.second_derivatives, plan.run.seed, dataset.outputs, text)
    check_task(plan.method, task)
    task = choose_backend(plan, task, len(train))
    at_once = choose_clients_at_once(plan, task, split.sizes, len(test))
    memory_estimate.check_memory(plan, task, split.sizes, len(test), at_once)
    own_tests, initial = client_tests(split, train, test), digest_initial_weights(plan.model)
    return Experiment(dataset, split, task, train.split(split.clients), test, own_tests, initial, at_once)


def client_tests(split: Split, train: Samples, test: Samples) -> Sequence[Samples]:
    """The clients' own test sets, in client order; none at all if the split has none."""
    if split.tests is None:
        return ()
    return (test if split.tests.kind == "shares" else train).split(split.tests.clients)


def has_own_model(plan: Plan) -> bool:
    """Whether the model is the user's: those in fedptr.models.networks are known to work."""
    return ":" in plan.model.name


def make_task(plan: Plan, dataset: Dataset, device: str) -> ModelTask:
    """The plan's model, initialised from the run's seed, or from a file of weights."""
    with Key(plan.run.seed).fixed("init"):
        model = build_model(plan.model, image_shape(dataset), dataset.outputs)
    load_initial_weights(model, plan.model)
    freeze_parts(model, plan.model.freeze, "model.freeze")
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError(f"model.freeze = {plan.model.freeze} leaves nothing of {plan.model.name} to train; freeze less")
    try:
        task = choose_task(model, dataset, device, plan.model.local)
    except UserError as error:
        raise UserError(f"model.{error}") from None
    except Exception as error:  # a layer that does not know its size yet, or a device that is too small
        size = "×".join(map(str, image_shape(dataset)))
        raise UserError(f"model {plan.model.name} cannot take {size} images: {error}") from error
    if dataset.vocabulary and not hasattr(model, "embed"):
        task.tokens = dataset.vocabulary
    if plan.privacy.clip and task.initial_buffers() is not None:
        raise UserError(f"privacy.clip: {plan.model.name} has running statistics, which clip does not bound")
    return task


def choose_task(model: nn.Module, dataset: Dataset, device: str, local: str = "") -> ModelTask:
    """What is learned, by the dataset's labels; `local` names the parts that clients keep."""
    shape = learnable_shape(model, dataset.shape)
    if dataset.target == "number":
        return Regression(model, shape, device, local=local, label_std=dataset.label_std)
    if dataset.target == "labels":
        return MultiLabel(model, shape, device, local=local, labels=len(dataset.classes))
    return Classification(model, shape, len(dataset.classes), device, local=local)


def image_shape(dataset: Dataset) -> tuple[int, ...]:
    """Of one image: channels, height, width; of one text: length, vocabulary."""
    return dataset.shape


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
    """Samples by client and class, or group of labels."""
    groups = experiment.dataset.label_groups()
    return experiment.split.counts(groups.train, len(groups.names))
