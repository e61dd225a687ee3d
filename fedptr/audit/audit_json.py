"""audit.json: the numbers of an audit, and what they were computed from.

Attacks on the same model and examples are added to the file, so they can be run one by one. A file about another model
or other examples is put aside. The parts about auxiliary and sent sets belong to the run, whatever the examples are.
Results made with more examples or shadows are replaced only where that is forced.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedptr.atomic_files import write_text
from fedptr.audit.check_audit import SETS, WRONG, check_audit
from fedptr.audit.examples import Examples
from fedptr.audit.metrics import Measures
from fedptr.audit.options import AuditOptions
from fedptr.audit.roc import Flags
from fedptr.audit.target import Target
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.regular_files import read_bytes
from fedptr.runs.rounds_file import to_json_values
from fedptr.runs.summary import list_versions

NAME = "audit.json"
FORMAT = 2
LARGEST = 50_000_000  # bytes
RUN = ("run_sha256", "data_sha256", "seed")
SAME = (*RUN, "weights_sha256", "examples_sha256", "target")
Result = dict[str, Any]


def describe_audit(run: Target, attacked: Target, examples: Examples, member: Flags, options: AuditOptions) -> Result:
    """Which model was attacked, with which examples."""
    tables = run.plan.tables()
    # Results are shared; where they were made is not.
    tables["data"] |= {"dir": "", "name": Path(run.plan.data.name).stem}
    return {
        "format": FORMAT,
        "method": run.plan.method.name,
        "dataset": run.dataset.name,
        "run_seed": run.plan.run.seed,
        "target": options.target,
        "run_sha256": run.summary["weights_sha256"],
        "weights_sha256": attacked.summary["weights_sha256"],
        "split_sha256": run.split.sha256,
        "data_sha256": run.data_sha256,
        "seed": options.seed,
        "examples": options.examples,
        "examples_sha256": examples.sha256,
        "members": int(member.sum()),
        "non_members": int((~member).sum()),
        "background": sum(map(len, examples.background)),
        "plan": tables,
        "versions": list_versions(),
    }


def refuse_smaller_audit(folder: Path, run: Target, examples: Examples, options: AuditOptions) -> None:
    """Raises if the file has the same attacks on the same model with more examples or shadows."""
    before = read_audit(folder) if (folder / NAME).is_file() else {}
    model = {"run_sha256": run.summary["weights_sha256"], "data_sha256": run.data_sha256, "target": options.target}
    if options.force or any(before.get(name) != value for name, value in model.items()):
        return
    more = []
    known, here = int(before["members"] + before["non_members"]), len(examples.rows)
    if here < known and before["attacks"] and {"loss", "lira"}.intersection(options.attacks):
        more.append(f"{known} examples instead of {here}")
    shadows = max(count_shadows(before, label) for label in options.lira_labels.values())
    if options.shadows < shadows and "lira" in options.attacks:
        more.append(f"{shadows} shadows instead of {options.shadows}")
    if more:
        words = f"has a better audit, with {' and '.join(more)}, and is kept; add --force to replace it"
        raise UserError(f"{folder / NAME} {words}")


def write_audit(folder: Path, told: Result, attacks: dict[str, Measures], sets: dict[str, Result]) -> Result:
    """Writes the file into the audit's folder, and returns its content."""
    before = read_audit(folder) if (folder / NAME).is_file() else {}
    run, all_ = (all(before.get(name) == told[name] for name in names) for names in (RUN, SAME))
    if before and run and not attacks:  # nothing was asked of the examples
        told, all_ = {**before, "versions": told["versions"]}, True
    fewer = any(numbers.get("shadows", 0) < count_shadows(before, name) for name, numbers in attacks.items())
    if before and (fewer or not all_) and before["attacks"]:
        put_audit_aside(folder, before["target"])
    whole = {**told, "attacks": {**(before["attacks"] if before and all_ else {}), **attacks}}
    earlier = {name: before[name] for name in SETS if before.get(name)} if run else {}
    whole |= {**earlier, **sets}
    write_text(folder / NAME, json.dumps(to_json_values(whole), indent=1) + "\n")
    return whole


def count_shadows(audit: Result, attack: str) -> int:
    """The shadows of an attack in an audit; 0 if it has no such attack, or one without shadows."""
    return int(audit.get("attacks", {}).get(attack, {}).get("shadows", 0))


def put_audit_aside(folder: Path, target: str) -> None:
    digest = hashlib.sha256((folder / NAME).read_bytes()).hexdigest()
    aside = folder / f"audit-{target}-{digest[:8]}.json"
    (folder / NAME).rename(aside)
    print_notice(f"{folder / NAME} was of another model, other examples or more shadows; it is {aside.name} now")


def read_audit(folder: Path) -> Result:
    """What an earlier audit wrote."""
    path = folder / NAME
    try:
        found = json.loads(read_bytes(path, LARGEST))
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError
        check_audit(found)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except (*WRONG, RecursionError):
        raise UserError(f"{path} is not what `fedptr audit` writes; remove it and audit again") from None
    return found
