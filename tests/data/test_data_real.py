"""The published data, where it is installed: counts, checksums and a few known pixels."""

import subprocess
import sys

import numpy as np
import pytest

from fedptr.data.load import load_dataset, locate_dataset
from fedptr.data.safe_pickle import parse_batch
from fedptr.data.sources import SOURCES, find_dataset


def installed(name):
    found = find_dataset(SOURCES[name])
    if found is None:
        pytest.skip(f"{name} is not installed: run `fedptr data get {name}`")
    return found[0]


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "shape", "first"),
    [
        ("fashion-mnist", (60000, 1, 28, 28), [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]),
        ("cifar10", (50000, 3, 32, 32), [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]),
        ("cifar100", (50000, 3, 32, 32), [19, 29, 0, 11, 1, 86, 90, 28, 23, 31]),
    ],
)
def test_published_data(name, shape, first):
    installed(name)
    data = locate_dataset(name).verified()  # decodes afresh and compares the checksums
    assert data.train_x.shape == shape
    assert data.train_y[:10].tolist() == first
    assert np.bincount(data.test_y).tolist() == [10000 // len(data.classes)] * len(data.classes)
    # The usual constants are rounded to 3 or 4 digits, and CIFAR-10's deviations are the mean of those per image.
    np.testing.assert_allclose(data.mean, data.train_x.mean(axis=(0, 2, 3)), atol=0.05)


@pytest.mark.real
def test_cifar100_names():
    meta = installed("cifar100") / "meta"
    if not meta.exists():
        pytest.skip("this form of cifar100 has no meta file: run `fedptr data get cifar100`")
    assert tuple(parse_batch(meta.read_bytes(), meta)["fine_label_names"]) == SOURCES["cifar100"].classes


@pytest.mark.real
def test_tiny_imagenet():
    installed("tiny-imagenet")
    data = load_dataset("tiny-imagenet")
    n = len(data.classes)
    assert np.bincount(data.train_y).tolist() == [500] * n
    assert np.bincount(data.test_y).tolist() == [50] * n
    assert n == 200 or f"{n} of 200 classes" in data.source


def test_digits():
    data = load_dataset("digits")
    assert (len(data.train_y), len(data.test_y), data.train_x.max()) == (1437, 360, 16)
    assert np.bincount(data.test_y).tolist() == [36] * 10
    assert data.mean == pytest.approx([data.train_x.mean()])
    assert data.std == pytest.approx([data.train_x.std()])


def test_start_up_stays_light():
    """`fedptr --help` imports the commands, `fedptr data list` the sources: neither may wait for torch."""
    light = "import sys, fedptr.cli.data; assert not {'numpy', 'rich', 'torch'} & set(sys.modules)"
    listing = "import sys, fedptr.data.fetch; assert not {'torch', 'sklearn', 'PIL'} & set(sys.modules)"
    for program in (light, listing):
        subprocess.run([sys.executable, "-c", program], check=True)
