"""A finished run as an auditor sees it: its plan, its split, its final model, and the pool its samples are from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedptr.atomic_files import DamagedFileError
from fedptr.audit.scores import compute_logits, compute_phi, cross_entropy
from fedptr.compute.cores import count_cores
from fedptr.core.early_stopping import STOPPED
from fedptr.core.federation import Run
from fedptr.core.learning_rate import depends_on_rounds
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.data.dataset import Dataset, dataset_digest, sampled_digest
from fedptr.data.split import Ints, Split
from fedptr.data.to_samples import to_samples
from fedptr.errors import UserError
from fedptr.runs.experiment import choose_device, load_data, make_task
from fedptr.runs.plan import Plan, load_plan
from fedptr.runs.rounds_file import Record
from fedptr.runs.summary import read_finished
from fedptr.runs.trained_model import read_final_model


@dataclass(frozen=True, eq=False)
class Target:
    folder: Path
    plan: Plan
    summary: Record
    split: Split
    seen: frozenset[int]  # clients whose replies made the model
    dataset: Dataset  # with the pool as its training images
    pool: Samples
    task: Classification
    model: Run

    @property
    def labels(self) -> Ints:
        return np.asarray(self.dataset.train_y)

    @property
    def data_sha256(self) -> str:
        """Of the pool."""
        return dataset_digest(self.dataset)

    def phi(self, rows: Ints, flip: bool) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """φ of these samples of the pool by this model; with `flip` the mean of the image's and its mirror image's."""
        data = self.pool.part(torch.tensor(rows))
        queries = [compute_phi(z, data.labels) for z in self.logits(data, flip)]
        return np.asarray(torch.stack(queries).mean(0))

    @property
    def trained(self) -> Ints:
        """The samples that the model was trained on, rows of the pool."""
        return np.concatenate([rows for i, rows in enumerate(self.split.clients) if i in self.seen])

    def losses(self, rows: Ints) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        data = self.pool.part(torch.tensor(rows))
        (z,) = self.logits(data, False)
        return np.asarray(cross_entropy(z, data.labels))

    def logits(self, data: Samples, flip: bool) -> list[Tensor]:
        buffers = self.model.server.get("buffers")
        return [
            compute_logits(self.task, self.model.w, data, buffers, mirrored) for mirrored in (False, True)[: 1 + flip]
        ]


def plan_as_trained(plan: Plan, summary: Record, folder: Path) -> Plan:
    """The plan whose shadows train for as many rounds as the run did, also where it stopped early."""
    if STOPPED not in summary:
        return plan
    if depends_on_rounds(plan.local):
        words = f"its learning rates follow a {plan.local.schedule} over {plan.run.rounds} rounds"
        raise UserError(
            f"{folder} stopped early, and {words}, so no shadow can be trained like it; audit a run that did not stop"
        )
    return replace(plan, run=replace(plan.run, rounds=summary["rounds"], target=0.0, patience=0))


def load_target(folder: Path) -> Target:
    """Loads a finished run; raises one sentence if it cannot be audited."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name the folder of a finished run")
    plan = load_plan(folder)
    try:
        summary, records = read_finished(folder)
    except DamagedFileError as error:
        raise UserError(f"{error}; finish it with `fedptr resume {folder}`, then audit it") from None
    if not (folder / "split.json").is_file():
        raise UserError(f"{folder} has no split.json, so nobody knows here whose data it was; audit where it was run")
    split = Split.load(folder / "split.json")
    if split.sha256 != summary.get("split_sha256"):
        raise UserError(f"{folder / 'split.json'} is not the split of this run; take back the one it was run with")
    plan = plan_as_trained(plan, summary, folder)
    device = choose_device(plan.machine.device)
    torch.set_num_threads(plan.machine.threads or count_cores())
    dataset = load_data(replace(plan.data, pool="all"))
    if dataset.target != "class":
        raise UserError(f"{folder} is not a classifier, and only classifiers are audited so far")
    expected = len(dataset.train_y) - (0 if plan.data.pool == "all" else len(dataset.test_y))
    if split.samples != expected:
        raise UserError(f"{folder} was trained on other data: {split.samples} samples, and here are {expected}")
    own = replace(dataset, train_x=dataset.train_x[:expected], train_y=dataset.train_y[:expected])
    now = dataset_digest(own)
    if summary.get("data_sha256", now) not in (now, sampled_digest(own)):  # runs of early versions did not tell
        raise UserError(f"{folder} was trained on other data than {plan.data.name} is here now; take back what it was")
    plan = replace(plan, split=replace(plan.split, clients=len(split.clients)))  # which 0 leaves to the users
    pool, _ = to_samples(dataset, device)
    task = make_task(plan, dataset, device)
    assert isinstance(task, Classification)
    seen = frozenset(client["id"] for record in records for client in record["clients"])
    return Target(folder, plan, summary, split, seen, dataset, pool, task, read_final_model(folder, task, summary))
