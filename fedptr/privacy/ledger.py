"""What differential privacy must not forget: every release, and the cohort that was drawn for the next one.

ε holds for the models that left the server, not for the rounds that are left in a run folder. A server may die after it
released a model, and its newest checkpoint may be damaged: the round is then done again, with another cohort and other
noise, which is a second release. So releases are counted on disk before they happen. Noise is never used again, because
two sums with the same noise tell their difference exactly; for the same reason a model is written down before anything
of it leaves the server, and a resume continues with that model.

Accounting also assumes that a cohort does not depend on what came of it. So a cohort is written down when it is drawn,
and stays until its round releases a model, however often the server is started.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedptr.atomic_files import Header, write_text
from fedptr.core.federation import Rounds, Run
from fedptr.core.method import Method, Site
from fedptr.core.randomness import Key
from fedptr.errors import UserError
from fedptr.privacy.differential import Privacy, compute_epsilon
from fedptr.regular_files import read_text
from fedptr.types import Reply

NAME = "privacy.json"
HEADER = "releases"


@dataclass
class Ledger:
    """privacy.json in a run folder."""

    path: Path
    releases: int = 0  # models that left the server, or were about to
    cohort: list[int] | None = None  # drawn, and nothing of it is released yet

    def write(self) -> None:
        write_text(self.path, json.dumps({"releases": self.releases, "cohort": self.cohort}) + "\n")

    def header(self) -> Header:
        """For a checkpoint, which knows by it whether the ledger is the one of its run."""
        return {HEADER: str(self.releases)}

    def count_release(self) -> None:
        self.releases, self.cohort = self.releases + 1, None
        self.write()

    def keep_cohort(self, cohort: list[int]) -> None:
        self.cohort = cohort
        self.write()


def open_ledger(folder: Path, start: Run | None, header: Header) -> Ledger:
    """The ledger of a run folder, to resume from `start`, whose checkpoint has this header."""
    path, known = folder / NAME, header.get(HEADER)
    if path.exists():
        ledger = read_ledger(path)
        if ledger.releases >= int(known or 0):
            return ledger
        raise UserError(
            f"{path} is older than the run: it counts {ledger.releases} released models, and there were {known}; "
            "restore the newer file, or start another run"
        )
    if known is not None:
        raise UserError(
            f"{path} is missing: it counts the models that were released, and without it ε is not known; restore it, "
            "or start another run"
        )
    # Before there was a ledger: a run may have released the model of the round in which it was stopped.
    ledger = Ledger(path, 0 if start is None else start.round + 1)
    ledger.write()
    return ledger


def read_ledger(path: Path) -> Ledger:
    """Raises UserError where the file is not as it was written."""
    try:
        found = json.loads(read_text(path))
        releases, cohort = found["releases"], found["cohort"]
        sound = is_count(releases) and (cohort is None or (isinstance(cohort, list) and all(map(is_count, cohort))))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        sound = False
    if not sound:
        raise UserError(
            f"{path} is damaged: it counts the models that were released, and without it ε is not known; restore it, "
            "or start another run"
        )
    return Ledger(path, releases, cohort)


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


@dataclass(frozen=True)
class CountedPrivacy:
    """Differential privacy of a run in a folder: the privacy of the plan, with its ledger.

    `save` writes the run down; it is called before anything of the new model leaves the server.
    """

    privacy: Privacy
    ledger: Ledger
    save: Callable[[Run], None]

    def check(self, method: Method, rounds: Rounds) -> None:
        self.privacy.check(method, rounds)

    def cohort(self, clients: Sequence[int], rounds: Rounds, key: Key) -> list[int]:
        if self.ledger.cohort is None:
            self.ledger.keep_cohort(self.privacy.cohort(clients, rounds, key))
        known = set(clients)
        return [i for i in self.ledger.cohort or () if i in known]

    def release(self, replies: list[Reply], x: Tensor, rounds: Rounds, site: Site) -> list[Reply]:
        return self.privacy.release(replies, x, rounds, site)

    def record(self, rounds: Rounds, done: int) -> dict[str, float]:
        """The ε spent with this round's release, which is counted when it happens."""
        releases = self.ledger.releases + 1
        epsilon = compute_epsilon(rounds.participation, self.privacy.noise, releases, self.privacy.delta)
        return {"epsilon": epsilon, "releases": releases}

    def commit(self, run: Run) -> None:
        self.ledger.count_release()
        self.save(run)
