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
    from fedptr.runs.export_model import FORMATS, choose_inputs, export_model

    model = load_chosen_model(args)
    path = Path(args.out) if args.out else Path(args.dir) / FORMATS[args.format]
    check = export_model(model, args.format, path, *choose_inputs(model, Path(args.dir)))
    print(f"compared with our own on {check.inputs}: logits differ by at most {check.largest_difference:.0e}")
    values = "images with values in [0, 1]" if model.card.pixel_max else "float32 inputs"
    print(
        f"takes {values}, shape [n, {', '.join(map(str, model.shape))}]; returns logits of {len(model.classes)} classes"
    )
    print(f"results: {path}")
    return 0
