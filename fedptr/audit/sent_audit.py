"""The audit of the sets that clients sent: what the server, and whoever reads what it stores, can tell from them.

A method whose clients send sets keeps the last ones in its state, so the run's last checkpoint has them; with
`output.sets` the folder also has those of earlier rounds. The questions of `fedptr.audit.set_questions` are asked of
all clients together after every such round, and of every client after the last. How a set began is not asked.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedptr.audit import closest_pairs
from fedptr.audit.check_audit import SENT
from fedptr.audit.neighbours import OwnedClass, list_owned_classes
from fedptr.audit.set_questions import Result, ask_questions
from fedptr.audit.shadows import make_generator
from fedptr.audit.target import Target
from fedptr.errors import UserError
from fedptr.runs import auxiliary_sets
from fedptr.runs.final_weights import find_in_checkpoint
from fedptr.runs.set_owners import client_number, has_images, list_owners, owner_state, were_sent
from fedptr.types import State

NOTE = "These sets left their clients: the server has them, and whoever gets them can look at them."


def sends_sets(run: Target) -> bool:
    """Whether the run's method sends sets of samples."""
    return run.plan.method.sends_sets


def check_sends_sets(run: Target) -> None:
    """Raises if clients sent no sets."""
    if not sends_sets(run):
        raise UserError(f"clients of {run.plan.method.name} send no sets; leave {SENT} out of --attack")


def audit_sent_sets(run: Target, seed: int, place: Path) -> Result:
    rounds = load_sent_sets(run)
    owners = sorted({owner for state in rounds.values() for owner in state}, key=client_number)
    found = list_owned_classes(run, owners, make_generator(seed, SENT))
    last = max(rounds)
    series = [entry for t, sets in rounds.items() if (entry := ask(run, found, t, sets, seed))]
    if not series:
        raise UserError("no class that a client has samples of is held out, so there is nothing to compare with")
    each = {owner: ask(run, [g for g in found if g.owner == owner], last, rounds[last], seed) for owner in owners}
    pictures = all(has_images(state) for state in rounds[last].values())
    pairs = closest_pairs.save_closest_pairs(run, found, rounds, place / f"pairs-{SENT}.png") if pictures else []
    return {
        "note": NOTE,
        "owners": owners,
        "series": {SENT: series},
        "by_owner": [{"owner": owner, **entry} for owner, entry in each.items() if entry],
        "pairs": {SENT: pairs},
    }


def ask(run: Target, found: list[OwnedClass], t: int, sets: dict[str, State], seed: int) -> Result | None:
    return ask_questions(run, found, [np.zeros(len(group.own), dtype=bool) for group in found], t, sets, seed)


def load_sent_sets(run: Target) -> dict[int, dict[str, State]]:
    """Round -> client -> X and y; the last round's from the checkpoint."""
    rounds, last = auxiliary_sets.load_sets(run.folder), run.summary["rounds"]
    if last not in rounds:
        end = find_in_checkpoint(run.folder, run.summary)
        if end is None or not were_sent(end):
            raise UserError(f"{run.folder} no longer has what its clients sent; run its plan again")
        rounds[last] = {owner: owner_state(end, owner) for owner in list_owners(end)}
    return rounds
