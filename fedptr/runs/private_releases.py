"""How the runs of a folder are saved, and with differential privacy also counted before anything of them leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from fedptr.atomic_files import Header
from fedptr.core.federation import Protection, Run
from fedptr.privacy.ledger import CountedPrivacy, Ledger, open_ledger
from fedptr.runs.checkpoint import CheckpointStore
from fedptr.runs.plan import Plan
from fedptr.runs.rounds_file import RoundsFile

Save = Callable[[Run], None]


def protect_releases(
    plan: Plan, out: Path, start: Run | None, store: CheckpointStore, history: RoundsFile, same: Callable[[], Header]
) -> tuple[Protection, Save]:
    """What `federate` is to protect replies with, and how its runs are saved: with the header of `same`.

    With differential privacy every release is counted in the folder, and is in a checkpoint before it happens.
    """
    ledger: Ledger | None = None
    if plan.privacy.counts_releases:
        header = {} if start is None else store.read_server(start.round)[1]
        ledger = open_ledger(out, start, header)

    def save(run: Run) -> None:
        counted = {} if ledger is None else ledger.header()
        store.save(run, {**same(), **history.header(), **counted, "torch": torch.__version__})

    return plan.privacy if ledger is None else CountedPrivacy(plan.privacy, ledger, save), save
