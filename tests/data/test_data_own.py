"""Own data: the shapes an .npz may have, and the sentence for each mistake."""

import numpy as np
import pytest

from fedptr.data.load import load_dataset
from fedptr.errors import UserError

rng = np.random.default_rng(0)
Y = np.arange(12) % 3
X = rng.integers(0, 256, (12, 8, 9, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPTR_CACHE", str(tmp_path / "cache"))


def saved(folder, **changes):
    parts = {"train_x": X, "train_y": Y, "test_x": X[:4], "test_y": Y[:4], **changes}
    np.savez(folder / "mine.npz", **{key: value for key, value in parts.items() if value is not None})
    return load_dataset(str(folder / "mine.npz"))


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (X, X.transpose(0, 3, 1, 2)),
        (X.transpose(0, 3, 1, 2), X.transpose(0, 3, 1, 2)),
        (X[..., 0], X[:, None, :, :, 0]),
        (X[..., :1], X[:, None, :, :, 0]),
        (X[:, :3], X[:, :3]),  # axis 1 goes first
        (X / 255, (X / 255).astype(np.float32).transpose(0, 3, 1, 2)),
    ],
)
def test_layouts(tmp_path, x, expected):
    data = saved(tmp_path, train_x=x, test_x=x[:4])
    np.testing.assert_array_equal(data.train_x, expected)
    np.testing.assert_array_equal(data.test_x, expected[:4])
    assert data.train_x.dtype == expected.dtype
    assert data.classes == ("0", "1", "2")
    np.testing.assert_allclose(data.mean, expected.mean(axis=(0, 2, 3), dtype=float))
    np.testing.assert_allclose(data.std, expected.std(axis=(0, 2, 3), dtype=float))


def test_given_names_and_constants(tmp_path):
    data = saved(tmp_path, classes=np.array(["a", "b", "c", "d"]), mean=[1, 2, 3], std=[4.0, 5.0, 6.0])
    assert (data.name, data.classes, data.mean, data.std) == ("mine", tuple("abcd"), (1, 2, 3), (4, 5, 6))
    assert data.source == f"{tmp_path}/mine.npz (.npz file)"


def test_a_constant_channel_can_be_divided_by(tmp_path):
    flat = np.where(np.arange(3) == 1, np.uint8(7), X)
    data = saved(tmp_path, train_x=flat)
    assert (data.mean[1], data.std[1]) == (7, 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"test_y": None}, "lacks test_y"),
        ({"train_y": Y[:5]}, "12 samples but train_y has 5 labels"),
        ({"test_x": X[:0], "test_y": Y[:0]}, "test part of .* is empty"),
        ({"train_y": Y / 2}, "train_y .* must be whole numbers"),
        ({"train_y": Y + 1}, "has the label 1 but not 0"),
        ({"train_y": Y - 1}, "has the label -1 but not 0"),
        ({"test_y": Y[:4] + 5}, "test_y .* has the label 7; labels must be 0 to 2"),
        ({"classes": np.array(["a", "b"])}, "train_y .* has the label 2; labels must be 0 to 1"),
        ({"train_y": Y * 0, "test_y": Y[:4] * 0}, "one class only"),
        ({"train_x": np.where(X[3, 3, 3] == X, np.nan, X)}, "NaN"),
        ({"train_x": np.full(X.shape, 1e300)}, "infinite"),
        ({"train_x": X.astype(np.int64)}, "is int64; save it as uint8"),
        ({"train_x": X[:, :, :, [0, 0]]}, r"shape \[12, 8, 9, 2\]"),
        ({"train_x": X[:, 0, 0, 0]}, r"shape \[12\]"),
        ({"train_x": X[:, :0]}, "shape"),
        ({"test_x": X[:4, :5]}, "uint8 3x8x9 and uint8 3x5x9"),
        ({"test_x": X[:4] / 2}, "differ"),
        ({"train_x": X.astype(object)}, "allow_pickle"),
        ({"std": [1.0, 0.0, 1.0]}, "std more than 0"),
        ({"mean": [1.0]}, "one number per channel"),
        ({"mean": ["a", "b", "c"]}, "finite number"),
    ],
)
def test_mistakes(tmp_path, changes, words):
    with pytest.raises(UserError, match=words) as caught:
        saved(tmp_path, **changes)
    assert "mine.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_not_an_npz(tmp_path):
    np.save(tmp_path / "a.npy", X)
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(UserError, match=r"is not an \.npz file"):
        load_dataset(str(tmp_path / "a.npz"))
    with pytest.raises(UserError, match=r"none\.npz does not exist"):
        load_dataset(str(tmp_path / "none.npz"))
    with pytest.raises(UserError, match="train is missing"):
        load_dataset(str(tmp_path))
