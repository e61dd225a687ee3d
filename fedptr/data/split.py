"""A split: which sample of a training set belongs to which client, on which samples it is tested, and its file.

>>> split = Split((np.array([0, 2]), np.array([1])), samples=3)
>>> split.sizes
(2, 1)
>>> Split((np.array([0]), np.array([1])), samples=3, dropped=1).sizes  # sample 2 is left out on purpose
(1, 1)
>>> split.counts(np.array([0, 0, 1]), classes=2).tolist()
[[1, 1], [1, 0]]
>>> Split((np.array([0, 2]), np.array([2])), samples=3)
Traceback (most recent call last):
    ...
fedptr.errors.UserError: the split gives sample 2 to more than one client; give every sample to exactly one
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fedptr.atomic_files import write_text
from fedptr.data.own_split_file import FORM, complete_fields, parse_split_csv
from fedptr.errors import UserError
from fedptr.regular_files import TEXT, read_bytes

Ints = npt.NDArray[np.int64]
FORMAT = 1
_NONE: Ints = np.zeros(0, dtype=np.int64)
TestKind = Literal["shares", "holdout"]


@dataclass(frozen=True, eq=False)
class ClientTests:
    """The samples on which each client is tested, ascending within a client; a client may have none.

    shares     of the dataset's test images; several clients may be tested on one
    holdout    of the training images, none of which is trained on

    >>> ClientTests("shares", (np.array([0, 2]), np.array([2])), samples=3).shared
    1
    """

    kind: TestKind
    clients: tuple[Ints, ...]
    samples: int  # in the set that the indices are of

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", _sort_indices(self.clients))
        whole = "test images" if self.kind == "shares" else "samples"
        for i, indices in enumerate(self.clients):
            outside = indices[(indices < 0) | (indices >= self.samples)]
            if len(outside):
                raise UserError(
                    f"client {i} is tested on sample {outside[0]} but the {whole} are 0 to {self.samples - 1}; "
                    "correct it"
                )
            twice = indices[1:][indices[1:] == indices[:-1]]
            if len(twice):
                raise UserError(f"client {i} is tested twice on sample {twice[0]}; name it once")

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(indices) for indices in self.clients)

    @property
    def shared(self) -> int:
        """The samples on which more than one client is tested."""
        used = np.concatenate(self.clients)
        return int((np.unique(used, return_counts=True)[1] > 1).sum())


@dataclass(frozen=True, eq=False)  # arrays cannot be compared with ==: compare `sha256`
class Split:
    """The clients' sample indices, ascending within a client. Together they use every sample exactly once.

    Only `dropped` samples are left out; their number is given, so that none is left out by mistake. Samples that are
    held out for tests belong to no client's indices, and are not counted as dropped.
    """

    clients: tuple[Ints, ...]
    samples: int
    draws: int = 1
    moved: int = 0
    origin: str = ""
    dropped: int = 0
    tests: ClientTests | None = None
    names: tuple[str, ...] = ()  # of the clients, if they have any; for people

    def __post_init__(self) -> None:
        if self.names and len(self.names) != len(self.clients):
            raise UserError(
                f"the split has {len(self.clients)} clients and {len(self.names)} names; name each, or none"
            )
        own = _sort_indices(self.clients)
        held_out = _check_tests(own, self.samples, self.tests) if self.tests else ()
        _check_partition(own, held_out, self.samples, self.dropped)
        object.__setattr__(self, "clients", own)
        object.__setattr__(self, "names", tuple(self.names))
        if self.names and not len(own) == len(self.names) == len(set(self.names)):
            raise UserError(
                f"the split has {len(own)} clients and {len(set(self.names))} names; name each client once, or none"
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(indices) for indices in self.clients)

    @property
    def sha256(self) -> str:
        """The same on every machine: of the client sizes, then all indices, as little-endian int64.

        Where clients are tested, the kind of test, the number of samples and the test indices follow in the same form.
        """
        digest = hashlib.sha256()
        _add_indices(digest, self.clients)
        if self.tests:
            digest.update(self.tests.kind.encode() + np.array([self.tests.samples], dtype="<i8").tobytes())
            _add_indices(digest, self.tests.clients)
        return digest.hexdigest()

    def counts(self, labels: npt.ArrayLike, classes: int) -> Ints:
        """Samples per client (rows) and class (columns)."""
        known = np.asarray(labels)
        return np.stack([np.bincount(known[indices], minlength=classes) for indices in self.clients])

    def save(self, path: str | Path) -> None:
        content = {
            "format": FORMAT,
            "origin": self.origin,
            "samples": self.samples,
            "draws": self.draws,
            "moved": self.moved,
            "sha256": self.sha256,
            "clients": [indices.tolist() for indices in self.clients],
            **({"dropped": self.dropped} if self.dropped else {}),
            **({"names": list(self.names)} if self.names else {}),
        }
        if self.tests:
            indices = [part.tolist() for part in self.tests.clients]
            content["tests"] = {"kind": self.tests.kind, "samples": self.tests.samples, "clients": indices}
        _write_split(Path(path), json.dumps(content) + "\n")

    @classmethod
    def load(cls, path: str | Path, samples: int | None = None) -> Split:
        """Reads a split and checks all of it; `samples` is the size of the dataset it is for.

        The file is one that `save` wrote, or one of your own: see `fedptr.data.own_split_file`.
        """
        try:
            content = read_bytes(path, TEXT)
        except (OSError, ValueError) as error:
            raise UserError(f"split file {path} cannot be read ({_describe_error(error)}); check the path") from None
        return parse_split(content, path, samples)


def parse_split(content: bytes, path: str | Path, samples: int | None = None) -> Split:
    """`Split.load` of a file's content; errors name its path."""
    fields, written = _read_fields(content, path, samples)
    _check_fields(fields, path, written)
    if samples is not None and fields["samples"] != samples:
        raise UserError(
            f"split file {path} is for {fields['samples']} samples but the dataset has {samples}; "
            "use the dataset it was made for, or make a new split"
        )
    expected, tests = fields.pop("sha256", None), fields.pop("tests", None)
    names = fields.pop("names", ())
    try:
        split = Split(**fields, tests=tests and ClientTests(**tests), names=tuple(names))
    except UserError as error:
        raise UserError(f"split file {path} is {'not right' if written else 'damaged'}: {error}") from None
    if not written and split.sha256 != expected:
        raise UserError(f"split file {path} was changed after it was saved: its sha256 does not match; make it again")
    return split


def measure_heterogeneity(counts: npt.ArrayLike) -> float:
    """How far the clients' label distributions are from the pooled one: 0 is iid, towards 1 is disjoint.

    The total-variation distance of each client (row of `counts`), averaged with the client sizes as weights.

    >>> measure_heterogeneity([[5, 5], [10, 10]])
    0.0
    >>> measure_heterogeneity([[10, 0], [0, 10]])
    0.5
    """
    table = np.asarray(counts, dtype=np.float64)
    total = table.sum()
    if total == 0:
        return 0.0
    expected = np.outer(table.sum(axis=1), table.sum(axis=0) / total)
    return float(np.abs(table - expected).sum() / (2 * total))


def _sort_indices(clients: tuple[Ints, ...]) -> tuple[Ints, ...]:
    own = tuple(np.sort(np.asarray(indices, dtype=np.int64)) for indices in clients)
    for indices in own:
        indices.flags.writeable = False
    return own


def _add_indices(digest: hashlib._Hash, clients: tuple[Ints, ...]) -> None:
    digest.update(np.array([len(indices) for indices in clients], dtype="<i8").tobytes())
    for indices in clients:
        digest.update(indices.astype("<i8").tobytes())


def _check_tests(clients: tuple[Ints, ...], samples: int, tests: ClientTests) -> tuple[Ints, ...]:
    """The training samples that are held out; nobody trains on one of them."""
    if len(tests.clients) != len(clients):
        raise UserError(f"the split has {len(clients)} clients and test sets of {len(tests.clients)}; give each one")
    if tests.kind == "shares":
        return ()
    if tests.samples != samples:
        raise UserError(f"the split is of {samples} samples and its held-out parts are of {tests.samples}; correct it")
    leaked = np.intersect1d(np.concatenate(tests.clients), np.concatenate(clients)) if clients else _NONE
    if len(leaked):
        raise UserError(f"sample {leaked[0]} is trained on and tested on; leave it out of one of the two")
    return tests.clients


def _check_partition(clients: tuple[Ints, ...], held_out: tuple[Ints, ...], samples: int, dropped: int) -> None:
    if not clients:
        raise UserError("the split has no clients; give it at least one")
    used = np.sort(np.concatenate([*clients, *held_out]))
    outside = used[(used < 0) | (used >= samples)]
    twice = used[1:][used[1:] == used[:-1]]
    if len(outside):
        raise UserError(f"the split names sample {outside[0]} but the samples are 0 to {samples - 1}; correct it")
    if len(twice):
        raise UserError(f"the split gives sample {twice[0]} to more than one client; give every sample to exactly one")
    if len(used) != samples - dropped:
        left = f" and drops {dropped}" if dropped else ""
        raise UserError(
            f"the split uses {len(used)} of {samples} samples{left}; give every sample to exactly one client, or say "
            "how many are dropped"
        )


def _read_fields(data: bytes, path: str | Path, samples: int | None) -> tuple[dict[str, Any], bool]:
    """The fields of a file, and whether a person has written them."""
    if Path(path).suffix == ".csv":
        return complete_fields(parse_split_csv(data, path), path, samples), True
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise UserError(f"split file {path} is not JSON; use a file saved by fedptr, or {FORM}") from None
    if not isinstance(content, dict):
        raise UserError(f"split file {path} is not a split; use a file saved by fedptr, or {FORM}")
    if "format" not in content:
        return complete_fields(content, path, samples), True
    if content["format"] != FORMAT:
        raise UserError(f"split file {path} is not of format {FORMAT}, which this fedptr reads; make the split again")
    return {name: value for name, value in content.items() if name != "format"}, False


def _check_fields(content: dict[str, Any], path: str | Path, written: bool) -> None:
    """Checks names and types; `Split` itself checks the values. What a person has written has no checksum."""
    valid: dict[str, Callable[[Any], bool]] = {
        "origin": lambda v: isinstance(v, str),
        "samples": lambda v: _is_int64(v) and v >= 0,
        "draws": lambda v: _is_int64(v) and v >= 0,
        "moved": lambda v: _is_int64(v) and v >= 0,
        "dropped": lambda v: _is_int64(v) and v >= 0,
        "sha256": lambda v: isinstance(v, str),
        "clients": _is_lists_of_int64,
        "tests": _is_tests,
        "names": _is_names,
    }
    content.setdefault("dropped", 0)
    required = valid.keys() - {"tests", "names"} - ({"sha256"} if written else set())
    for name in sorted(required | content.keys()):
        if name not in content or name not in valid or not valid[name](content[name]):
            problem = "no" if name not in content else "an unknown" if name not in valid else "a wrong"
            advice = FORM if written else "make the split again"
            raise UserError(f"split file {path} has {problem} entry {name[:40]!r}; {advice}")


def _is_int64(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63  # not isinstance, because True is an int too


def _is_lists_of_int64(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(c, list) and all(map(_is_int64, c)) for c in value)


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and name.strip() for name in value)


def _is_tests(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"kind", "samples", "clients"}
        and value["kind"] in get_args(TestKind)
        and _is_int64(value["samples"])
        and value["samples"] >= 0
        and _is_lists_of_int64(value["clients"])
    )


def _write_split(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except (OSError, ValueError) as error:
        raise UserError(
            f"split file {path} cannot be written ({_describe_error(error)}); choose another place"
        ) from None


def _describe_error(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
