"""Regression on a table: five clinics, each with patients of another age, predict how diabetes progresses.

python examples/own_regression.py
"""

import torch
from sklearn.datasets import load_diabetes
from torch import nn

from fedptr import Local, Regression, Rounds, federate, methods

CLINICS, HELD_OUT = 5, 20

torch.set_num_threads(1)  # fastest for a model this small
torch.manual_seed(0)
x, y = (torch.as_tensor(a).float() for a in load_diabetes(return_X_y=True))
x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()  # FedPTR's auxiliary labels expect this scale

# Any pair of arrays, torch Dataset, DataLoader or Hugging Face dataset is a client.
clinics, tests = [], []
for patients in x[:, 0].argsort().chunk(CLINICS):  # column 0 is the age
    patients = patients[torch.randperm(len(patients))]
    clinics.append((x[patients[HELD_OUT:]], y[patients[HELD_OUT:]]))
    tests.append((x[patients[:HELD_OUT]], y[patients[:HELD_OUT]]))
everyone = tuple(torch.cat(parts) for parts in zip(*tests, strict=True))

model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
for method in (methods.FedAvg(), methods.FedPTR(dsa=False, H=5)):  # augmentation is for images
    task = Regression(model, shape=(10,))
    asked = (clinics, everyone, Rounds(rounds=30), Local(lr=0.02, batch=16))
    record = [run.record for run in federate(method, task, *asked, client_tests=tests)][-1]
    worst = max(record["client_tests"]["loss"])
    print(f"{method.name:7} R² {record['test_r2']:.3f}, squared error {record['test_loss']:.3f}, worst {worst:.3f}")
