"""An audit from start to end: the examples, the attacks, and the results by client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedptr import atomic_files
from fedptr.atomic_files import DamagedFileError
from fedptr.audit import audit_json, auxiliary_audit, lira, sent_audit
from fedptr.audit.audit_json import Result
from fedptr.audit.check_audit import SENT, SETS
from fedptr.audit.examples import Examples, choose_examples
from fedptr.audit.loss_attack import run_loss_attack
from fedptr.audit.metrics import ENOUGH, Measures, measure_attack
from fedptr.audit.options import FEW, USUAL, AuditOptions
from fedptr.audit.roc import Flags, Floats
from fedptr.audit.shadows import TrainingJob, draw_halves, make_generator, make_job, plan_shadows, train_jobs
from fedptr.audit.target import Target, load_target
from fedptr.compute.cores import count_cores
from fedptr.errors import UserError
from fedptr.messages import format_duration, print_notice
from fedptr.runs.folder import AUDIT
from fedptr.runs.lock import locked
from fedptr.runs.rounds_file import Record
from fedptr.runs.summary import NAME as SUMMARY
from fedptr.runs.trained_model import read_final_model

BRIEF = ("members", "non_members", "auc", "auc_ci95", "accuracy", "tpr", "tpr_ci95")  # kept for each client


@dataclass(frozen=True, eq=False)
class AuditCase:
    run: Target  # the audited run
    attacked: Target  # itself, or the same training on half of the examples
    examples: Examples
    member: Flags  # whether the attacked model was trained on an example
    options: AuditOptions

    @property
    def jobs(self) -> int:
        """Runs at a time: one per core if each run uses one thread."""
        return self.options.jobs or (count_cores() if self.run.plan.machine.threads == 1 else 1)


def run_audit(folder: Path, options: AuditOptions) -> dict[str, Any]:
    """Audits a finished run and writes audit/audit.json into its folder; finished shadows are used again."""
    run = load_target(folder)
    options = replace(options, attacks=options.attacks or (*USUAL, *([SENT] if sent_audit.sends_sets(run) else [])))
    check_sets(run, options)
    examples = choose_examples(
        run.split, run.labels, options.examples, make_generator(options.seed, "examples"), run.seen
    )
    if absent := len(run.split.clients) - len(run.seen):
        print_notice(
            f"note: {absent} of {len(run.split.clients)} clients never took part, so their samples are no members"
        )
    place = folder / AUDIT
    place.mkdir(exist_ok=True)
    with locked(place):
        audit_json.refuse_smaller_audit(place, run, examples, options)
        attacked, member = train_on_half(run, examples, options) if options.target == "half" else (run, examples.member)
        case = AuditCase(run, attacked, examples, member, options)
        found = {"loss": attack_by_loss(case)} if "loss" in options.attacks else {}
        found |= attack_by_lira(case) if "lira" in options.attacks else {}
        sets = audit_sets(run, options, place, case.jobs)
        told = audit_json.describe_audit(run, attacked, examples, member, options)
        return audit_json.write_audit(place, told, found, sets)


def check_sets(run: Target, options: AuditOptions) -> None:
    """Raises if the run has no such sets as are to be attacked, or none that can be compared with samples."""
    asked = [name for name in SETS if name in options.attacks]
    if "auxiliary" in asked:
        auxiliary_audit.check_has_auxiliary_sets(run.plan)
    if SENT in asked:
        sent_audit.check_sends_sets(run)
    if asked and run.dataset.vocabulary:
        raise UserError(
            f"the attack {asked[0]} compares learned sets with samples, and those of texts are word vectors; choose "
            "loss or lira"
        )


def audit_sets(run: Target, options: AuditOptions, place: Path, jobs: int) -> dict[str, Result]:
    """What each kind of set gives away, of those that are to be attacked."""
    found = {}
    if "auxiliary" in options.attacks:
        found["auxiliary"] = auxiliary_audit.audit_auxiliary_sets(run, options.seed, place, jobs)
    if SENT in options.attacks:
        found[SENT] = sent_audit.audit_sent_sets(run, options.seed, place)
    return found


def train_on_half(run: Target, examples: Examples, options: AuditOptions) -> tuple[Target, Flags]:
    """The run's training on a random half of the examples, and which they were."""
    n = len(examples.rows)
    inside = np.zeros(n, dtype=bool)
    inside[make_generator(options.seed, "half").permutation(n)[: n // 2]] = True
    wanted = make_job(run.plan, examples, inside, run.plan.run.seed)
    place = run.folder / AUDIT / f"half-{wanted.split.sha256[:12]}"
    train_jobs({place: wanted}, 1, "half target")
    return load_target(place), inside


def attack_by_loss(case: AuditCase) -> Measures:
    losses, rng = case.attacked.losses(case.examples.rows), make_generator(case.options.seed, "loss")
    training_loss = float(case.attacked.losses(case.attacked.trained).mean())
    return {
        **run_loss_attack(losses, case.member, training_loss, rng),
        "clients": measure_by_client(case, -losses, rng),
    }


def attack_by_lira(case: AuditCase) -> dict[str, Measures]:
    """Online and offline, from the same shadows."""
    options, rows = case.options, case.examples.rows
    inside = draw_halves(len(rows), options.shadows, options.seed)
    kept = options.shadows_dir or case.run.folder / AUDIT / "shadows"
    wanted = plan_shadows(
        case.run.plan, case.run.data_sha256, case.examples, inside, options.seed, options.trainer, kept
    )
    announce_training(case, wanted)
    board = train_jobs(wanted, case.jobs, "shadow")
    summaries = [board.done[path][0] for path in wanted]
    phi = np.stack([load_or_compute_phi(case, path, told) for path, told in zip(wanted, summaries, strict=True)])
    own, rng = case.attacked.phi(rows, options.flip), make_generator(options.seed, "lira")
    scoring: dict[str, Callable[..., Floats]] = {"online": lira.score_online, "offline": lira.score_offline}
    found = {}
    for name, score in scoring.items():
        scores = score(own, phi, inside, options.sigma)
        found[options.lira_labels[name]] = {
            **measure_attack(scores, case.member, rng),
            "clients": measure_by_client(case, scores, rng),
            "shadows": options.shadows,
            "trainer": options.trainer,
            "variance": options.sigma,
            "flip": options.flip,
            "shadow_seeds": [one.plan.run.seed for one in wanted.values()],
            "shadow_seconds": sum(told["seconds"] for told in summaries),
        }
    return found


def load_or_compute_phi(case: AuditCase, folder: Path, summary: Record) -> Floats:
    """φ of the examples by a shadow. It is saved beside the shadow, because other audits need it too."""
    path = folder / f"phi{'-flip' if case.options.flip else ''}.safetensors"
    same = {"weights": summary["weights_sha256"], "examples": case.examples.sha256, "data": case.run.data_sha256}
    with contextlib.suppress(DamagedFileError):
        tensors, header = atomic_files.read_tensors(path)
        if header == same:
            return np.asarray(tensors["phi"])
    found = read_final_model(folder, case.run.task, summary, f"remove {folder} and audit again")
    shadow = replace(case.run, model=found)
    phi = shadow.phi(case.examples.rows, case.options.flip)
    atomic_files.write_tensors(path, {"phi": torch.tensor(phi)}, same)
    return phi


def announce_training(case: AuditCase, wanted: dict[Path, TrainingJob]) -> None:
    """Says how long training will take."""
    options = case.options
    if options.shadows < FEW:
        print_notice(
            f"note: {options.shadows} shadows are few; use {FEW} or more for a first look, 16 or more to report"
        )
    missing = sum(not (path / SUMMARY).exists() for path in wanted)
    if missing:
        each, jobs = case.run.summary["seconds"], case.jobs
        whole = format_duration(missing * each / jobs)
        took = f"the run itself took {format_duration(each)}; {jobs} at a time that would be {whole}"
        print_notice(f"{missing} of {len(wanted)} {options.trainer} shadows are to be trained ({took})")


def measure_by_client(case: AuditCase, scores: Floats, rng: np.random.Generator) -> list[Measures]:
    """The same numbers for each client's examples; a client with too few examples has only the counts."""
    found = []
    for i in range(len(case.run.split.clients)):
        own = case.examples.client == i
        members, others = int(case.member[own].sum()), int((~case.member[own]).sum())
        numbers: Measures = {"members": members, "non_members": others}
        if min(members, others) >= ENOUGH:
            measured = measure_attack(scores[own], case.member[own], rng, draws=200)
            numbers = {name: measured[name] for name in BRIEF}
        found.append({"client": i, **numbers})
    return found
