"""Federated learning with projected trajectory regularization, and the methods it is compared with.

>>> from fedptr import Classification, Local, Rounds, Samples, federate, methods
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedptr import methods as methods
    from fedptr.core.client_states import StateStore as StateStore
    from fedptr.core.federation import Rounds as Rounds
    from fedptr.core.federation import federate as federate
    from fedptr.core.local_training import Local as Local
    from fedptr.core.multi_label import MultiLabel as MultiLabel
    from fedptr.core.predictor import Predictor as Predictor
    from fedptr.core.regression import Regression as Regression
    from fedptr.core.run import Run as Run
    from fedptr.core.samples import Samples as Samples
    from fedptr.core.task import Classification as Classification
    from fedptr.core.task import ModelTask as ModelTask
    from fedptr.data.load import load_dataset as load_dataset
    from fedptr.data.partition import SplitPlan as SplitPlan
    from fedptr.data.partition import partition as partition
    from fedptr.runs.checkpoint import CheckpointStore as CheckpointStore
    from fedptr.runs.trained_model import load_model as load_model

    load = load_dataset

# Imported when first used: `import fedptr` and `fedptr --help` do not import torch.
_HOME = {
    "StateStore": "core.client_states",
    "federate": "core.federation",
    "Rounds": "core.federation",
    "Run": "core.run",
    "Local": "core.local_training",
    "MultiLabel": "core.multi_label",
    "Predictor": "core.predictor",
    "Regression": "core.regression",
    "Samples": "core.samples",
    "Classification": "core.task",
    "ModelTask": "core.task",
    "load_dataset": "data.load",
    "partition": "data.partition",
    "SplitPlan": "data.partition",
    "CheckpointStore": "runs.checkpoint",
    "load_model": "runs.trained_model",
}
_EARLIER = {"load": "load_dataset"}  # earlier names that keep working


def __getattr__(name: str) -> Any:
    import importlib

    name = _EARLIER.get(name, name)
    if name in _HOME:
        return getattr(importlib.import_module(f"fedptr.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fedptr' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
