"""Natural users: sixteen airlines learn together whether a flight will be early, on time or late.

fedptr data get flights
python examples/own_airlines.py
"""

import numpy as np
import torch
from torch import nn

from fedptr import Classification, Local, Rounds, federate, methods
from fedptr.data.load import load_dataset

torch.set_num_threads(1)  # fastest for a model this small
flights = load_dataset("flights")
mean, std = (np.array(values, dtype=np.float32)[:, None, None] for values in (flights.mean, flights.std))
train_x, test_x = (flights.train_x - mean) / std, (flights.test_x - mean) / std

# A client is an airline. Its own test flights show whom the common model serves badly.
airlines = range(len(flights.user_names))
ours = [flights.users == airline for airline in airlines]
clients = [(train_x[rows], flights.train_y[rows]) for rows in ours]
tested = [flights.test_users == airline for airline in airlines]
tests = [(test_x[rows], flights.test_y[rows]) for rows in tested]
everyone = (test_x, flights.test_y)

shape, classes = flights.train_x.shape[1:], len(flights.classes)
for method in (methods.FedAvg(), methods.FineTune(), methods.LocalOnly()):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 32), nn.ReLU(), nn.Linear(32, classes))
    task = Classification(model, shape, classes)
    asked = (clients, everyone, Rounds(rounds=5), Local(lr=0.1, batch=32))
    record = [run.record for run in federate(method, task, *asked, client_tests=tests)][-1]
    own = record["client_tests"].get("personal_accuracy", record["client_tests"]["accuracy"])
    worst = int(np.argmin(own))
    mean_own = np.average(own, weights=[len(y) for _, y in tests])
    print(f"{method.name:8} accuracy {100 * mean_own:.1f}%, worst {flights.user_names[worst]} {100 * own[worst]:.1f}%")
