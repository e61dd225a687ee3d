"""`fedptr predict`: what a trained model sees in images or texts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedptr.cli.options import whole_number

if TYPE_CHECKING:
    from fedptr.cli.options import Commands
    from fedptr.core.predictor import Predictor


def add_parser(commands: Commands) -> None:
    words = "what a trained model sees in images or texts"
    sub = commands.add_parser("predict", help=words, description=words, allow_abbrev=False)
    add_model_options(sub)
    sub.add_argument(
        "path",
        metavar="FILE|FOLDER|TEXT",
        help="an image, a folder of images, a table, an .npy or an .npz file; for a model of texts a text, a .txt with "
        "one in each line, or a table",
    )
    sub.add_argument("--format", choices=("csv", "json"), default="csv", help="form of the result (default csv)")
    sub.add_argument("--out", metavar="FILE", help="where to write it (default: print it)")
    sub.add_argument("--resize", action="store_true", help="scale images of another size to the model's")
    sub.set_defaults(handler=predict)


def add_model_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("dir", metavar="DIR", help="the folder of a finished run")
    sub.add_argument("--best", action="store_true", help="the best round's model (kept if output.best = true)")
    sub.add_argument("--client", type=whole_number("--client"), metavar="I", help="the model that client I would use")


def load_chosen_model(args: argparse.Namespace) -> Predictor:
    from fedptr.errors import UserError
    from fedptr.runs.trained_model import load_model

    if args.best and args.client is not None:
        raise UserError("--best and --client name two different models; choose one")
    return load_model(args.dir, client=args.client, best=args.best)


def predict(args: argparse.Namespace) -> int:
    from fedptr.atomic_files import write_text
    from fedptr.runs.predict_files import format_predictions, predict_path

    model = load_chosen_model(args)
    text = format_predictions(list(predict_path(model, args.path, args.resize)), args.format)
    if args.out:
        write_text(Path(args.out), text)
        print(f"results: {args.out}")
    else:
        sys.stdout.write(text)
    return 0
