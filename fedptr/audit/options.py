"""What an audit is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from fedptr.audit.lira import MANY, Variance
from fedptr.audit.shadows import Trainer
from fedptr.errors import UserError
from fedptr.settings import unknown_name_error

ATTACKS = ("loss", "lira", "auxiliary", "sent")
USUAL = ("loss", "lira")  # where none is named; and "sent" where clients sent sets
MOST = 10_000  # shadows
FEW = 8  # shadows, below which LiRA is hardly more than noise


class AuditScale(NamedTuple):
    """How much to spend. Shadows are trainings as long as the run's own, so that a scale cannot make them shorter."""

    shadows: int = 16
    examples: int = 0  # all that can be


SCALES = {"smoke": AuditScale(2, 200), "cpu": AuditScale(FEW), "paper": AuditScale(MANY)}


@dataclass(frozen=True)
class AuditOptions:
    attacks: tuple[str, ...] = ()  # none named = the usual ones
    target: Literal["whole", "half"] = "whole"
    shadows: int = AuditScale().shadows
    trainer: Trainer = "federated"
    variance: Literal["auto", "shared", "example"] = "auto"
    flip: bool = False
    examples: int = AuditScale().examples
    seed: int = 0
    jobs: int = 0
    shadows_dir: Path | None = None  # where shadows are kept that several runs share
    force: bool = False  # whether results made with more examples or shadows are replaced

    def __post_init__(self) -> None:
        for name in self.attacks:
            if name not in ATTACKS:
                raise unknown_name_error(f"--attack {name}", name, ATTACKS, "an attack")
        if self.shadows < 2 or self.shadows % 2:
            raise UserError(
                f"--shadows must be an even number of at least 2, not {self.shadows}: every second has the other half"
            )
        if self.shadows > MOST:
            raise UserError(f"--shadows must be at most {MOST}, not {self.shadows}: each is a training")
        for name, value in (("examples", self.examples), ("seed", self.seed), ("jobs", self.jobs)):
            if value < 0:
                raise UserError(f"--{name} must be at least 0, not {value}")

    @property
    def lira_labels(self) -> dict[str, str]:
        """What the results of LiRA's two scores are called."""
        trained = "" if self.trainer == "federated" else f", {self.trainer} shadows"
        return {score: f"lira {score}{trained}" for score in ("online", "offline")}

    @property
    def sigma(self) -> Variance:
        return ("example" if self.shadows >= MANY else "shared") if self.variance == "auto" else self.variance
