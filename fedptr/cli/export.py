"""`fedptr export`: a trained model as one file that runs without fedptr."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedptr.cli.predict import add_model_options, load_chosen_model

if TYPE_CHECKING:
    from fedptr.cli.options import Commands


def add_parser(commands: Commands) -> None:
    words = "write a trained model, with its preprocessing, to a file that runs without fedptr"
    sub = commands.add_parser("export", help=words, description=words, allow_abbrev=False)
    add_model_options(sub)
    forms = "torch (model.pt2), torchscript (model.torchscript) or onnx (model.onnx; pip install 'fedptr[onnx]')"
    sub.add_argument(
        "--format", choices=("torch", "torchscript", "onnx"), default="torch", help=f"{forms}; default torch"
    )
    sub.add_argument("--out", metavar="FILE", help="the file to write (default: in DIR)")
    sub.set_defaults(handler=export)


def export(args: argparse.Namespace) -> int:
    from fedptr.runs.export_model import FORMATS, choose_inputs, export_model, name_output

    model = load_chosen_model(args)
    path = Path(args.out) if args.out else Path(args.dir) / FORMATS[args.format]
    check = export_model(model, args.format, path, *choose_inputs(model, Path(args.dir)))
    words = name_output(model)
    print(f"compared with our own on {check.inputs}: {words} differ by at most {check.largest_difference:.0e}")
    values = "images with values in [0, 1]" if model.card.pixel_max else "float32 inputs"
    returns = "numbers in the labels' units" if words == "numbers" else f"logits of {len(model.classes)} classes"
    values = f"int64 token numbers below {model.shape[1]}" if model.card.text else values
    shape = ", ".join(map(str, model.shape[:1] if model.card.text else model.shape))
    print(f"takes {values}, shape [n, {shape}]; returns {returns}")
    print(f"results: {path}")
    return 0
