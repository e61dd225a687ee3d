"""Finished runs in compressed archives: many runs in few files, as results are kept in git.

    runs/NAME-HASH/seedN/   a run folder, as `fedptr reproduce` makes it (in audit/: federated-HASH/shadowN)
    runs/NAME.tar.bz2       the finished runs of all these hashes
    runs/plans.toml         the plans of all archived runs, to be read and compared

An archive holds what a run is known by: plan.toml, rounds.jsonl, summary.json, class_scores.json and the audit's
result; of a shadow phi.safetensors; of an audited run also the split and the weights. It holds checkpoints only where
they are asked for, because float32 weights hardly compress. Everything else can be made again from the plan.

rounds.jsonl is kept as `rounds.short.jsonl`, whose numbers have fewer digits (`fedptr.runs.short_numbers`); unpacking
restores every byte.

An archive may come from anybody: a member that is not one of these files is refused, and nothing is unpickled.
"""

from __future__ import annotations

import bz2
import contextlib
import io
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import tomli_w

from fedptr.atomic_files import DamagedFileError, flush_path, replace_atomically, write_text
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.regular_files import open_regular
from fedptr.runs import plan as planning
from fedptr.runs.folder import AUDIT, CHECKPOINTS, rename_aside
from fedptr.runs.lock import locked
from fedptr.runs.plan import load_plan
from fedptr.runs.rounds_file import NAME as ROUNDS
from fedptr.runs.short_numbers import restore_numbers, shorten_numbers
from fedptr.runs.summary import PLAN, read_once_finished

SUFFIX = ".tar.bz2"
PLANS = "plans.toml"
FOLDERS = ("runs", AUDIT)  # of `fedptr reproduce --out`: where its runs and its shadows are
SHORT = "rounds.short.jsonl"
LARGEST = 4_000_000_000  # bytes that one archive may unpack to
BLOCK = 512  # of a tar file
RUN = r"[\w+][\w.+ -]*/(?:seed|shadow)[0-9]{1,10}"
ALWAYS = (
    rf"plan\.toml|rounds\.jsonl|{re.escape(SHORT)}|summary\.json|class_scores\.json|phi(?:-flip)?\.safetensors"
    rf"|{AUDIT}/audit\.json|{AUDIT}/[\w-]+\.png"
)
AUDITED = r"split\.json|weights\.safetensors"
CHECKPOINT = rf"{CHECKPOINTS}/(?:server|client-[0-9]+)-[0-9]+\.safetensors"
MEMBER = re.compile(rf"({RUN})/({ALWAYS}|{AUDITED}|{CHECKPOINT})")


@dataclass
class PackingReport:
    """What `pack_runs` did."""

    runs: list[str] = field(default_factory=list)
    archives: list[Path] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # run -> why
    removed: int = 0


def pack_runs(base: Path, checkpoints: Sequence[str] = (), remove: bool = False) -> PackingReport:
    """Packs all finished runs below `base`; what only the archives hold stays in them.

    `checkpoints`: patterns of the runs whose checkpoints are packed too, such as `fedavg-*` or `*/seed0`.
    `remove`: removes each packed folder, once its archive is on the disk and was read back.
    """
    done = PackingReport()
    with locked(base):
        for left in base.glob(".packing-*"):  # by a process that was killed; we hold the lock
            shutil.rmtree(left)
        for left in base.glob(".*.tmp"):
            left.unlink()
        with tempfile.TemporaryDirectory(prefix=".packing-", dir=base) as scratch:
            before = Path(scratch) / "before"
            for archive in list_archives(base):
                extract_runs(archive, before)
            runs = sorted({*list_runs(before), *list_runs(base)})
            plans: dict[str, Any] = {}
            for name in sorted({archive_name(run) for run in runs}):
                with contextlib.ExitStack() as locks:
                    sources: dict[str, Path] = {}
                    for run in [run for run in runs if archive_name(run) == name]:
                        if (base / run / PLAN).is_file() and not (reason := hold_finished(base / run, locks)):
                            sources[run] = base / run
                        elif (before / run).is_dir():
                            sources[run] = before / run
                        else:
                            done.left_out[run] = reason
                    if sources:
                        files = {run: list_files(folder, run, checkpoints, before) for run, folder in sources.items()}
                        write_archive(base / name, sources, files)
                        add_plans(plans, sources)
                        done.runs += sources
                        done.archives.append(base / name)
                    own = [run for run, folder in sources.items() if folder == base / run]
                    if remove and own:
                        check_archive(base / name, {run: (base / run, files[run]) for run in own}, Path(scratch))
                        for run in own:
                            remove_folder(base / run, Path(scratch))
                        done.removed += len(own)
            if plans:
                write_text(base / PLANS, tomli_w.dumps(plans))
    return done


def hold_finished(folder: Path, locks: contextlib.ExitStack) -> str:
    """Locks the folder of a finished run; otherwise says why it cannot be packed."""
    try:
        locks.enter_context(locked(folder))
        read_once_finished(folder, load_plan(folder))
    except (UserError, DamagedFileError) as error:
        return str(error)
    return ""


def list_files(folder: Path, run: str, checkpoints: Sequence[str], before: Path) -> list[str]:
    """What is packed of a run, by name; all of what comes from an archive."""
    kinds = [ALWAYS]
    if folder.is_relative_to(before) or (folder / AUDIT / "audit.json").is_file():
        kinds.append(AUDITED)
    if folder.is_relative_to(before) or any(fnmatchcase(run, pattern) for pattern in checkpoints):
        kinds.append(CHECKPOINT)
    known = re.compile("|".join(kinds))
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(name for path in paths if known.fullmatch(name := path.relative_to(folder).as_posix()))


def write_archive(path: Path, sources: dict[str, Path], files: dict[str, list[str]]) -> None:
    """The same files make the same bytes. A reader sees the old archive or the new one, whenever we are killed."""
    with (
        replace_atomically(path) as scratch,
        bz2.open(scratch, "xb") as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for run in sorted(sources):
            for name in files[run]:
                content = (sources[run] / name).read_bytes()
                if name == ROUNDS and restore_numbers(short := shorten_numbers(content)) == content:
                    name, content = SHORT, short
                info = tarfile.TarInfo(f"{run}/{name}")  # no owner, and the time 0
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def check_archive(path: Path, packed: dict[str, tuple[Path, list[str]]], scratch: Path) -> None:
    """Whether these runs come out of the archive as they are in their folders."""
    with tempfile.TemporaryDirectory(dir=scratch) as unpacked:
        extract_runs(path, Path(unpacked), packed.__contains__)
        for run, (folder, names) in packed.items():
            for name in names:
                if (Path(unpacked) / run / name).read_bytes() != (folder / name).read_bytes():
                    raise UserError(f"{folder / name} was changed while it was packed; nothing is removed, pack again")


def remove_folder(folder: Path, scratch: Path) -> None:
    """In one step, by moving it away first: half a run would be taken for a damaged one."""
    with tempfile.TemporaryDirectory(dir=scratch) as away:
        folder.rename(Path(away) / folder.name)
        flush_path(folder.parent)
    with contextlib.suppress(OSError):  # other seeds are left in it
        folder.parent.rmdir()


def add_plans(plans: dict[str, Any], sources: dict[str, Path]) -> None:
    """One plan for the runs that differ in their seed alone, with the rounds of each."""
    for run in sorted(sources):
        cell, _, name = run.partition("/")
        tables = planning.read_plan(sources[run] / PLAN)
        entry = plans.setdefault(cell, {"runs": {}, **tables})
        entry["runs"][name] = tables.get("run", {}).get("rounds", 0)


def unpack_runs(base: Path) -> tuple[int, int]:
    """Unpacks every archived run that no folder holds; returns how many were unpacked, and how many were there."""
    new = known = 0
    for archive in list_archives(base):
        runs = sorted({run for run, _, _ in read_members(archive)})
        missing = [run for run in runs if not holds_run(base / run)]
        new += unpack_missing(archive, missing)
        known += len(runs) - len(missing)
    return new, known


def fetch_runs(folders: Iterable[Path]) -> None:
    """Unpacks those of these run folders that are missing and that an archive beside them holds."""
    wanted: dict[Path, list[str]] = {}
    for folder in dict.fromkeys(folders):
        if not holds_run(folder) and (archive := archive_of(folder)):
            wanted.setdefault(archive, []).append(f"{folder.parent.name}/{folder.name}")
    unpacked = {archive: unpack_missing(archive, runs) for archive, runs in wanted.items()}
    if count := sum(unpacked.values()):
        places = ", ".join(sorted({str(archive.parent) for archive in unpacked}))
        print_notice(f"unpacked {count} run{'' if count == 1 else 's'} from archives in {places}")


def unpack_missing(archive: Path, runs: Sequence[str]) -> int:
    """Puts these runs of an archive in their place, each in one step; returns how many there were."""
    base = archive.parent
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=base) as scratch:
        found = extract_runs(archive, Path(scratch), set(runs).__contains__)
        for run in found:
            for path in (Path(scratch) / run).rglob("*.*"):
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
            (base / run).parent.mkdir(exist_ok=True)
            put_leftovers_aside(base / run)
            if not (base / run).exists():  # another process may have been faster
                (Path(scratch) / run).rename(base / run)
    return len(found)


def holds_run(folder: Path) -> bool:
    """Whether a run was begun in a folder; a lock or a log alone is what one left behind."""
    return (folder / PLAN).exists() or (folder / ROUNDS).exists()


def put_leftovers_aside(folder: Path) -> None:
    """Makes room for a run in a folder that holds none."""
    if folder.is_dir() and not holds_run(folder):
        with locked(folder):  # nobody is about to begin one
            rename_aside(folder, "leftover")


def archive_of(folder: Path) -> Path | None:
    """The archive that may hold a run folder."""
    path = folder.parent.parent / archive_name(f"{folder.parent.name}/{folder.name}")
    return path if path.is_file() else None


def archive_name(run: str) -> str:
    """
    >>> archive_name("fedptr-s-cifar10-2b2f3a1b729d/seed0")
    'fedptr-s-cifar10.tar.bz2'
    """
    return re.sub(r"-[0-9a-f]{12}$", "", run.partition("/")[0]) + SUFFIX


def list_archives(base: Path) -> list[Path]:
    return sorted(path for path in base.glob(f"*{SUFFIX}") if path.is_file() and not path.name.startswith("."))


def list_runs(base: Path) -> list[str]:
    """The run folders NAME/seedN below a folder."""
    found = (path.parent.relative_to(base).as_posix() for path in base.glob(f"*/*/{PLAN}"))
    return sorted(run for run in found if re.fullmatch(RUN, run))


def extract_runs(archive: Path, into: Path, wanted: Callable[[str], bool] = lambda run: True) -> list[str]:
    """Writes the wanted runs below `into`, and returns their names."""
    found: dict[str, None] = {}
    for run, name, content in read_members(archive):
        if wanted(run):
            path = into / run / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            found[run] = None
    return list(found)


def read_members(archive: Path) -> Iterator[tuple[str, str, bytes]]:
    """Run, file and content of all members. Whatever is not as `write_archive` writes it is refused.

    The headers are read here, not by tarfile, which believes lengths, links and long names that an archive tells it.
    """
    seen: set[str] = set()
    total = 0
    try:
        with open_regular(archive) as packed, bz2.open(packed) as file:
            while (head := file.read(BLOCK)).strip(b"\0"):
                info = tarfile.TarInfo.frombuf(head, "utf-8", "strict")
                match = MEMBER.fullmatch(info.name)
                if info.type != tarfile.REGTYPE or not match:
                    raise ValueError(f"{info.name!r} is no file of a run")
                run, name = match[1], ROUNDS if match[2] == SHORT else match[2]
                if f"{run}/{name}" in seen:
                    raise ValueError(f"{info.name!r} is in it twice")
                seen.add(f"{run}/{name}")
                total += info.size
                if info.size < 0 or total > LARGEST:
                    raise ValueError(f"it is larger than {LARGEST / 1e9:g} GB")
                content = file.read(info.size)
                if len(content) < info.size:
                    raise ValueError("its end is missing")
                file.read(-info.size % BLOCK)
                yield run, name, restore_numbers(content) if match[2] == SHORT else content
            if not head:
                raise ValueError("its end is missing")
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{archive} is not an archive of runs: {words}; take it back from where it came") from None
