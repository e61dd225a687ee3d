"""What other libraries have callbacks for is the body of a loop: log, keep the best, lower the learning rate, stop.

python examples/own_callbacks.py

`federate` yields after every round and trains nothing until it is asked for the next one. A change of settings is
another `federate` that starts from the last run.
"""

from __future__ import annotations

import csv
from dataclasses import replace

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedptr
from fedptr import Classification, Local, Rounds, federate, methods

torch.set_num_threads(1)  # fastest for a model this small
torch.manual_seed(0)  # for the model's first weights
images, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
images = images.float() / 16
clients = [(images[i:1400:5], labels[i:1400:5]) for i in range(5)]
held_out = images[1400:], labels[1400:]  # to choose by; report a score on images that nothing was chosen by

task = Classification(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), (64,), 10)
method, rounds, local = methods.FedAvg(), Rounds(rounds=100), Local(lr=0.9, batch=32)

best = last = next(federate(method, task, clients, held_out, rounds, local))  # the first round
with open("log.csv", "w", newline="") as file:
    log = csv.writer(file)
    log.writerow(["round", "lr", "accuracy", "loss"])
    while local.lr > 0.05:  # three learning rates at most
        for run in federate(method, task, clients, held_out, rounds, local, start=last):
            last, accuracy, loss = run, run.record["test_accuracy"], run.record["test_loss"]
            log.writerow([last.round, local.lr, accuracy, loss])  # a logger
            print(f"round {last.round}: learning rate {local.lr:g}, accuracy {accuracy:.2%}")
            if loss < best.record["test_loss"]:
                best = last  # the best model; a run never changes, so it is enough to hold it
            elif last.round - best.round >= 5:
                break  # no better for five rounds: an early stop of this learning rate
        if last.round == rounds.rounds:
            break
        last, local = best, replace(local, lr=local.lr / 3)  # back to the best, in smaller steps

best.save("best-model", classes=[str(k) for k in range(10)])
model = fedptr.load_model("best-model", network=task.model)
print(f"best: round {best.round}, accuracy {best.record['test_accuracy']:.2%}")
print(f"of {labels[1400:1405].tolist()} it makes {model.predict(images[1400:1405])}")
