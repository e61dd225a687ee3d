"""Every parser of bytes that somebody else has made, as a function of bytes that raises only what the parser declares.

`make fuzz` looks for bytes with which one of them raises anything else, hangs or takes the memory (fuzz_parsers.py);
tests/fuzz replays what was found. A new parser gets a function here, and a seed or two in tests/fuzz/corpus/NAME.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from fedptr.atomic_files import DamagedFileError
from fedptr.errors import ReplyError, UserError

Target = Callable[[bytes], None]
TARGETS: dict[str, Target] = {}
FILE = Path("foreign")  # what the bytes are called where a parser wants to name their file


def target(*declared: type[Exception]) -> Callable[[Target], Target]:
    """Adds a function to the table; it may raise what is declared, and nothing else."""

    def add(parse: Target) -> Target:
        def run(data: bytes) -> None:
            with contextlib.suppress(*declared):
                parse(data)

        TARGETS[parse.__name__] = run
        return run

    return add


def in_memory(data: bytes, name: str) -> Path:
    """A new folder in memory with one file."""
    folder = Path(SCRATCH.name)
    (folder / name).write_bytes(data)
    return folder


SCRATCH = tempfile.TemporaryDirectory(prefix="fedptr-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


@target(UserError)
def pickle(data: bytes) -> None:
    from fedptr.data.readers import explain_read_errors, parse_python_batch

    with explain_read_errors(FILE, "a batch"):
        parse_python_batch(data, FILE, "labels")


@target(UserError)
def idx(data: bytes) -> None:
    """The first byte chooses: packed or not, images or labels."""
    import gzip

    from fedptr.data.readers import explain_read_errors, parse_idx

    kind, file = data[:1], io.BytesIO(data[1:])
    with explain_read_errors(FILE, "an IDX file"):
        parse_idx(gzip.GzipFile(fileobj=file) if kind > b"\x7f" else file, 3 if kind < b"\x40" else 1)


@target(UserError)
def npz(data: bytes) -> None:
    from fedptr.data.own_data import complete_own_data, parse_npz

    complete_own_data(FILE, parse_npz(io.BytesIO(data), FILE))


@target(UserError)
def parquet(data: bytes) -> None:
    from fedptr.data.parquet import parse_parquet

    parse_parquet(io.BytesIO(data), FILE, 100)


@target(UserError)
def csv_table(data: bytes) -> None:
    from fedptr.data.readers import explain_read_errors
    from fedptr.data.tables import read_table

    with explain_read_errors(FILE, "a table"):
        read_table(in_memory(data, "table.csv") / "table.csv")


@target(UserError)
def image(data: bytes) -> None:
    from fedptr.data.image_folders import decode_image
    from fedptr.data.readers import explain_read_errors

    with explain_read_errors(FILE, "an image"):
        for mode in ("L", "RGB"):
            decode_image(io.BytesIO(data), mode)


@target(UserError)
def tiny_imagenet(data: bytes) -> None:
    """The three lists of names, separated by a byte that no text has."""
    from fedptr.data.image_folders import read_tiny_imagenet

    parts = [*data.split(b"\xff", 2), b"", b""]
    folder = in_memory(parts[0], "wnids.txt")
    in_memory(parts[1], "words.txt")
    (folder / "val").mkdir(exist_ok=True)
    in_memory(parts[2], "val/val_annotations.txt")
    read_tiny_imagenet(folder)


@target(UserError)
def plan(data: bytes) -> None:
    from fedptr.runs.plan import check_plan, decode_plan, with_baselines

    tables = decode_plan(data, FILE)
    with_baselines(tables)
    check_plan(tables).toml()


@target(UserError)
def assignment(data: bytes) -> None:
    """`--set` of several settings, one in each line."""
    from fedptr.cli.options import parse_assignment
    from fedptr.runs.plan import assign_settings, check_plan

    lines = data.decode("utf-8", "surrogateescape").splitlines()
    check_plan(assign_settings({}, [parse_assignment(line) for line in lines]))


@target(UserError)
def split(data: bytes) -> None:
    from fedptr.data.split import parse_split

    parse_split(data, FILE)


@target(UserError)
def split_csv(data: bytes) -> None:
    from fedptr.data.split import parse_split

    parse_split(data, FILE.with_suffix(".csv"))


@target(DamagedFileError)
def checkpoint(data: bytes) -> None:
    from fedptr.atomic_files import unpack_tensors

    unpack_tensors(data)


@target(DamagedFileError)
def checkpoint_content(data: bytes) -> None:
    """What is in a checkpoint whose checksum fits, because an attacker has computed it."""
    import torch

    from fedptr.atomic_files import pack_tensors
    from fedptr.runs.checkpoint import FORMAT, INDEX, CheckpointStore

    kinds = (torch.int64, torch.float32, torch.uint8, torch.int32)
    kind, width, rest = kinds[data[0] % 4] if data else torch.int64, data[1] % 4 if len(data) > 1 else 2, data[2:]
    values = torch.frombuffer(bytearray(rest + bytes(-len(rest) % 16 or 16 * (not rest))), dtype=kind)
    if width and values.numel() % width == 0:
        values = values.reshape(-1, width)
    name = INDEX if len(data) % 5 else "server/x"
    content = pack_tensors({name: values}, {"format": FORMAT, "round": "3"})
    CheckpointStore(in_memory(content, "server-3.safetensors")).load(3)


@target(ReplyError)
def parcel(data: bytes) -> None:
    from fedptr.engines.flower.wire.records import parcel_from_bytes
    from fedptr.engines.flower.wire.tensors import blocks_to_state

    blocks_to_state(parcel_from_bytes(data).blocks)


@target(ReplyError)
def message(data: bytes) -> None:
    """The words of a node: about itself, about its visit, its log, and why it refuses."""
    from fedptr.engines.flower.server.deploy_plan import DeployRules
    from fedptr.engines.flower.server.roster import read_offer
    from fedptr.engines.flower.wire import schema
    from fedptr.engines.flower.wire.diagnostics import read_log
    from fedptr.engines.flower.wire.parcel import parse_words

    words = parse_words(data)
    read_log(words)
    read_log(words.get("log"))
    schema.read_reason(words)
    try:
        schema.check_visited(words, {"round": 3})
    except ReplyError:
        read_offer(words, DeployRules())


@target(ReplyError)
def masked_numbers(data: bytes) -> None:
    from fedptr.engines.flower.server.secure_aggregation import holds_whole_numbers

    holds_whole_numbers(data, (2,))


@target(UserError)
def keys(data: bytes) -> None:
    from fedptr.engines.flower.setup import certificates

    path = in_memory(data, "key") / "key"
    for read in (certificates.load_public_key, certificates.load_public_half, certificates.read_hosts):
        try:
            read(path)
        except UserError:
            continue


@target(UserError)
def register(data: bytes) -> None:
    """nodes.json, which says whose key is whose."""
    from fedptr.engines.flower.server.roster import Member, Roster
    from fedptr.engines.flower.setup.init_federation import REGISTER, read_register

    folder = in_memory(data, REGISTER)
    read_register(folder)
    Roster(registered=folder / REGISTER).check_registered(7, Member("north", 0, 1, 1, ""))


@target(UserError, DamagedFileError)
def status(data: bytes) -> None:
    """The files that `fedptr status` and the report read: status.json, or the three of a run."""
    from rich.console import Console

    from fedptr.engines.flower.server import status_file
    from fedptr.engines.flower.setup.show_status import print_status

    now = status_file.read_status(in_memory(data, status_file.NAME))
    if now:
        print_status(Console(file=io.StringIO()), now, 3, True, None)


@target(UserError, DamagedFileError)
def rounds(data: bytes) -> None:
    """rounds.jsonl, then the byte 255, then summary.json."""
    from fedptr.report.find_runs import check_records
    from fedptr.runs.rounds_file import read_records
    from fedptr.runs.run_status import read_status
    from fedptr.runs.summary import read_result

    lines, _, told = data.partition(b"\xff")
    folder = in_memory(lines, "rounds.jsonl")
    in_memory(told, "summary.json")
    in_memory(b"[run]\nrounds = 3", "plan.toml")
    read_status(folder)
    try:
        read_result(folder, 3)
    except DamagedFileError:
        check_records(read_records(folder))


@target(UserError)
def model_card(data: bytes) -> None:
    from fedptr.core.predictor import NAME, ModelCard

    ModelCard.load(in_memory(data, NAME))
