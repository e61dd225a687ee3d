"""What a plan has where nobody says otherwise, by dataset. Nothing heavy is imported here: `--help` shows it too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Settings = Mapping[str, Any]
PHOTOGRAPHS: Settings = {"model.width": 32, "local.lr": 0.03, "local.batch": 50, "run.rounds": 50}
NATURAL: Settings = {  # of datasets that know whose each sample is
    "model.name": "mlp",
    "local.lr": 0.1,
    "local.batch": 32,
    "run.rounds": 30,
    "split.kind": "users",
    "machine.threads": 1,
}
DEFAULTS: Mapping[str, Settings] = {
    "digits": {
        "model.width": 16,
        "model.depth": 2,
        "local.lr": 0.1,
        "local.batch": 32,
        "run.rounds": 30,
        "split.min_size": 20,
        "machine.threads": 1,  # with a model this small a second thread only waits for the first
    },
    "fashion-mnist": {**PHOTOGRAPHS, "run.rounds": 30},
    "cifar10": PHOTOGRAPHS,
    "cifar100": {**PHOTOGRAPHS, "model.width": 64, "run.rounds": 100},
    "tiny-imagenet": {**PHOTOGRAPHS, "model.width": 64, "model.depth": 4, "run.rounds": 100},
    "flights": {**NATURAL, "split.clients": 16, "model.width": 64},
    "vowels": {**NATURAL, "split.clients": 8, "model.width": 64},
    "shakespeare": {**NATURAL, "split.clients": 30, "model.width": 128},
}
OWN_DATA: Settings = {**PHOTOGRAPHS, "local.batch": 32}
# With adam or adamw, whose steps have about the size of the learning rate in every parameter; tried on digits.
ADAPTIVE: Settings = {"local.lr": 0.003}
TABLE: Settings = {**OWN_DATA, "model.name": "mlp"}  # of own data in a .csv or .parquet file
TEXT: Settings = {**OWN_DATA, "model.name": "text-mean", "local.lr": 0.3}  # of a table of texts
# Of FedPTR, which learns its auxiliary data in every round: on the server once, or on every client.
SMALL_IMAGES: Settings = {"beta": "auto", "lr_img": "auto", "reach": 1.0, "R": 3, "ipc": 3, "dsa": False}
GRADIENT_MATCHING: Settings = {
    "matching": "gradient",
    "lr_img": "auto",
    "projection_lr": "beta",
    "dsa": False,
}
USUAL_MATCHING: Settings = {"beta": "auto", "lr_img": "auto", "H": 4}
TABLE_MATCHING: Settings = {**USUAL_MATCHING, "dsa": False}
MATCHING: Mapping[str, Settings] = {
    "digits": SMALL_IMAGES,
    "fashion-mnist": {**GRADIENT_MATCHING, "ipc": 3},
    "cifar10": {**GRADIENT_MATCHING, "ipc": 3},
    "cifar100": GRADIENT_MATCHING,
    "tiny-imagenet": GRADIENT_MATCHING,
    "flights": TABLE_MATCHING,
    "vowels": TABLE_MATCHING,
    "shakespeare": TABLE_MATCHING,
}
ON_SERVER, ON_CLIENTS = {"digits": 3}, {"digits": 1}  # H
SHOWN = ("model.width", "local.batch", "local.lr", "run.rounds")


def words_by_dataset(place: str) -> str:
    """The defaults of a setting by dataset; empty if they do not differ from the setting's own.

    >>> words_by_dataset("local.lr"), words_by_dataset("split.min_size"), words_by_dataset("local.epochs")
    ('digits 0.1, flights 0.1, vowels 0.1, shakespeare 0.1, others 0.03', 'digits 20', '')
    """
    known = {name: table[place] for name, table in DEFAULTS.items() if place in table}
    if place not in OWN_DATA:
        return ", ".join(f"{name} {value}" for name, value in known.items())
    usual = PHOTOGRAPHS[place]
    special = [f"{name} {value}" for name, value in known.items() if value != usual]
    own = [f"own data {OWN_DATA[place]}"] if OWN_DATA[place] != usual else []
    return ", ".join([*special, *own, f"others {usual}"])
