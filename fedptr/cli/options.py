"""The options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedptr.cli.completion import complete_assignment, complete_setting, with_completer
from fedptr.errors import UserError
from fedptr.settings import MOST, format_value

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
Options = dict[str, tuple[str, str, str]]  # option -> the setting it stands for, its value in the help, the help

DATA_OPTIONS = {
    "--dataset": ("data.name", "D", "digits, cifar10 … (see `fedptr data list`), an .npz, a .csv or a folder"),
    "--data-dir": ("data.dir", "DIR", "folder of datasets to look into first"),
    "--task": ("data.task", "TASK", "of own data: classification, regression or multi-label; auto = by its labels"),
    "--subset": ("data.subset", "N", "class-balanced subset of N training images, and of as many test images; 0 = all"),
    "--clients": ("split.clients", "N", "number of clients; 0 = one for every user"),
    "--partition": ("split.kind", "P", "dirichlet, dirichlet-by-client, shards, classes, quantity, iid or users"),
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
    "--optimiser": ("local.optimiser", "O", "local optimiser: sgd, adam or adamw"),
    "--schedule": ("local.schedule", "SCHEDULE", "learning rate over the rounds: constant, cosine or step"),
    "--target": ("run.target", "SCORE", "stop when the test score reaches this, e.g. 0.9; 0 = off"),
    "--patience": ("run.patience", "N", "stop after N evaluations without a new best; 0 = off"),
    "--model": ("model.name", "M", "convnet, mlp, lenet, resnet18, linear or module:factory"),
    "--width": ("model.width", "W", "channels or hidden units; 0 = by model"),
    "--init": ("model.init", "FILE", "start from these weights: a safetensors file, or the folder of a finished run"),
    "--device": ("machine.device", "DEV", "auto, cpu, cuda …"),
    "--threads": ("machine.threads", "N", "CPU threads; 0 = every core"),
    "--compile": ("machine.compile", "WHEN", "compile the model: on, off, or auto = where it pays in long runs"),
}
ENGINE_OPTIONS = {
    "--engine": ("machine.engine", "E", "local = in this process, or ray (pip install 'fedptr[ray]')"),
    "--ray-address": ("machine.ray_address", "ADDR", "a Ray cluster: host:port or auto; none = a Ray of its own"),
}


METHOD_OPTION = {"--method": ("method.name", "M", "see `fedptr methods`")}
PATHS = ("data.dir", "split.file", "model.init")  # which the shell completes by itself


class Assign(argparse.Action):
    """Adds `section.key` and its value to `assignments`, for an option or for `--set`: the later one wins."""

    def __init__(self, option_strings: list[str], dest: str, place: str = "", **how: Any) -> None:
        super().__init__(option_strings, "assignments", default=(), **how)
        self.place = place  # the setting that the option stands for; empty for --set

    def __call__(self, parser: object, namespace: argparse.Namespace, value: Any, option: str | None = None) -> None:
        pair = (self.place, value) if self.place else parse_assignment(value)
        namespace.assignments = (*namespace.assignments, pair)


def parse_assignment(text: str) -> tuple[str, str]:
    """`section.key=value` as its two parts."""
    place, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--set {text} has no value; write it as section.key=value, e.g. run.rounds=20")
    return place.strip(), value.strip()


def add_plan_command(
    commands: Commands, name: str, words: str, handler: Callable[[argparse.Namespace], int], *options: Options
) -> argparse.ArgumentParser:
    """A command that takes a plan and the options that change it."""
    sub = commands.add_parser(name, help=words, description=words, allow_abbrev=False)
    sub.add_argument("plan", nargs="?", metavar="PLAN.toml", help="settings to start from; options change them")
    add_setting_options(sub, *options)
    add_set_option(sub, "change any setting; see `fedptr settings`")
    sub.add_argument(
        "--preset",
        choices=("laptop", "paper"),
        default="laptop",
        help="what is not said: what suits the dataset here, or the paper's settings",
    )
    sub.set_defaults(handler=handler)
    return sub


def add_setting_options(sub: argparse.ArgumentParser, *options: Options) -> None:
    for group in options:
        for option, (place, metavar, help_) in group.items():
            action = sub.add_argument(option, action=Assign, place=place, metavar=metavar, help=help_)
            if place not in PATHS:
                with_completer(action, complete_setting(place))


def add_set_option(sub: argparse.ArgumentParser, words: str) -> None:
    action = sub.add_argument("--set", action=Assign, metavar="SECTION.KEY=VALUE", help=words)
    with_completer(action, complete_assignment)


def add_output_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--out", metavar="DIR", help="folder for the results (default: a new one in runs/)")
    sub.add_argument("--force", action="store_true", help="replace an existing folder of results")


def whole_number(option: str, most: int = MOST) -> Callable[[str], int]:
    """The type of an option that counts something; what is too few, the command says."""

    def parse(text: str) -> int:
        if (value := int(text)) > most:
            raise UserError(f"{option} must be at most {most}, not {format_value(value)}")
        return value

    parse.__name__ = "int"  # in argparse's message where it is no number
    return parse


def add_tracker_options(sub: argparse.ArgumentParser) -> None:
    for name, words in (("tensorboard", "TensorBoard"), ("mlflow", "MLflow"), ("wandb", "Weights & Biases")):
        how = f"write every round's numbers for {words} too (pip install 'fedptr[{name}]')"
        sub.add_argument(f"--{name}", dest="trackers", action="append_const", const=name, default=[], help=how)
