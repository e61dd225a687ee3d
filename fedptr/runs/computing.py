"""How the rounds of a run are computed, and after which rounds that changed.

Compiled code, another processor or another PyTorch round differently. So a checkpoint tells what computed it, and a
resume that would be computed another way is refused; `fedptr resume --recompute` accepts it, and the summary says so.
Checkpoints of earlier versions do not tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedptr.atomic_files import Header
from fedptr.compute.describe_computing import describe_computing, find_changes
from fedptr.core.federation import Run
from fedptr.core.task import ModelTask
from fedptr.errors import UserError
from fedptr.messages import print_notice


class Computing:
    """What computes a run: `resume_from` a checkpoint, take the rounds through `checked`, and save the `header`."""

    def __init__(self, out: Path, task: ModelTask, accept_changes: bool = False, how: str = "") -> None:
        self.out, self.task, self.accept_changes = out, task, accept_changes
        self.how = how or f"`fedptr resume {out} --recompute`"  # to accept it with
        self.round = 0  # of the checkpoint
        self.before: dict[str, str] = {}  # what computed it; empty = it does not tell
        self.changes: list[dict[str, Any]] = []  # that were accepted, in this process and in earlier ones

    def resume_from(self, header: Header) -> None:
        """Refuses a checkpoint that was computed another way, unless that is accepted."""
        self.round = int(header["round"])
        self.before = json.loads(header.get("computed", "{}"))
        self.changes = json.loads(header.get("recomputed", "[]"))
        self.check()

    def check(self) -> None:
        now = describe_computing(self.task)
        changes = find_changes(self.before, now)
        if not changes:
            return
        told = ", ".join(f"{name} was {before} and is {after}" for name, (before, after) in changes.items())
        if not self.accept_changes:
            raise UserError(
                f"{self.out} would be computed another way than it was, which rounds differently: {told}; undo that, "
                f"or accept it with {self.how}"
            )
        print_notice(f"{self.out} is computed another way from round {self.round + 1} on: {told}")
        parts = {word: {name: pair[k] for name, pair in changes.items()} for k, word in enumerate(("from", "to"))}
        self.changes.append({"round": self.round, **parts})
        self.before = now

    def checked(self, runs: Iterable[Run]) -> Iterator[Run]:
        """The rounds as they come; only a round that was computed tells whether torch.compile still succeeds."""
        for run in runs:
            if self.before:
                self.check()
            yield run

    def header(self) -> Header:
        """What a checkpoint keeps of this."""
        changed = {"recomputed": json.dumps(self.changes)} if self.changes else {}
        return {"computed": json.dumps(describe_computing(self.task)), **changed}
