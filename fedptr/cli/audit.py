"""`fedptr audit`: attacks a finished run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedptr.cli.options import whole_number

WORDS = """How well membership in the training data can be told from a finished run's final model, from the sets that
clients sent, and from FedPTR's auxiliary sets. Writes DIR/audit: audit.json, roc.png, roc.svg, and the shadow models,
which are trained once."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("audit", help="attack a finished run: what does it give away?", description=WORDS)
    sub.add_argument("dir", metavar="DIR", help="the folder of a finished run")
    sub.add_argument(
        "--attack", metavar="A,A,…",
        help="of loss, lira, auxiliary and sent (default: loss, lira, and sent where clients sent sets)",
    )  # fmt: skip
    sub.add_argument(
        "--scale", choices=("smoke", "cpu", "paper"),
        help="2 shadows and 200 examples, 8, or 64 shadows and all examples, where these are not given",
    )  # fmt: skip
    sub.add_argument(
        "--shadows",
        type=int,
        metavar="S",
        help="LiRA: trainings like the run's own (default 16, or by --scale)",
    )
    sub.add_argument(
        "--shadow-trainer", choices=("federated", "centralised"), default="federated",
        help="LiRA: shadows by the run's own plan, or of everybody's data by plain SGD",
    )  # fmt: skip
    sub.add_argument(
        "--variance", choices=("auto", "shared", "example"), default="auto",
        help="LiRA: one σ for all examples, or one each; auto = one each from 64 shadows on",
    )  # fmt: skip
    sub.add_argument("--flip", action="store_true", help="LiRA: query an image and its mirror image")
    sub.add_argument(
        "--target", choices=("whole", "half"), default="whole",
        help="attack the run itself, or its training repeated on half of the examples",
    )  # fmt: skip
    sub.add_argument(
        "--examples",
        type=whole_number("--examples"),
        metavar="N",
        help="at most N members (default: all that can be, or by --scale)",
    )
    sub.add_argument(
        "--seed",
        type=whole_number("--seed"),
        default=0,
        metavar="S",
        help="of examples, shadows and intervals (default 0)",
    )
    sub.add_argument(
        "--jobs", type=whole_number("--jobs"), default=0, metavar="N", help="trainings at a time (default: cores, or 1)"
    )
    sub.add_argument("--shadows-dir", metavar="DIR", help="keep shadows here; runs that differ in seeds can share them")
    sub.add_argument("--force", action="store_true", help="replace results made with more examples or shadows")
    sub.set_defaults(handler=audit)


def audit(args: argparse.Namespace) -> int:
    from rich.console import Console

    from fedptr.audit import audit_table, roc_figure
    from fedptr.audit.audit_json import NAME
    from fedptr.audit.options import SCALES, AuditOptions, AuditScale
    from fedptr.audit.run_audit import run_audit
    from fedptr.runs.archive import fetch_runs, unpack_runs
    from fedptr.runs.folder import AUDIT

    amount = SCALES.get(args.scale, AuditScale())
    options = AuditOptions(
        shadows=amount.shadows if args.shadows is None else args.shadows,
        examples=amount.examples if args.examples is None else args.examples,
        attacks=tuple(dict.fromkeys(name.strip() for name in args.attack.split(",")))
        if args.attack is not None
        else (),
        target=args.target,
        trainer=args.shadow_trainer,
        variance=args.variance,
        flip=args.flip,
        seed=args.seed,
        jobs=args.jobs,
        shadows_dir=Path(args.shadows_dir) if args.shadows_dir else None,
        force=args.force,
    )
    folder = Path(args.dir)
    fetch_runs([folder])
    if options.shadows_dir and options.shadows_dir.is_dir():
        unpack_runs(options.shadows_dir)
    found = run_audit(folder, options)
    # In a pipe or a file, rows are not folded at 80 columns.
    audit_table.print_audit(found, Console(highlight=False, width=None if sys.stdout.isatty() else 150))
    made = folder / AUDIT
    if found["attacks"]:
        curves = {name: numbers["roc"] for name, numbers in found["attacks"].items()}
        title = f"{found['method']} on {found['dataset']}: membership inference"
        png, _ = roc_figure.plot_roc_curves({f"seed {found['run_seed']}": curves}, title, made / "roc")
        print(f"curves: {png} (also .svg)")
    print(f"results: {made / NAME}")
    return 0
