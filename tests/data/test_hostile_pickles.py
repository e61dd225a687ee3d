"""Pickles that call nothing and still do harm: by memory, by depth, by endless lists. Each is refused at once.

They run in a process of their own with little memory: with the unpickler of C they end it by a segmentation fault.
"""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from wait_until import PATIENCE

from fedptr.data import safe_pickle
from fedptr.data.readers import parse_python_batch, read_cifar10_python
from fedptr.errors import UserError

READ = """
import resource, sys
from pathlib import Path
from fedptr.data import safe_pickle
from fedptr.data.readers import explain_read_errors, parse_python_batch
from fedptr.errors import UserError
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
safe_pickle.STEPS = 300_000
for path in map(Path, sys.argv[1:]):
    try:
        with explain_read_errors(path, "a batch"):
            parse_python_batch(path.read_bytes(), path, "labels")
    except UserError as error:
        print(error, flush=True)
"""
# Lists, each of which is the one before twice; number 60 has 2^61 numbers in it.
DOUBLED = b"\x80\x02](](K\x01K\x01eq\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60)) + b"e"
PIXELS = b"cnumpy\nndarray\n)R(K\x01K\x00M\x00\x0c\x86cnumpy\ndtype\nU\x02u1\x85R\x89U\x00tb"  # of no image
HARMFUL = {
    "ten bytes that take gigabytes": b"\x80\x02]r\xff\xff\xff\x7f.",
    "an array of bytes that is not there": b"\x80\x05\x96" + struct.pack("<Q", 1 << 33) + b".",
    "keys nested a million deep": b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s.",
    "keys nested, several at once": b"\x80\x02}()" + b"\x85" * 200_000 + b"K\x01u.",
    "keys nested in a dictionary that was there": b"\x80\x02()" + b"\x85" * 200_000 + b"K\x01d.",
    "a key that is two of two of two": b"\x80\x02})" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(60)) + b"K\x01s.",
    "labels that are two of two of two": DOUBLED + b"}(U\x06labelsh\x3cU\x04data" + PIXELS + b"u.",
    "a type that is two of two of two": DOUBLED + b"cnumpy\ndtype\nh\x3c\x85R.",
    "text encoded again and again": b"\x80\x02](X"
    + struct.pack("<I", 10**6)
    + b"a" * 10**6
    + b"q\x00U\x06latin1q\x01"
    + b"c_codecs\nencode\nh\x00h\x01\x86R" * 10_000
    + b"e.",
    "no end of instructions": b"\x80\x02(" + b"]" * 400_000,
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What is said of each; fewer where one of them ends the process."""
    folder = tmp_path_factory.mktemp("pickles")
    for i, content in enumerate(HARMFUL.values()):
        (folder / f"batch-{i}").write_bytes(content)
    command = [sys.executable, "-c", READ, *(str(folder / f"batch-{i}") for i in range(len(HARMFUL)))]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE).stdout.splitlines()


@pytest.mark.parametrize("case", HARMFUL)
def test_harmful_pickles_are_refused(answers: list[str], case: str) -> None:
    number = list(HARMFUL).index(case)
    assert len(answers) > number
    assert f"batch-{number} " in answers[number]
    assert "which no CIFAR file needs, so it was not read" in answers[number] or "cannot be read" in answers[number]
    assert len(answers[number]) < 400


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_honest_batches_of_every_protocol(protocol: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype=np.uint8)
    batch = {"data": pixels, b"labels": [3, 4], "filenames": ["ä.png", "b.png"], "batch_label": b"training batch 1"}
    x, y = parse_python_batch(pickle.dumps(batch, protocol=protocol), Path("batch"), "labels")
    np.testing.assert_array_equal(x.reshape(2, -1), pixels)
    assert y.tolist() == [3, 4]


def test_labels_may_be_an_array() -> None:
    batch = pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": np.array([3, 4], np.uint8)}, protocol=2)
    assert parse_python_batch(batch, Path("batch"), "labels")[1].tolist() == [3, 4]


def test_a_published_batch_is_within_the_limits() -> None:
    """CIFAR-100 has 50,000 images, each with two labels and a name of its own that Python 2 memoised."""
    names = "".join(f"U\x10{i:016}r{chr(i & 127)}{chr(i >> 7 & 127)}{chr(i >> 14)}\0" for i in range(50_000))
    labels = "K\x01" * 50_000
    text = f"\x80\x02}}(U\x09filenames]({names}eU\x0bfine_labels]({labels}eU\x0dcoarse_labels]({labels}eu."
    found = safe_pickle.parse_batch(text.encode("latin1"), Path("train"))
    assert found["filenames"][-1] == "0000000000049999"
    assert len(found["fine_labels"]) == len(found["coarse_labels"]) == 50_000


def test_what_is_asked_for_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(b"c\x1b[31mos\nsystem\n.")
    with pytest.raises(UserError, match=r"asks for '\\x1b\[31mos\.system'"):
        read_cifar10_python(tmp_path)
