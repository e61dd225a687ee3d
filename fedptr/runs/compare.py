"""Several methods under the same conditions: the same split, initial weights, cohorts and batch order for a seed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import tomli_w

from fedptr import methods, plots
from fedptr.atomic_files import DamagedFileError, write_text
from fedptr.core.early_stopping import has_enough_rounds
from fedptr.errors import ClientError, UserError
from fedptr.messages import count_noun, print_notice
from fedptr.runs import comparison_table, extend
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.folder import MOST_SEEDS
from fedptr.runs.lock import StoppedError, advise_resume, locked
from fedptr.runs.plan import (
    Plan,
    Tables,
    check_plan,
    check_sections,
    load_plan,
    read_plan,
    tables_for_method,
    with_baselines,
    with_defaults,
    with_rounds,
)
from fedptr.runs.progress import show_progress
from fedptr.runs.rounds_file import Record, to_json_values
from fedptr.runs.runner import Engine, in_process, resume_run, start_run
from fedptr.runs.same_run import changed_settings, identity_text
from fedptr.runs.summary import read_finished
from fedptr.runs.trained_model import mend_weights
from fedptr.settings import unknown_name_error

ORDER = "compare.toml"


def build_plans(tables: Tables, names: Sequence[str], seeds: int) -> dict[str, list[Plan]]:
    """All plans of a comparison, checked before anything runs: method -> one plan a seed."""
    check_shared_settings(tables, names)
    tables = with_client_tests(tables, names)
    first = check_plan(tables_for_method(tables, names[0])).run.seed
    found: dict[str, list[Plan]] = {}
    for name in names:
        shown = methods.find_method(name).name  # also of module:Class
        if shown in found:
            raise UserError(f"two of the methods have the name {shown}; compare one of them")
        found[shown] = [
            check_plan({**tables_for_method(tables, name), "run": {**tables.get("run", {}), "seed": first + k}})
            for k in range(seeds)
        ]
    return found


def check_shared_settings(tables: Tables, names: Sequence[str]) -> None:
    """Refuses what is no section of a plan, and settings in [method] that none of the methods has."""
    check_sections(tables)
    known = {"name", *(f.name for name in names for f in fields(methods.find_method(name)))}
    for key in tables.get("method", {}):
        if key not in known:
            raise unknown_name_error(f"method.{key}", key, known, f"a setting of {' or '.join(names)}")


def with_client_tests(tables: Tables, names: Sequence[str]) -> Tables:
    """The tables with test sets of the clients if any have models of their own: for all methods, to be compared."""
    own = any(methods.find_method(name).personalised for name in names) or tables.get("model", {}).get("local")
    if own and tables.get("data", {}).get("pool") != "all":
        return {**tables, "split": {"test": "shares", **tables.get("split", {})}}
    return tables


def compare_methods(
    all_plans: dict[str, list[Plan]], out: Path, engine: Engine = in_process, recompute: bool = False
) -> tuple[dict[str, list[Record]], list[str]]:
    """Runs every plan into out/METHOD/seedN and writes compare.json, table.md and the curves.

    Called again on the same folder, it continues: what is finished is not run again. A run that fails (a method may
    diverge) does not stop the others; what it died of is returned beside the summaries of those that did not.
    """
    results: dict[str, list[tuple[Record, list[Record]]]] = {name: [] for name in all_plans}
    failures: list[str] = []
    with locked(out):
        seeds = len(next(iter(all_plans.values())))
        ordered = [(name, several[k]) for k in range(seeds) for name, several in all_plans.items()]
        for name, plan in ordered:
            try:
                results[name].append(run_or_resume(plan, out / name / f"seed{plan.run.seed}", engine, recompute))
            except ClientError as error:
                failures.append(f"seed {plan.run.seed}, {error}")
                print_notice(f"{failures[-1]}; the comparison continues without it")
            except StoppedError as stopped:  # it is the comparison that is to be resumed
                raise StoppedError(out, stopped.round, stopped.signal_number) from None
            except KeyboardInterrupt:
                raise KeyboardInterrupt(advise_resume(out)) from None
        if not any(results.values()):
            raise ClientError(f"every run failed, the first with {failures[0]}")
        summaries = {name: [summary for summary, _ in runs] for name, runs in results.items()}
        records = {name: [rounds for _, rounds in runs] for name, runs in results.items() if runs}
        write_text(out / "compare.json", json.dumps(to_json_values(summaries), indent=2) + "\n")
        failed = "".join(f"\n- failed: {words}" for words in failures)
        table = comparison_table.markdown_table(summaries, seeds)
        write_text(out / "table.md", table + (f"{failed}\n" if failed else ""))
        looks = plots.choose_looks({name: all_plans[name][0].method.look for name in records})
        plots.plot_learning_curves(records, looks, describe_conditions(longest_plan(all_plans)), out / "curves")
    return summaries, failures


def run_or_resume(plan: Plan, folder: Path, engine: Engine, recompute: bool) -> tuple[Record, list[Record]]:
    """One run of a comparison: as it was left, resumed, or from the start."""
    begun = plan_as_begun(plan, folder)
    with contextlib.suppress(DamagedFileError):
        done = read_finished(folder)
        told = changed_settings(identity_text(load_plan(folder)), begun) if begun is not None else "it has no plan"
        if told:
            words = "undo that, or start another comparison"
            raise UserError(f"{folder} was run by another plan than {ORDER} now says: {told}; {words}")
        if done[0]["rounds"] <= plan.run.rounds and has_enough_rounds(done[0], plan.run.rounds):
            mend_weights(folder, done[0])
            return done
    folder.mkdir(parents=True, exist_ok=True)
    label = f"{plan.method.name}, seed {plan.run.seed}"
    with show_progress(label, plan.run.rounds, plan.method.quick_rounds) as show:
        if begun is not None:
            return resume_run(begun, folder, show, engine, plan.run.rounds, recompute)
        return start_run(plan, prepare_experiment(plan), folder, show, engine)


def plan_as_begun(plan: Plan, folder: Path) -> Plan | None:
    """The plan with what its run may have otherwise: how long it is, and how it is computed if nobody said; if any."""
    if not (folder / "plan.toml").exists():
        return None
    there = load_plan(folder)
    machine = replace(plan.machine, compile=there.machine.compile) if plan.machine.compile == "auto" else plan.machine
    return replace(with_rounds(plan, there.run.rounds), machine=machine)


def extend_comparison(out: Path, rounds: int) -> None:
    """Another number of rounds in compare.toml; the runs follow when the comparison continues."""
    with locked(out):
        for name, several in read_comparison(out).items():
            for plan in several:
                if plan.method.one_shot:  # it keeps its one round
                    continue
                folder = out / name / f"seed{plan.run.seed}"
                extend.check_extension(folder, plan_as_begun(plan, folder) or plan, rounds)
        tables = read_plan(out / ORDER)
        tables["run"] = {**tables.get("run", {}), "rounds": rounds}
        write_text(out / ORDER, tomli_w.dumps(tables))


def write_comparison(tables: Tables, names: Sequence[str], seeds: int, out: Path) -> None:
    """compare.toml: what was asked for, so that `fedptr resume` can continue it."""
    tables = with_defaults(tables, names)
    write_text(out / ORDER, tomli_w.dumps({**tables, "compare": {"methods": list(names), "seeds": seeds}}))


def read_comparison(out: Path) -> dict[str, list[Plan]]:
    tables = read_plan(out / ORDER)
    order = tables.pop("compare", None)
    try:
        names, seeds = order["methods"], order["seeds"]
        if not isinstance(names, list) or not names or type(seeds) is not int or not 1 <= seeds <= MOST_SEEDS:
            raise ValueError
        names = [str(name) for name in names]
    except (TypeError, KeyError, ValueError):
        raise UserError(f"{out / ORDER} has no sound [compare] section; start the comparison again") from None
    return build_plans(with_baselines(tables, names), names, seeds)


def longest_plan(all_plans: dict[str, list[Plan]]) -> Plan:
    """A plan with the most rounds; only one-shot methods have fewer than the others."""
    return max((several[0] for several in all_plans.values()), key=lambda plan: plan.run.rounds)


def describe_conditions(plan: Plan) -> str:
    """The conditions of a comparison in one line."""
    split = plan.split
    how = f"{split.kind}({split.alpha:g})" if "dirichlet" in split.kind else split.kind
    data = Path(plan.data.name).stem + (f" (subset of {plan.data.subset})" if plan.data.subset else "")
    clients = count_noun(split.clients, "client") if split.clients else "a client for every user"
    who = f"{clients}, {plan.run.participation:.0%} participation"
    return f"{data}, {how}, {who}, {count_noun(plan.run.rounds, 'round')}"
