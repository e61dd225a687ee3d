"""Your own model and data: five vineyards train one wine classifier together, without sharing their data.

python examples/own_model_and_data.py
"""

import torch
from sklearn.datasets import load_wine
from torch import Tensor, nn

from fedptr import Classification, Local, Rounds, Samples, SplitPlan, federate, methods, partition

FEATURES, CLASSES = 13, 3


class Wine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.relu(self.hidden(x)))
        return out


torch.set_num_threads(1)  # fastest for a model this small
torch.manual_seed(0)  # for the split below and the model's first weights; federate has its own seed
x, y = (torch.as_tensor(a) for a in load_wine(return_X_y=True))
train, test = torch.randperm(len(y)).split([130, 48])
x = ((x - x[train].mean(0)) / x[train].std(0)).float()

# A client is a Samples. Here one table is split; with alpha = 0.1 most of a client's samples are of one class.
split = partition(y[train], CLASSES, SplitPlan(clients=5, alpha=0.1, min_size=5))
clients = Samples(x[train], y[train]).split(split.clients)

task = Classification(Wine(), shape=(FEATURES,), classes=CLASSES)
method = methods.FedPTR(H=5, dsa=False)  # five matching steps are quick; augmentation is for images, not tables
for run in federate(method, task, clients, Samples(x[test], y[test]), Rounds(rounds=30), Local(lr=0.1, batch=16)):
    print(f"round {run.round:2}  accuracy {run.record['test_accuracy']:.1%}")
    if run.record["test_accuracy"] > 0.9:  # good enough; run.w is the model as one vector, start=run resumes
        break
