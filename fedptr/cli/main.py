"""The command line. Nothing heavy is imported before a command needs it: `fedptr --help` does not import torch."""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from typing import Any, NoReturn

from fedptr import __version__
from fedptr.errors import ClientError, UserError
from fedptr.runs.lock import StoppedError
from fedptr.settings import unknown_name_error

# option -> the setting it stands for
OPTIONS = {
    "--dataset": ("data.name", "D", "digits, fashion-mnist, cifar10, cifar100, tiny-imagenet, an .npz or a folder"),
    "--data-dir": ("data.dir", "DIR", "folder of datasets to look into first"),
    "--subset": ("data.subset", "N", "class-balanced subset of so many training images"),
    "--clients": ("split.clients", "N", "number of clients"),
    "--partition": ("split.kind", "P", "dirichlet, dirichlet-by-client, shards, classes, quantity or iid"),
    "--alpha": ("split.alpha", "A", "Dirichlet concentration; small = very different clients"),
    "--min-size": ("split.min_size", "S", "smallest allowed client"),
    "--split": ("split.file", "FILE", "use a saved split"),
}
RUN_OPTIONS = {
    "--participation": ("run.participation", "F", "part of the clients selected in a round"),
    "--rounds": ("run.rounds", "T", "communication rounds"),
    "--seed": ("run.seed", "S", "seed of weights, cohorts and batch order"),
    "--lr": ("local.lr", "LR", "local learning rate"),
    "--batch": ("local.batch", "B", "local batch size"),
    "--epochs": ("local.epochs", "E", "local epochs"),
    "--model": ("model.name", "M", "convnet, mlp, lenet, resnet18 or module:factory"),
    "--width": ("model.width", "W", "channels or hidden units"),
    "--device": ("machine.device", "DEV", "auto, cpu, cuda …"),
    "--threads": ("machine.threads", "N", "CPU threads; 0 = every core"),
    "--compile": ("machine.compile", "WHEN", "compile the model: on, off, or auto = for long runs"),
}
ENGINE_OPTIONS = {
    "--engine": ("machine.engine", "E", "local = in this process, or ray (pip install 'fedptr[ray]')"),
    "--ray-address": ("machine.ray_address", "ADDR", "a Ray cluster: host:port or auto; none = a Ray of its own"),
}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence instead of the whole usage."""
        raise UserError(f"{message}; see `{self.prog} --help`")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Sub-commands are parsed with this too, and each knows the options that may have been meant."""
        found, rest = super().parse_known_args(args, namespace)
        if rest and rest[0].startswith("-"):
            name = rest[0].partition("=")[0]
            raise unknown_name_error(name, name, self._option_string_actions, f"an option of `{self.prog}`")
        return found, rest


def parser() -> argparse.ArgumentParser:
    root: argparse.ArgumentParser = Parser(
        prog="fedptr", description="Federated learning with projected trajectory regularization."
    )
    root.add_argument("--version", action="version", version=f"fedptr {__version__}")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)

    run = add(commands, "run", "train one method", OPTIONS, RUN_OPTIONS, ENGINE_OPTIONS)
    run.add_argument("--method", dest="method.name", metavar="M", help="see `fedptr methods`")
    run.add_argument("--with", dest="beside", choices=("ptr",), help="add FedPTR: the method NAME+ptr")
    results(run)
    tracked(run)

    words = "train several methods under the same conditions"
    compare = add(commands, "compare", words, OPTIONS, RUN_OPTIONS, ENGINE_OPTIONS)
    compare.add_argument("--methods", metavar="M,M,…", help="default: the paper's seven")
    compare.add_argument("--seeds", type=int, default=1, metavar="N", help="repeat with so many seeds (default 1)")
    results(compare)
    tracked(compare)

    words = "go on with a run or a comparison that was stopped, or that is to have more rounds"
    resuming = commands.add_parser("resume", help=words, description=words, allow_abbrev=False)
    resuming.add_argument("dir", metavar="DIR", help="its folder")
    more = "go on to this round instead of the plan's last; also when it is finished"
    resuming.add_argument("--rounds", type=int, metavar="N", help=more)
    settings(resuming, ENGINE_OPTIONS)
    resuming.set_defaults(handler=resume_command)

    partition = add(commands, "partition", "show a split, and save it", OPTIONS, {})
    partition.add_argument("--out", metavar="FILE", help="save the split here, with a plot beside it")
    partition.add_argument("--force", action="store_true", help="replace an existing file")

    report = commands.add_parser("report", help="one HTML page of runs and comparisons")
    report.add_argument("dirs", nargs="+", metavar="DIR", help="folders of runs, comparisons or reproductions")
    report.add_argument("-o", "--out", default="report.html", metavar="FILE", help="where to (default report.html)")
    report.add_argument("--force", action="store_true", help="replace an existing file")
    report.set_defaults(handler=report_command)

    from fedptr.cli.audit import add_parser as add_audit
    from fedptr.cli.data import add_parser
    from fedptr.cli.deploy import add_parsers
    from fedptr.cli.results import add_parser as add_results

    add_audit(commands)
    add_results(commands)
    add_parser(commands)
    add_parsers(commands)

    sub = commands.add_parser("reproduce", help="run a table or figure of the paper by name", allow_abbrev=False)
    sub.add_argument("recipe", nargs="?", metavar="RECIPE", help="table1 … figure6, a sweep; see --list")
    sub.add_argument("--list", action="store_true", help="list the recipes")
    sub.add_argument("--only", metavar="TAG,TAG,…", help="rows and columns: cifar10, a001, p100, fedavg …")
    sub.add_argument("--scale", choices=("smoke", "cpu", "paper"), default="cpu", help="size (default cpu)")
    sub.add_argument("--seeds", type=int, default=3, metavar="N", help="repeat with so many seeds (default 3)")
    sub.add_argument(
        "--rounds", type=int, default=0, metavar="T", help="rounds instead of the scale's; more can follow"
    )
    sub.add_argument("--jobs", type=int, default=0, metavar="N", help="runs at a time (default: cores, or 1)")
    sub.add_argument("--no-runs", action="store_true", help="write the tables of what is finished, and start nothing")
    sub.add_argument("--out", metavar="DIR", help="folder of runs and tables (default reproduced/SCALE)")
    sub.set_defaults(handler=reproduce_command)

    theory = commands.add_parser(
        "theory", help="measure FedPTR's rate of convergence, and check its theorem's conditions"
    )
    theory.add_argument("--rounds", default="25,50,100,200,400", metavar="T,T,…", help="default %(default)s")
    theory.add_argument("--seeds", type=int, default=1, metavar="N", help="random problems of each kind (default 1)")
    results(theory)
    theory.set_defaults(handler=theory_command)

    listing = commands.add_parser("methods", help="list the methods, or describe one")
    listing.add_argument("name", nargs="?", metavar="NAME")
    listing.set_defaults(handler=methods_command)
    return root


def add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    words: str,
    *options: dict[str, tuple[str, str, str]],
) -> argparse.ArgumentParser:
    """A sub-command that takes a plan and the options that change it."""
    sub = commands.add_parser(name, help=words, description=words, allow_abbrev=False)
    sub.add_argument("plan", nargs="?", metavar="PLAN.toml", help="settings to start from; options change them")
    settings(sub, *options)
    sub.add_argument(
        "--set", dest="assignments", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change any setting"
    )
    sub.set_defaults(handler=globals()[f"{name}_command"])
    return sub


def settings(sub: argparse.ArgumentParser, *options: dict[str, tuple[str, str, str]]) -> None:
    for group in options:
        for option, (place, metavar, help_) in group.items():
            sub.add_argument(option, dest=place, metavar=metavar, help=help_)


def results(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--out", metavar="DIR", help="folder for the results (default: a new one in runs/)")
    sub.add_argument("--force", action="store_true", help="replace an existing folder of results")


def tracked(sub: argparse.ArgumentParser) -> None:
    for name, words in (("tensorboard", "TensorBoard"), ("mlflow", "MLflow")):
        how = f"write every round's numbers for {words} too (pip install 'fedptr[{name}]')"
        sub.add_argument(f"--{name}", dest="trackers", action="append_const", const=name, default=[], help=how)


def main(argv: list[str] | None = None) -> int:
    warnings.showwarning = lambda message, *_: say(f"note: {message}")
    # OpenMP threads spin while they wait; on a busy machine that keeps the one they wait for from running, and small
    # models train a hundred times slower. To be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="replace")  # a terminal that has no β shows a question mark
    try:
        args = parser().parse_args(argv)
        code: int = args.handler(args)
        sys.stdout.flush()
        return code
    except StoppedError as error:
        say(str(error))
        return 128 + error.signal_number
    except KeyboardInterrupt:
        say("stopped at once; what was saved can be gone on with: `fedptr resume DIR`")
        return 130
    except BrokenPipeError:  # `fedptr methods | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (UserError, ClientError, OSError) as error:  # OSError: a full disk, a folder that may not be written
        if os.environ.get("FEDPTR_TRACEBACK"):
            raise
        say(f"{error} (FEDPTR_TRACEBACK=1 shows where)" if isinstance(error, ClientError) else words(error))
        return 1 if isinstance(error, ClientError) else 2


def words(error: Exception) -> str:
    """Without the number that the system has for an error; what was written stays."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def say(text: str) -> None:
    """One line on stderr, whatever the names and foreign messages in the text hold."""
    print("fedptr:", *"".join(c if c.isprintable() else " " for c in text).split(), file=sys.stderr)


def run_command(args: argparse.Namespace) -> int:
    from fedptr.cli.commands import run

    return run(args)


def resume_command(args: argparse.Namespace) -> int:
    from fedptr.cli.commands import resume

    return resume(args)


def compare_command(args: argparse.Namespace) -> int:
    from fedptr.cli.commands import compare

    return compare(args)


def reproduce_command(args: argparse.Namespace) -> int:
    from fedptr.cli.reproduce import reproduce

    return reproduce(args)


def partition_command(args: argparse.Namespace) -> int:
    from fedptr.cli.commands import partition

    return partition(args)


def theory_command(args: argparse.Namespace) -> int:
    from fedptr.cli.commands import theory

    return theory(args)


def report_command(args: argparse.Namespace) -> int:
    from fedptr.cli.report import report

    return report(args)


def methods_command(args: argparse.Namespace) -> int:
    from fedptr.cli.commands import methods

    return methods(args)
