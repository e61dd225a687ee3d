"""All owners' learned sets over the rounds, for audits: auxiliary/round0007.safetensors, where `output.sets` asks.

    client3/X, client3/y     of client 3             server/X, server/y     of the server

And auxiliary/start-client3.safetensors: an auxiliary set as it was when it came, before any matching. An auxiliary set
never leaves its owner; whoever simulates a federation may look into all of them. Of methods whose clients send sets,
client3/X is what client 3 sent last.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedptr import atomic_files
from fedptr.core.federation import Run
from fedptr.errors import UserError
from fedptr.runs.auxiliary_pictures import FOLDER
from fedptr.runs.set_owners import has_images, list_owners, owner_state, were_sent
from fedptr.types import State

NAME = re.compile(r"round(\d{4,9})\.safetensors")


def is_round_kept(every: int, t: int, total: int) -> bool:
    """Whether the sets of round t (from 1) are kept.

    >>> [t for t in range(1, 11) if is_round_kept(4, t, 10)], [t for t in range(1, 11) if is_round_kept(0, t, 10)]
    ([1, 4, 8, 10], [])
    """
    return every > 0 and (t in (1, total) or t % every == 0)


def keep_sets(run: Run, out: Path, every: int, total: int) -> None:
    """What is due after a round; nothing where nobody has a set."""
    if not every:
        return
    begun = [] if were_sent(run) else list_owners(run)
    for owner in (
        one for one in begun if not start_path(out, one).exists()
    ):  # matching waits until its owner has received some models
        write_sets({owner: owner_state(run, owner)}, start_path(out, owner), run.round)
    if is_round_kept(every, run.round, total):
        everyone = {owner: owner_state(run, owner) for owner in list_owners(run)}
        write_sets(everyone, out / FOLDER / f"round{run.round:04}.safetensors", run.round)


def start_path(out: Path, owner: str) -> Path:
    return out / FOLDER / f"start-{owner}.safetensors"


def write_sets(states: dict[str, State], path: Path, t: int) -> None:
    tensors = {f"{owner}/{name}": state[name] for owner, state in states.items() if has_images(state) for name in "Xy"}
    if tensors:
        path.parent.mkdir(exist_ok=True)
        atomic_files.write_tensors(path, tensors, {"round": str(t)})


def load_sets(out: Path) -> dict[int, dict[str, State]]:
    """Round -> owner -> X and y."""
    found: dict[int, dict[str, State]] = {}
    for path in sorted((out / FOLDER).glob("*")):
        if match := NAME.fullmatch(path.name):
            found[int(match[1])] = read_sets(path, out)
    return dict(sorted(found.items()))


def load_starts(out: Path) -> dict[str, State]:
    """Owner -> X and y as they were when they came."""
    found: dict[str, State] = {}
    for path in sorted((out / FOLDER).glob(start_path(out, "*").name)):
        found |= read_sets(path, out)
    return found


def read_sets(path: Path, out: Path) -> dict[str, State]:
    try:
        tensors, _ = atomic_files.read_tensors(path)
        names = dict.fromkeys(name.partition("/")[0] for name in tensors)
        return {owner: {name: tensors[f"{owner}/{name}"] for name in "Xy"} for owner in names}
    except (atomic_files.DamagedFileError, KeyError) as error:
        raise UserError(f"{path.parent}: {error}; remove {out} and audit again") from None
