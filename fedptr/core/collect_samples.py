"""A client's data in whatever form people have it, as `Samples`.

    Samples                         as it is
    (x, y)                          NumPy arrays or tensors, or lists of numbers
    a map-style torch Dataset       its items: (x, y), or dictionaries
    a DataLoader                    its dataset, or the part that its sampler names; Local.batch is the batch size
    a Hugging Face dataset          rows are dictionaries
    a list of samples               items as of a torch Dataset

Dictionaries have the label under one of `LABELS`, and the input under one of `INPUTS` or the only other name. Items are
read once, when the federation starts, and kept in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedptr.core.samples import Samples
from fedptr.errors import UserError

LABELS = ("label", "labels", "y", "target", "targets", "fine_label")
INPUTS = ("x", "image", "img", "pixel_values", "features", "inputs", "input_ids", "data")
FORMS = "Samples, a pair (x, y) of arrays, a torch Dataset or DataLoader, or a Hugging Face dataset"


def collect_samples(data: Any, whose: str) -> Samples:
    """The samples of `data`; raises a UserError that names `whose` they are.

    >>> s = collect_samples((np.zeros((3, 2)), np.array([0, 1, 1])), "client 0")
    >>> len(s), s.x.dtype, s.y.dtype
    (3, torch.float32, torch.int64)
    """
    if isinstance(data, Samples):
        return data
    if is_pair(data):
        return pair_to_samples(data[0], data[1], whose)
    tensors = getattr(data, "tensors", None)  # of a TensorDataset
    if isinstance(tensors, tuple) and len(tensors) == 2:
        return pair_to_samples(*tensors, whose)
    if hasattr(data, "batch_sampler") and hasattr(data, "dataset"):
        return loader_to_samples(data, whose)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, (str, bytes, Mapping)):
        if isinstance(data, (np.ndarray, Tensor)):
            raise UserError(f"{whose} is one array; give a pair (x, y), inputs and labels")
        return items_to_samples(data, range(len(data)), whose)
    if hasattr(data, "__iter__") and not isinstance(data, (str, bytes, Mapping)):
        raise UserError(f"{whose} can only be iterated over, and its length is not known; collect it in a list first")
    raise UserError(f"{whose} is a {type(data).__name__}; give {FORMS}")


def is_pair(data: Any) -> bool:
    """Whether it is (inputs, labels) and not a list of two samples."""
    arrays = (np.ndarray, Tensor)
    return isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, (*arrays, list)) for part in data)


def pair_to_samples(x: Any, y: Any, whose: str) -> Samples:
    x, y = to_tensor(x, whose, "inputs"), to_tensor(y, whose, "labels")
    if x.dim() < 2 or y.dim() < 1:
        raise UserError(f"{whose} has inputs of shape {list(x.shape)}; the first axis counts samples, so it needs two")
    if len(x) != len(y):
        raise UserError(f"{whose} has {len(x)} inputs and {len(y)} labels; each input needs one")
    x = x.float() if x.dtype == torch.float64 else x
    if not x.is_floating_point() and x.dtype != torch.int64:
        x = x.float()  # token numbers (int64) stay whole
    y = y.float() if y.is_floating_point() else y.long()
    for name, part in (("inputs", x), ("labels", y)):
        if part.is_floating_point() and not bool(part.isfinite().all()):
            raise UserError(f"{whose} has {name} that are NaN or infinite; replace them")
    return Samples(x, y)


def to_tensor(values: Any, whose: str, what: str) -> Tensor:
    try:
        return torch.as_tensor(np.asarray(values) if not isinstance(values, Tensor) else values.detach())
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"the {what} of {whose} are not numbers of one shape; convert them to an array first") from None


def loader_to_samples(loader: Any, whose: str) -> Samples:
    """Order and batches of a loader are not taken over: rounds draw their own, so that a run can be repeated."""
    dataset, chosen = loader.dataset, getattr(loader.sampler, "indices", None)
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise UserError(f"{whose} is a DataLoader of a dataset without a length; collect its samples in a list first")
    if chosen is None:
        return collect_samples(dataset, whose)
    return items_to_samples(dataset, [int(i) for i in chosen], whose)


def items_to_samples(items: Sequence[Any], rows: Sequence[int], whose: str) -> Samples:
    pairs = [read_item(items[i], whose) for i in rows]
    if not pairs:
        return Samples(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64))
    xs, ys = zip(*pairs, strict=True)
    shapes = {tuple(x.shape) for x in xs}
    if len(shapes) > 1:
        one, other = sorted(shapes)[:2]
        raise UserError(f"{whose} has inputs of different shapes, {list(one)} and {list(other)}; make them the same")
    return pair_to_samples(torch.stack(xs), torch.stack(ys), whose)


def read_item(item: Any, whose: str) -> tuple[Tensor, Tensor]:
    if isinstance(item, Mapping):
        label = next((name for name in LABELS if name in item), None)
        others = [name for name in item if name != label]
        known = [name for name in INPUTS if name in others] or others
        if label is None or len(known) < 1 or (len(others) > 1 and known == others):
            names = ", ".join(map(str, item))
            raise UserError(
                f"the samples of {whose} have the entries {names}; rename the label to {LABELS[0]!r} and the input to "
                f"{INPUTS[0]!r}"
            )
        item = item[known[0]], item[label]
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise UserError(f"the samples of {whose} are no pairs (input, label)")
    x, y = (to_tensor(part, whose, what) for part, what in zip(item, ("inputs", "labels"), strict=True))
    return x, y
