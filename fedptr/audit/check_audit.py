"""Checks the parts of an audit.json that are shown; anybody may have written the file."""

from __future__ import annotations

from typing import Any

from fedptr.audit.metrics import RATES
from fedptr.stats import is_usable_number

Audit = dict[str, Any]
SENT = "sent"
SERIES = ("real", "noise", SENT)  # how auxiliary sets start, or the sets that clients sent
SETS = ("auxiliary", SENT)  # kinds of sets that are attacked
NUMBERS = ("copies", "closer", "distance_any", "distance_own", "distance_held")
LONGEST = 1000  # points of a curve, rounds of a series
WRONG = (KeyError, TypeError, ValueError, AttributeError, IndexError)  # what a foreign file raises


def check_audit(whole: Audit) -> Audit:
    """The parts that are shown; raises one of WRONG if something is missing or not a number."""
    told = {name: str(whole[name]) for name in ("method", "dataset", "run_seed", "target")}
    counts = {name: check_number(whole[name]) for name in ("members", "non_members")}
    attacks = {str(name): check_attack(numbers) for name, numbers in whole["attacks"].items()}
    if len({len(numbers["clients"]) for numbers in attacks.values()}) > 1:
        raise ValueError
    sets = {name: check_sets(whole[name]) if whole.get(name) else None for name in SETS}
    return {**told, **counts, "attacks": attacks, **sets}


def check_attack(numbers: Any) -> Audit:
    found = {**check_measures(numbers), "clients": [check_client(entry) for entry in numbers["clients"]]}
    found["roc"] = {name: [check_number(value) for value in numbers["roc"][name][:LONGEST]] for name in ("fpr", "tpr")}
    if "shadows" in numbers:
        found["shadows"] = int(check_number(numbers["shadows"]))
    if "yeom" in numbers:
        found["yeom"] = {name: check_number(numbers["yeom"][name]) for name in ("accuracy", "tpr", "fpr")}
    return found


def check_measures(numbers: Any) -> Audit:
    names = ("auc", "accuracy", *(["accuracy_oracle"] if "accuracy_oracle" in numbers else []))
    rates = [f"{rate:g}" for rate in RATES]
    return {
        **{name: check_number(numbers[name]) for name in names},
        "auc_ci95": check_pair(numbers["auc_ci95"]),
        "tpr": {rate: check_number(numbers["tpr"][rate]) for rate in rates},
        "tpr_ci95": {rate: check_pair(numbers["tpr_ci95"][rate]) for rate in rates},
    }


def check_client(entry: Any) -> Audit:
    counts = {name: int(check_number(entry[name])) for name in ("client", "members")}
    return {**counts, **(check_measures(entry) if "auc" in entry else {})}


def check_sets(own: Any) -> Audit:
    series = {
        str(init): [check_entry(entry) for entry in entries[:LONGEST]]
        for init, entries in own["series"].items()
        if init in SERIES
    }
    owners = [str(owner) for owner in own["owners"]]
    each = [{"owner": str(entry["owner"]), **check_entry(entry)} for entry in own.get("by_owner", [])]
    return {"note": str(own["note"]), "owners": owners, "series": series, "by_owner": each}


def check_entry(entry: Any) -> Audit:
    """What a set, or all of them together, gave away after a round."""
    return {
        "round": int(check_number(entry["round"])),
        "images": int(check_number(entry.get("images", 0))),
        **{name: check_number(entry[name]) for name in NUMBERS},
        "closer_ci95": check_pair(entry["closer_ci95"]),
        **{name: check_measures(entry[name]) if entry[name] else None for name in ("members", "starts")},
    }


def check_number(value: Any) -> float:
    if not is_usable_number(value):
        raise ValueError
    return float(value)


def check_pair(values: Any) -> list[float]:
    low, high = values
    return [check_number(low), check_number(high)]
