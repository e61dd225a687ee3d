"""FedAvg: local SGD and a weighted mean. Its hooks are the defaults in `fedptr.core.method`.

    x   global model w^t          w_i   client i's model after local training          m_i   its samples

A round:  every client of the cohort trains from x;  x ← Σ_i m_i w_i / Σ_i m_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedptr.core.method import Method, Oracle, Rule
from fedptr.plots import LONG, Look


@dataclass(frozen=True)
class FedAvg(Method):
    name: ClassVar[str] = "fedavg"
    idea: ClassVar[str] = "local SGD, then the mean of the clients' models"
    cite: ClassVar[str] = "McMahan et al., AISTATS 2017, arXiv:1602.05629"
    family: ClassVar[str] = "averaging"
    rule: ClassVar[Rule] = Rule()
    look: ClassVar[Look] = Look("#333333", LONG)
    oracle: ClassVar[tuple[Oracle, ...]] = (Oracle("FedAvg", "off", "biased: nothing corrects the drift"),)
    paper_column: ClassVar[int] = 1
