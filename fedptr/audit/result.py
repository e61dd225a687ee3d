"""audit.json: an audit's numbers, with what they were made of and with.

Attacks made at other times stay, if they were on the same model and examples, so that they can be made one by one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedptr.audit.examples import Examples
from fedptr.audit.metrics import Measures
from fedptr.audit.options import Options
from fedptr.audit.roc import Flags
from fedptr.audit.target import Target
from fedptr.errors import UserError
from fedptr.history import jsonable
from fedptr.sealed import write_text
from fedptr.summary import versions

NAME = "audit.json"
FORMAT = 1
LARGEST = 50_000_000  # bytes
SAME = ("weights_sha256", "examples_sha256", "target", "seed")
Result = dict[str, Any]


def about(run: Target, attacked: Target, examples: Examples, member: Flags, options: Options) -> Result:
    """Who was attacked with which examples."""
    tables = run.plan.tables()
    # Results are shared; where they were made is not.
    tables["data"] |= {"dir": "", "name": Path(run.plan.data.name).stem}
    return {
        "format": FORMAT,
        "method": run.plan.method.name,
        "dataset": run.dataset.name,
        "run_seed": run.plan.run.seed,
        "target": options.target,
        "weights_sha256": attacked.summary["weights_sha256"],
        "split_sha256": run.split.sha256,
        "seed": options.seed,
        "examples_sha256": examples.sha256,
        "members": int(member.sum()),
        "non_members": int((~member).sum()),
        "background": sum(map(len, examples.background)),
        "plan": tables,
        "versions": versions(),
    }


def write(folder: Path, told: Result, attacks: dict[str, Measures], auxiliary: Result | None) -> Result:
    """Into the audit's folder; returns all that is in the file then."""
    before: Result = {}
    if (folder / NAME).is_file():
        before = read(folder)
        if any(before.get(name) != told[name] for name in SAME):
            before = {}
    whole = {**told, "attacks": {**before.get("attacks", {}), **attacks}}
    own = auxiliary or before.get("auxiliary")
    whole |= {"auxiliary": own} if own else {}
    write_text(folder / NAME, json.dumps(jsonable(whole), indent=1) + "\n")
    return whole


def read(folder: Path) -> Result:
    """What an earlier audit wrote."""
    path = folder / NAME
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found["attacks"], dict):
            raise ValueError
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, RecursionError):
        raise UserError(f"{path} is not what `fedptr audit` writes; remove it and audit again") from None
    return found
