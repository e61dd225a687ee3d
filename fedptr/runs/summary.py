"""summary.json: what came out, what it cost, and what it was made with."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch

import fedptr
from fedptr.atomic_files import DamagedFileError, write_text
from fedptr.compute.describe_computing import name_backend
from fedptr.core.client_scores import describe_spread
from fedptr.core.early_stopping import STOPPED, has_enough_rounds
from fedptr.core.federation import Run
from fedptr.core.method import Method
from fedptr.data import dataset
from fedptr.headline import headline_of_rounds
from fedptr.messages import print_notice
from fedptr.methods.ptr.combine import ptr_setting_name
from fedptr.regular_files import read_bytes, read_text
from fedptr.runs.experiment import Experiment
from fedptr.runs.plan import Plan
from fedptr.runs.rounds_file import Record, RoundsFile, read_lines, to_json_values
from fedptr.settings import choices_of, type_hints
from fedptr.stats import number_or_nan

NAME = "summary.json"
PLAN = "plan.toml"
OF_THE_END = (
    "matching",
    "gap_growth",
    "peak_memory_bytes",
    "weights_sha256",
    "rounds_sha256",
    "plan_sha256",
    STOPPED,
)  # not known of before
LAST = 5  # the paper's headline number is the mean accuracy of this many last rounds
DIVERGES = 10  # times the gap that a learned set began with; a sound one may have 3, by chance
MORE = ("mse", "mae", "exact")  # scores of tasks without classes, beside the headline; in the labels' own units
NUMBERS = ("no", "one", "two", "three", "four", "five")


def summarise_run(plan: Plan, experiment: Experiment, run: Run, history: RoundsFile) -> Record:
    records = history.records
    return {
        "method": plan.method.name,
        "dataset": experiment.dataset.name,
        "rounds": run.round,
        "seed": plan.run.seed,
        **measure_rounds(records, plan.run.eval_every),
        **describe_labels(experiment.dataset),
        **({"personal_adapts": plan.method.adapts} if plan.personalised else {}),
        **describe_privacy(plan, records[-1]),
        **describe_matching(records),
        **describe_gaps(records),
        "peak_memory_bytes": peak_memory(),
        "parameters": len(run.w),
        "layers": [layer.name for layer in experiment.task.layers],  # the order of `distances` in rounds.jsonl
        "weights_sha256": weights_sha256(run),
        "rounds_sha256": history.digest.hexdigest(),
        "split_sha256": experiment.split.sha256,
        "split_draws": experiment.split.draws,
        "data_sha256": dataset.dataset_digest(experiment.dataset),
        "test_images": len(experiment.test),
        "test_images_left_out": experiment.dataset.left_out_tests,
        **({"validation": plan.data.validation} if plan.data.validation else {}),
        "data": experiment.dataset.source.rpartition("/")[2],  # results are shared; where they were made is not
        "device": experiment.task.device,
        "threads": getattr(experiment.task, "threads", torch.get_num_threads()),
        "computed": name_backend(experiment.task),
        "versions": list_versions(),
    }


def measure_rounds(records: list[Record], every: int) -> Record:
    """Scores and cost of a run that ended with these rounds.

    Evaluations count that such a run makes: every N rounds, and after the last. A run that was continued has one
    more where it had ended before, which stays in rounds.jsonl.
    """
    last = records[-1]
    due = [record for record in records if record["round"] % every == 0 or record is last]
    headline = headline_of_rounds(records)
    evaluated = [record for record in due if headline.test in record] or [{headline.test: math.nan}]
    scores, key = [record[headline.test] for record in evaluated], headline.key
    seconds = sum(record["seconds"]["total"] for record in records)
    return {
        key: sum(scores[-LAST:]) / len(scores[-LAST:]),
        f"{key}_rounds": len(scores[-LAST:]),  # of which it is the mean
        f"{key}_best": max(scores),
        f"{key}_final": scores[-1],
        "loss_final": evaluated[-1].get("test_loss", math.nan),
        **{f"{name}_final": evaluated[-1][f"test_{name}"] for name in MORE if f"test_{name}" in evaluated[-1]},
        "seconds": seconds,
        "seconds_per_round": seconds / len(records),
        "bytes_per_round": sum(record["bytes_up"] + record["bytes_down"] for record in records) / len(records),
        "dropped": sum(len(record.get("dropped", ())) for record in records),
        **count_left_out_entries(records),
        **describe_clients(due),
    }


def count_left_out_entries(records: list[Record]) -> Record:
    """How many entries of nodes' logs were left out, where any were."""
    lists = [entries for record in records for entries in record.get("entries_left_out", {}).values()]
    return {"entries_left_out": sum(map(len, lists))} if lists else {}


def describe_mean(counts: Iterable[int]) -> str:
    """Over which rounds accuracies are averaged, from the number of rounds in each mean.

    >>> describe_mean([5, 5]), describe_mean([1]), describe_mean([2, 5])
    ('mean of the last five rounds', 'after the last round', 'mean of at most five rounds')
    """
    known = set(counts)
    if known == {1}:
        return "after the last round"
    return f"mean of {'the last' if len(known) == 1 else 'at most'} {NUMBERS[max(known)]} rounds"


def describe_tested(summary: Mapping[str, Any]) -> str:
    """On which part of the test images the accuracy was measured; empty if on all, or if it is not known."""
    if "validation" in summary:
        return f"tested on {summary['test_images']:,} held-out training samples, not on the test set"
    return dataset.describe_test_part(summary.get("test_images", 0), summary.get("test_images_left_out", 0))


def count_averaged(rounds: int, every: int) -> int:
    """How many rounds the accuracy of a run of this length is the mean of."""
    return min(LAST, math.ceil(rounds / every))


def describe_clients(records: list[Record]) -> Record:
    """How accuracy on the clients' own test data is spread over clients, mean of the last evaluated rounds.

    `clients_global` is of the global model, `clients_personal` of the models that methods give to their clients. Where
    there are no classes it is the loss, of which the worst is the highest, in `clients_global_loss` and so on.
    """
    tests = [record["client_tests"] for record in records if "client_tests" in record][-LAST:]
    found: Record = {}
    for name, entry in (("clients_global", "accuracy"), ("clients_personal", "personal_accuracy")):
        spreads = [describe_spread(one[entry], one["tests"]) for one in tests if entry in one]
        if spreads:
            found[name] = {what: statistics.fmean(spread[what] for spread in spreads) for what in spreads[0]}
    for name, entry in (("clients_global_loss", "loss"), ("clients_personal_loss", "personal_loss")):
        losses = [(one[entry], one["tests"]) for one in tests if entry in one and "accuracy" not in one]
        if losses:
            spreads = [{**describe_spread(*each), "worst": max(each[0])} for each in losses]
            found[name] = {what: statistics.fmean(spread[what] for spread in spreads) for what in spreads[0]}
    return found


def describe_labels(data: dataset.Dataset) -> Record:
    """What losses are to be multiplied with to be in the labels' own units, where labels are numbers."""
    return {"label_mean": data.label_mean, "label_std": data.label_std} if data.target == "number" else {}


def summary_at_round(summary: Record, records: list[Record], rounds: int, every: int) -> Record:
    """The summary as it was after this many rounds, at which the run must have been evaluated."""
    if summary["rounds"] <= rounds:
        return summary
    first = records[:rounds]
    known = {name: value for name, value in summary.items() if name not in OF_THE_END}
    if "privacy" in summary:
        spent = {name: first[-1][name] for name in ("epsilon", "releases") if name in first[-1]}
        known["privacy"] = {**summary["privacy"], **spent}
    return {**known, "rounds": rounds, **measure_rounds(first, every), **describe_matching(first)}


def cut_to_plan(plan: Plan, summary: Record, records: list[Record]) -> tuple[Record, list[Record]]:
    """The run until the plan's last round: it may be longer, for another plan."""
    return summary_at_round(summary, records, plan.run.rounds, plan.run.eval_every), records[: plan.run.rounds]


def describe_privacy(plan: Plan, last: Record) -> Record:
    """What differential privacy promises of the run, where it has any."""
    if not plan.privacy.clip:
        return {}
    promise = "a client's taking part" if plan.privacy.randomness == "system" else "nothing: its noise is from the seed"
    counted = {"releases": last["releases"]} if "releases" in last else {}
    return {"privacy": {"epsilon": last["epsilon"], "delta": plan.privacy.delta, **counted, "protects": promise}}


def describe_matching(records: list[Record]) -> Record:
    """How FedPTR's matchings ended, where there were any."""
    parts = [part for record in records for part in (record.get("server", {}), *record["clients"])]
    losses = [loss for part in parts if math.isfinite(loss := number_or_nan(part.get("match_after")))]
    skipped = [number_or_nan(part.get("projection_skipped", 0)) for part in parts]
    count = int(sum(number for number in skipped if math.isfinite(number)))
    return {"matching": {"times": len(losses), "loss": statistics.median(losses), "skipped": count}} if losses else {}


def describe_gaps(records: list[Record]) -> Record:
    """How many times its first gap the last one of a client's learned images was (FedDM), where they were learned."""
    found = [
        number_or_nan(part["gap_growth"]) for record in records for part in record["clients"] if "gap_growth" in part
    ]
    finite = [growth for growth in found if math.isfinite(growth)]
    return {"gap_growth": statistics.median(finite)} if finite else {}


def print_advice(method: Method, summary: Record) -> None:
    """Says what the owner of a finished run should know of it."""
    matching = summary.get("matching")
    if (growth := summary.get("gap_growth", 0.0)) >= DIVERGES:
        print_notice(
            f"note: learning makes clients' images worse: their gap grows {growth:.0f}-fold in a round (median); "
            f"try a smaller step, such as --set method.lr_img={getattr(method, 'lr_img', 1.0) / 10:g}"
        )
    if matching and matching["loss"] >= 1:
        median = f"its matching loss is {matching['loss']:.2f} (median of {matching['times']})"
        print_notice(
            f"note: the auxiliary data mimics nothing: {median}, and a student that stays where it is has 1; "
            f"{matching['skipped']} projections were left out; try {advise_matching(method)}"
        )


def advise_matching(method: Method) -> str:
    """What may make auxiliary data mimic more: steps that are found as it is learned, else more of them."""
    own = type(method)
    learned = getattr(method, ptr_setting_name(own, "matching"), "trajectory") == "trajectory"  # gradients find β
    names = [ptr_setting_name(own, key) for key in (["beta", "lr_img"] if learned else ["lr_img"])]
    automatic = [f"--set method.{name}=auto" for name in names if takes_auto(method, name)]
    return " ".join(automatic) or f"--set method.H={2 * getattr(method, 'H', 1)}, which learns for longer"


def takes_auto(method: Method, name: str) -> bool:
    """Whether the method has this setting, and it could be "auto" but is not."""
    hints = type_hints(cast(type, type(method)))
    return name in hints and "auto" in choices_of(hints[name]) and getattr(method, name) != "auto"


def write_summary(folder: Path, summary: Record) -> None:
    """With checksums of itself and of the plan beside it, by which `read_finished` knows that they are whole."""
    if (folder / PLAN).exists():
        summary["plan_sha256"] = hashlib.sha256(read_bytes(folder / PLAN)).hexdigest()
    sealed = {**to_json_values(summary), "sha256": summary_digest(summary)}
    write_text(folder / NAME, json.dumps(sealed, indent=2) + "\n")


def read_finished(folder: Path) -> tuple[Record, list[Record]]:
    """The summary and the rounds of a run that is complete; raises DamagedFileError where it is not, or not sound."""
    return read_result(folder, 0)


def read_once_finished(folder: Path, plan: Plan) -> tuple[Record, list[Record]]:
    """The same; of a run that is to have more rounds by now, as the plan says, as it was when it was last finished."""
    return read_result(folder, plan.run.rounds)


def read_result(folder: Path, rounds: int) -> tuple[Record, list[Record]]:
    try:
        summary = json.loads(read_text(folder / NAME))
        lines = read_lines(folder)
        continued = not has_enough_rounds(summary, rounds)
        own = lines[: int(summary["rounds"])] if continued else lines
        told = hashlib.sha256(b"".join(own)).hexdigest()
        if summary.pop("sha256") != summary_digest(summary) or summary["rounds_sha256"] != told:
            raise DamagedFileError(f"{folder} was changed since its run was finished")
        plan = summary.get("plan_sha256")  # runs of early versions did not tell
        if plan and not continued and hashlib.sha256(read_bytes(folder / PLAN)).hexdigest() != plan:
            raise DamagedFileError(f"{folder / PLAN} was changed since its run was finished")
        return summary, [json.loads(line) for line in own]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"{folder} holds no finished run ({error})") from None


def summary_digest(summary: Record) -> str:
    return hashlib.sha256(json.dumps(to_json_values(summary), sort_keys=True).encode()).hexdigest()


def list_versions() -> dict[str, str]:
    return {
        "fedptr": fedptr.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
    }


def weights_sha256(run: Run) -> str:
    """Of the flat vector's bytes, and of the buffers' where the model has any."""
    state = hashlib.sha256(run.w.cpu().numpy().tobytes())
    if "buffers" in run.server:
        state.update(run.server["buffers"].cpu().numpy().tobytes())
    return state.hexdigest()


def reset_peak_memory() -> None:
    """So that a comparison's later runs are not charged with an earlier one's peak (Linux only)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_memory() -> int:
    return used_memory("VmHWM")


def used_memory(which: Literal["VmRSS", "VmHWM"] = "VmRSS") -> int:
    """Bytes of this process, now or at its peak; where only the peak is known, the peak."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith(which)).split()[1]) * 1024
    except (OSError, StopIteration):
        import resource  # not on Windows, which has no /proc either

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
