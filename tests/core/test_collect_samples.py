"""A client's data in the forms that people have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, TensorDataset

from fedptr import Classification, Local, Rounds, Samples, federate, methods
from fedptr.core.collect_samples import collect_samples
from fedptr.errors import UserError

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
Y = np.arange(12) % 3


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return X[i], int(Y[i])


class Rows:
    """As a Hugging Face dataset: rows are dictionaries, and it is no torch Dataset."""

    column_names = ("image", "label", "name")

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"image": X[i].tolist(), "label": int(Y[i]), "name": f"sample {i}"}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y, strict=True))


FORMS = {
    "arrays": (X, Y),
    "double arrays": (X.astype(np.float64), Y.astype(np.uint8)),
    "tensors": (torch.tensor(X), torch.tensor(Y)),
    "lists": (X.tolist(), Y.tolist()),
    "TensorDataset": TensorDataset(torch.tensor(X), torch.tensor(Y)),
    "Dataset": Pairs(),
    "Subset": Subset(Pairs(), range(12)),
    "DataLoader": DataLoader(Pairs(), batch_size=5, shuffle=True),
    "DataLoader with a sampler": DataLoader(Pairs(), batch_size=5, sampler=SubsetRandomSampler(range(12))),
    "rows": Rows(),
    "list of pairs": [(X[i], Y[i]) for i in range(12)],
    "list of dictionaries": [{"features": X[i], "target": Y[i]} for i in range(12)],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_samples(form: str) -> None:
    found = collect_samples(FORMS[form], "client 0")
    assert torch.equal(found.x, torch.tensor(X))
    assert torch.equal(found.y, torch.tensor(Y))


def test_samples_stay_as_they_are() -> None:
    samples = Samples(torch.zeros(2, 1), torch.zeros(2).long())
    assert collect_samples(samples, "client 0") is samples


@pytest.mark.parametrize("form", ["arrays", "DataLoader", "rows"])
def test_a_federation_of_any_form_ends_with_the_same_bits(form: str) -> None:
    torch.manual_seed(0)
    task = Classification(nn.Linear(4, 3), (4,), 3)
    asked = (Rounds(rounds=2), Local(lr=0.1, batch=4))
    runs = [
        list(federate(methods.FedAvg(), task, [data, data], data, *asked, client_tests=[data, data]))
        for data in (FORMS[form], Samples(torch.tensor(X), torch.tensor(Y)))
    ]
    assert torch.equal(runs[0][-1].w, runs[1][-1].w)
    assert runs[0][-1].record["test_accuracy"] == runs[1][-1].record["client_accuracy"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Stream(), "can only be iterated over"),
        (DataLoader(Stream()), "a DataLoader of a dataset without a length"),
        ((x for x in X), "can only be iterated over"),
        (X, "is one array; give a pair"),
        (None, "is a NoneType; give Samples"),
        ("digits", "is a str; give Samples"),
        ({"x": X}, "is a dict; give Samples"),
        ((X, Y[:5]), "has 12 inputs and 5 labels"),
        ((X[:, 0], Y), "the first axis counts samples"),
        ((np.array(["a"] * 12), Y), "are not numbers of one shape"),
        ((X * np.nan, Y), "NaN or infinite"),
        ([(X[0], 1), (X[0, :2], 1)], r"different shapes, \[2\] and \[4\]"),
        ([X[0], X[1]], "are no pairs"),
        ([{"a": 1, "b": 2, "label": 0}], "have the entries a, b, label; rename"),
        ([{"x": X[0]}], "have the entries x; rename the label"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_sentence(data: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        collect_samples(data, "client 3")
    assert "client 3" in str(caught.value)
    assert "\n" not in str(caught.value)
