"""deploy.toml: the rules of a deployed run. It is next to the plan, and may change before a resume.

[deploy]    how many nodes, how long to wait, what is accepted
[flower]    where the server is, and how to reach it
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedptr.errors import UserError
from fedptr.runs import plan as planning
from fedptr.runs.plan import Plan
from fedptr.settings import build_settings, setting, unknown_name_error

NAME = "deploy.toml"


@dataclass(frozen=True)
class DeployRules:
    min_nodes: int = setting(2, "nodes that must be online before a round begins", ge=1)
    min_replies: int = setting(1, "usable replies that a round needs to count; with fewer it is repeated", ge=1)
    round_timeout: float = setting(600.0, "seconds until a reply is late", gt=0)
    patience: float = setting(
        3600.0, "seconds to wait for nodes, or for a round that counts, before the run stops", gt=0
    )
    evaluate: Literal["server", "nodes"] = setting(
        "nodes", "test on the server's own data (the plan's), or on the nodes' data and take the mean"
    )
    classes: str = setting("", "the agreed classes, separated by commas; empty = all that the first nodes have")
    shape: str = setting(
        "", 'the agreed shape of images, as "3x32x32"; empty = that of more than half of the first nodes'
    )
    max_classes: int = setting(1000, "largest number of classes, of a node and of all together", ge=2, le=10**6)
    norm_bound: float = setting(100.0, "largest accepted step ‖w − x‖, and norm of any other entry, over 1+‖x‖", gt=0)
    max_samples: int = setting(10**7, "largest number of samples a node may claim", ge=1)
    lost_state: Literal["drop", "anew"] = setting(
        "drop", "a node that lost its state is left out (drop), or starts as on its first visit (anew)"
    )
    recompute: bool = setting(False, "resume even if the server computes another way than it did (another compiler …)")
    poll: float = setting(0.2, "seconds between two checks for replies; longer in long rounds", gt=0, le=60)

    def agreed_classes(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.classes.split(",") if name.strip())

    def agreed_shape(self) -> tuple[int, ...]:
        """Empty where the plan does not say; raises where it is no shape."""
        parts = [part.strip() for part in re.split("[x×]", self.shape)] if self.shape.strip() else []
        if not all(re.fullmatch("[1-9][0-9]{0,4}", part) for part in parts) or len(parts) not in (0, 2, 3):
            raise UserError(
                f"deploy.shape is {self.shape!r}; write channels, height and width as 3x32x32, or length and "
                "vocabulary of texts as 64x10000"
            )
        return tuple(map(int, parts))


@dataclass(frozen=True)
class FlowerLink:
    address: str = setting("127.0.0.1:8000", "host:port of the SuperLink, as nodes reach it")
    home: str = setting("", "FLWR_HOME: Flower's own configuration")
    app: str = setting("", "the Flower app")
    nodes: str = setting("", "nodes.json: which registered key is which node; empty = as the nodes say")


@dataclass(frozen=True)
class DeployPlan:
    deploy: DeployRules = field(default_factory=DeployRules)
    flower: FlowerLink = field(default_factory=FlowerLink)


SECTIONS: dict[str, Any] = {"deploy": DeployRules, "flower": FlowerLink}


def read_deploy_plan(folder: Path) -> DeployPlan:
    """The rules of a run folder, or of the server's folder."""
    if not (folder / NAME).is_file():
        raise UserError(f"{folder} holds no {NAME}; make it with `fedptr deploy init`")
    tables = planning.read_plan(folder / NAME)
    for name in tables:
        if name not in SECTIONS:
            raise unknown_name_error(name, name, SECTIONS, f"a section of {NAME}")
    found = DeployPlan(**{name: build_settings(cls, tables.get(name, {}), name) for name, cls in SECTIONS.items()})
    found.deploy.agreed_shape()  # raises where it is none
    return found


def nodes_evaluate(plan: Plan, rules: DeployRules) -> bool:
    """Whether nodes evaluate models on their own test data, and send counts and sums."""
    if rules.evaluate == "nodes":
        return True
    asked = plan.personalised if plan.split.test == "auto" else plan.split.test != "none"
    return asked and not plan.privacy.hides_scores


def check_evaluation(plan: Plan, rules: DeployRules) -> str:
    """In words where models are evaluated; raises where that would show what secure aggregation hides."""
    if rules.evaluate == "nodes" and plan.privacy.hides_scores:
        raise UserError(
            "privacy.secure hides single clients, and deploy.evaluate = nodes shows the server every client's scores; "
            "set deploy.evaluate = server, or allow it with privacy.scores = true"
        )
    if plan.data.features:
        raise UserError("data.features is for runs on one machine: nodes do not have the frozen model; leave it out")
    return f"on {rules.evaluate}" + (
        " and on nodes" if rules.evaluate == "server" and nodes_evaluate(plan, rules) else ""
    )
