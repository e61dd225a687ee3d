"""FedAvg rounds in Flower's simulation, with a plain training loop as its client. Argument: CPUs per client."""

from __future__ import annotations

import sys
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peer_process import RoundGate, client_samples, load_work
from plain_references import train_on_tensors
from workload import make_network_of

client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    work = load_work()
    x, y = client_samples(int(context.node_config["partition-id"]))
    model = make_network_of(work)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model = train_on_tensors(model, x, y, **work["local"])
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    work, turns = load_work(), RoundGate()

    def between(_: int, arrays: ArrayRecord) -> MetricRecord | None:
        turns.wait(arrays.to_torch_state_dict())
        return None

    share, clients = work["cohort"] / work["clients"], work["clients"]
    strategy: Any = FedAvg(
        fraction_train=share, fraction_evaluate=0.0, min_train_nodes=work["cohort"], min_available_nodes=clients
    )
    strategy.start(grid, ArrayRecord(work["state"]), num_rounds=work["rounds"], evaluate_fn=between)


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": int(sys.argv[1]), "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=load_work()["clients"], backend_config=resources)
