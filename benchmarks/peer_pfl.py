"""FedAvg rounds in pfl's simulated backend, in one process or, under torchrun, with clients spread over several.

Its `use_torch_compile` stays off: it wraps the module, but training calls the module's `loss`, which then runs eager.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from peer_process import RoundGate, client_samples, load_work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from workload import make_network_of


class PflNetwork(nn.Module):
    """The network with the two functions that pfl needs."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x)
        return logits

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return F.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(x, y, eval=True)) * len(y), len(y))}


class WaitBetweenRounds(TrainingProcessCallback):
    """Waits for a request before every round; with several processes, the others wait for the first."""

    def __init__(self, body: nn.Module) -> None:
        self.turns, self.body = RoundGate(), body

    def wait(self) -> None:
        ranks = torch.distributed.is_initialized()
        if not ranks or torch.distributed.get_rank() == 0:
            self.turns.wait(self.body.state_dict())
        if ranks:
            torch.distributed.barrier()

    def on_train_begin(self, *, model: Any) -> Any:
        self.wait()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.wait()
        return False, Metrics()


def main() -> None:
    work = load_work()
    users = list(range(work["clients"]))
    net = PflNetwork(make_network_of(work))
    net.body.load_state_dict(work["state"])
    local = work["local"]

    def make_dataset(i: Any) -> Dataset:
        return Dataset(raw_data=list(client_samples(int(i))), user_id=str(i))

    sampled = FederatedDataset(make_dataset, get_user_sampler("minimize_reuse", users))
    backend = SimulatedBackend(sampled, sampled, postprocessors=[WeightByDatapoints()])
    model = PyTorchModel(
        net,
        functools.partial(torch.optim.SGD, momentum=local["momentum"]),
        torch.optim.SGD(net.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            work["rounds"], evaluation_frequency=10**6, train_cohort_size=work["cohort"], val_cohort_size=0
        ),
        backend,
        model,
        NNTrainHyperParams(
            local_num_epochs=local["epochs"], local_learning_rate=local["lr"], local_batch_size=local["batch"]
        ),
        NNEvalHyperParams(local_batch_size=1000),
        callbacks=[WaitBetweenRounds(net.body)],
    )


if __name__ == "__main__":
    main()
