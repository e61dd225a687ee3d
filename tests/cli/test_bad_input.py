"""Bad input at every door: one sentence, exit code 2, and nothing is written.

What is wrong with options is in test_cli, with the values of a plan in test_plan, with split files in test_partition.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedptr.cli.main import main

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("elsewhere")
QUICK = ["--rounds", "1", "--set", "method.H=1", "--set", "method.R=2", "--set", "machine.threads=1", "--out", "out"]


def refused(capsys: Capture, *argv: str) -> str:
    """The one sentence of a command that must be refused, before it writes anything."""
    before = sorted(p for p in Path().rglob("*") if "__pycache__" not in p.parts)
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fedptr: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert len(err) < 500
    assert sorted(p for p in Path().rglob("*") if "__pycache__" not in p.parts) == before
    return err


# Plans and --set


PLANS: dict[str, tuple[bytes, str]] = {
    "empty file of zeros": (b"\0\0\0", "is not valid TOML"),
    "a picture": (b"\x89PNG\r\n\x1a\n\xff", "is not UTF-8 text; a plan is a TOML file"),
    "json": (b'{"run": {"rounds": 3}}', "is not valid TOML"),
    "a typing mistake": (b"[run]\nround = 3", "run.round is not a setting; did you mean run.rounds?"),
    "a wrong type": (b'[local]\nlr = "0.1"', "local.lr must be a number, not '0.1'"),
    "out of range": (b"[local]\nlr = -1", "local.lr must be more than 0, not -1"),
    "another method's setting": (b'[method]\nname = "fedavg"\nlam = 1', "method.lam is not a setting"),
    "a section twice": (b"[run]\n[run]", "is not valid TOML"),
    "an unknown section": (b"[runs]", "runs is not a section of a plan; did you mean run?"),
}


@pytest.mark.parametrize("case", PLANS)
def test_plans(case: str, capsys: Capture) -> None:
    content, words = PLANS[case]
    Path("plan.toml").write_bytes(content)
    assert words in refused(capsys, "run", "plan.toml", *QUICK)


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("machine.memory_check=1", "machine.memory_check must be true or false, not 1"),
        ("local.batch=0", "local.batch must be at least 1, not 0"),
        ("local.lr=nan", "local.lr must be a number, not nan"),
        ("run.rounds=1e9", "run.rounds must be a whole number, not 1000000000.0"),
        ("method.ipc=none", "method.ipc must be a whole number or \"auto\", not 'none'"),
        ("method.m=0", "method.m must be at least 1, not 0"),
        ("model.depth=3.5", "model.depth must be a whole number, not 3.5"),
        ("model.depth=5", "model.depth 5 pools 8×8 images down to nothing; use fewer blocks"),
        ("split.alpha=0", "split.alpha must be more than 0, not 0"),
        ("split.clients=0", "split.clients must be at least 1, not 0"),
        ("data.subset=5", "5 training images are too few for the 10 classes of digits"),
        ("data.subset=100000", "digits has 1437 training images, not 100000"),
        ("data.dir=none", ""),
    ],
)
def test_assignments(assignment: str, words: str, capsys: Capture) -> None:
    if words:
        assert words in refused(capsys, "run", *QUICK, "--set", assignment)
    else:  # digits come with scikit-learn and need no folder
        assert "none does not exist" in refused(capsys, "run", "--dataset", "cifar10", *QUICK, "--set", assignment)


# Own data

RNG = np.random.default_rng(0)
Y = np.arange(40) % 2
X = RNG.random((40, 8, 8), dtype=np.float32)
HOLE = np.where(np.arange(8) == 3, np.nan, X)
DATA: dict[str, tuple[dict[str, Any], str]] = {
    "NaN pixels": ({"train_x": HOLE}, "train_x in {} has values that are NaN or infinite; replace them"),
    "NaN pixels to test with": ({"test_x": HOLE}, "test_x in {} has values that are NaN or infinite"),
    "infinite pixels": ({"train_x": np.where(X > 0.9, np.inf, X)}, "NaN or infinite"),
    "labels below zero": ({"train_y": Y - 1}, "has the label -1 but not 0"),
    "labels from 1": ({"train_y": Y + 1, "test_y": Y + 1}, "number the classes from 0 without gaps"),
    "unknown labels to test with": ({"test_y": Y * 7}, "test_y in {} has the label 7; labels must be 0 to 1"),
    "one class": ({"train_y": Y * 0, "test_y": Y * 0}, "holds one class only; a classifier needs two or more"),
    "labels that are no numbers": ({"train_y": np.array(["a", "b"] * 20)}, "must be whole numbers [n], not <U1"),
    "labels as vectors": ({"train_y": np.eye(2)[Y]}, "must be whole numbers [n], not float64 of shape [40, 2]"),
    "too few labels": ({"train_y": Y[:5]}, "has 40 samples but train_y has 5 labels; make them match"),
    "nothing to train on": ({"train_x": X[:0], "train_y": Y[:0]}, "the train part of {} is empty"),
    "nothing to test with": ({"test_x": X[:0], "test_y": Y[:0]}, "the test part of {} is empty"),
    "other test images": ({"test_x": X[:, :4]}, "differ (float32 1x8x8 and float32 1x4x8); make them the same"),
    "two channels": ({"train_x": X.reshape(40, 2, 8, 4)}, "save images as [n, H, W], or with 1 or 3 channels"),
    "no images": ({"train_x": X[:, 0, 0]}, "has shape [40]; save images as [n, H, W]"),
    "no test part": ({"test_x": None, "test_y": None}, "lacks test_x and test_y"),
    "pickled": ({"train_x": X.astype(object)}, "{} cannot be read as"),
}  # fmt: skip


def save(**changes: Any) -> None:
    parts = {"train_x": X, "train_y": Y, "test_x": X, "test_y": Y, **changes}
    np.savez("own.npz", **{key: value for key, value in parts.items() if value is not None})


@pytest.mark.parametrize("case", DATA)
def test_own_arrays(case: str, capsys: Capture) -> None:
    changes, words = DATA[case]
    save(**changes)
    assert words.format(Path("own.npz").absolute()) in refused(capsys, "run", "--dataset", "own.npz", *QUICK)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--clients", "50"], "split.min_size = 10 for 50 clients needs 500 samples and the dataset has 40"),
        (
            ["--clients", "4", "--set", "split.max_draws=50", "--set", "split.policy=redraw"],
            "none of 50 draws gave every one of 4 clients split.min_size = 10 samples",
        ),
        (["--partition", "shards", "--clients", "30", "--min-size", "0"], "cuts 60 shards and the dataset has 40"),
        (["--partition", "classes", "--clients", "2", "--set", "split.classes=3"], "split.classes = 3 with 2 clients"),
        (["--set", "data.subset=1"], "1 training images are too few for the 2 classes of own"),
    ],
)
def test_splits_of_few_samples(argv: list[str], words: str, capsys: Capture) -> None:
    save()
    assert words in refused(capsys, "run", "--dataset", "own.npz", *argv, *QUICK)


def test_more_clients_than_samples_is_no_mistake_if_they_may_be_empty() -> None:
    save()
    small = ["--model", "mlp", "--width", "4", "--clients", "60", "--min-size", "0", "--set", "method.ipc=1"]
    assert main(["run", "--dataset", "own.npz", *small, *QUICK, "--rounds", "4"]) == 0


def picture(path: str, size: tuple[int, int] = (8, 8)) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size).save(path)


FOLDERS: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing in it": (lambda: None, "own/train is missing; an image folder needs train/CLASS/ and test/CLASS/"),
    "no test": (lambda: picture("own/train/a/1.png"), "own/test is missing"),
    "no test images": (lambda: (picture("own/train/a/1.png"), Path("own/test/a").mkdir(parents=True)), "no images"),
    "a class only in test": (
        lambda: (picture("own/train/a/1.png"), picture("own/test/b/1.png")),
        "own/test/b has no counterpart in",
    ),
    "an empty class": (
        lambda: (picture("own/train/a/1.png"), picture("own/test/a/1.png"), Path("own/train/b").mkdir()),
        "own/train/b holds no images; restore them, or remove the class",
    ),
    "one class": (lambda: (picture("own/train/a/1.png"), picture("own/test/a/1.png")), "holds one class only"),
    "another size": (
        lambda: (picture("own/train/a/1.png"), picture("own/train/b/1.png", (9, 8)), picture("own/test/a/1.png")),
        "own/train/b/1.png is 9x8 pixels, not 8x8 like the others; resize it",
    ),
    "no picture": (
        lambda: (picture("own/train/a/1.png"), picture("own/test/a/1.png"), Path("own/train/a/2.png").write_text("x")),
        "own/train/a/2.png",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_data_folders(case: str, capsys: Capture) -> None:
    Path("own").mkdir()
    make, words = FOLDERS[case]
    make()
    assert words in refused(capsys, "run", "--dataset", "own", *QUICK)


def test_a_named_dataset_that_is_not_in_the_folder(capsys: Capture) -> None:
    Path("data/cifar-10-batches-py").mkdir(parents=True)
    Path("data/cifar-10-batches-py/data_batch_1").write_bytes(b"half a download")
    err = refused(capsys, "run", "--dataset", "cifar10", "--data-dir", "data", *QUICK)
    assert "cifar" in err


# Own models

ONCE = """
    from torch.autograd import Function
    from torch.autograd.function import once_differentiable

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0]
"""
# What is wrong -> code before the class, the body of `forward` (x is flat, `self.a` and `self.b` are layers), words
MODELS: dict[str, tuple[str, str, str]] = {
    "input in place": ("", "x -= 0.5; return self.b(self.a(x))", "in place; begin its forward with x = x.clone()"),
    "input in place in training": (
        "", "if self.training: x -= 0.5\n        return self.b(self.a(x))", "changes its input in place"),
    "in place, first order": (
        "", "h = self.a(x).sigmoid(); h += 1; return self.b(h)",
        "cannot be trained: one of the variables needed for gradient computation has been modified by an inplace",
    ),
    "no second derivative": (
        ONCE, "return self.b(Square.apply(self.a(x)))",
        "has no second derivative: trying to differentiate twice a function that was marked with @once_differentiable; "
        "use plain operations",
    ),
    "numbers of no image": (
        "", "with torch.no_grad(): h = self.a(x)\n        return self.b(h)", "second derivative by the images is zero"),
    "numpy noise": (
        "import numpy", "return self.b(self.a(x) * numpy.random.rand())",
        "gives different outputs each time in evaluation"),
    "numpy noise in training": (
        "import numpy", "return self.b(self.a(x) * (numpy.random.rand() if self.training else 1))",
        "is not deterministic: the same weights, images and seed gave two gradients; draw random numbers from"),
    "an own generator": (
        "import torch\nG = torch.Generator()",
        "return self.b(self.a(x) * (1 + self.training * torch.rand(1, generator=G)))", "is not deterministic"),
    "memory of calls": (
        "", "self.n = getattr(self, 'n', 0) + self.training; return self.b(self.a(x) * (1 + self.n))",
        "is not deterministic"),
    "dropout in evaluation": (
        "", "return self.b(F.dropout(self.a(x)))", "switch its randomness off there, e.g. with dropout(x, training="),
    "detached": ("", "return self.b(self.a(x)).detach()", "cannot be trained: element 0 of tensors does not require"),
    "NaN": ("", "return self.b(self.a(x)) / 0 * 0", "outputs that are not all finite numbers"),
    "whole numbers": ("", "return self.b(self.a(x)).long()", "gives torch.int64 outputs"),
    "infinite gradient": (
        "", "h = self.a(x); return self.b((h - h.detach()).abs().sqrt() + h)", "a gradient that is not finite"),
    "wrong size": ("", "return self.a(x)", "into a tensor of shape (2, 10), not a tensor of shape (2, 6)"),
    "another batch": ("", "return self.b(self.a(x)).mean(0, keepdim=True)", "not a tensor of shape (1, 10)"),
    "a fault in training": (
        "", "if self.training: raise KeyError('oops')\n        return self.b(self.a(x))", "cannot be trained: 'oops'"),
    "a fault without words": ("", "assert False", "cannot take 1×8×8 images: AssertionError"),
}  # fmt: skip


def write_model(module: str, before: str, forward: str) -> None:
    code = f"""\
import torch
import torch.nn.functional as F
from torch import nn
{textwrap.dedent(before)}
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 6), nn.Linear(6, 10)

    def forward(self, x):
        if x.dim() == 4: x = x.flatten(1)
        {forward}

def make(shape, classes):
    return Own()
"""
    Path(f"{module}.py").write_text(code)


@pytest.mark.parametrize("case", MODELS)
def test_own_models(case: str, capsys: Capture) -> None:
    module = f"bad_{case.replace(' ', '_').replace(',', '')}"  # each its own name: Python keeps what it has imported
    before, forward, words = MODELS[case]
    write_model(module, before, forward)
    err = refused(capsys, "run", "--model", f"{module}:make", "--method", "fedptr", *QUICK)
    assert words in err
    assert f"model {module}:make" in err


@pytest.mark.parametrize("method", ["fedptr-s", "scaffold+ptr", "naive", "dynafed", "dosfl", "per-fedavg"])
def test_methods_that_take_second_derivatives_refuse_a_model_without(method: str, capsys: Capture) -> None:
    module = f"once_for_{method.replace('-', '_').replace('+', '_')}"
    write_model(module, *MODELS["no second derivative"][:2])
    more = ["--set", "method.variant=exact"] if method == "per-fedavg" else []
    asked = ["run", "--model", f"{module}:make", "--method", method, *more, "--rounds", "1", "--out", "out"]
    assert "has no second derivative: trying to differentiate twice" in refused(capsys, *asked)


@pytest.mark.parametrize("method", ["moon", "feddm"])
def test_methods_that_need_features_refuse_a_model_without(method: str, capsys: Capture) -> None:
    module = f"featureless_{method}"
    write_model(module, "", "return F.linear(x, self.w)")
    code = Path(f"{module}.py").read_text()
    layers = "self.a, self.b = nn.Linear(64, 6), nn.Linear(6, 10)"
    assert layers in code
    Path(f"{module}.py").write_text(code.replace(layers, "self.w = nn.Parameter(torch.randn(10, 64))"))
    err = refused(capsys, "run", "--model", f"{module}:make", "--method", method, "--rounds", "1", "--out", "out")
    assert f"{method} needs the features before a model's last nn.Linear layer, and this model has none" in err


@pytest.mark.parametrize("case", ["no second derivative", "numbers of no image"])
def test_second_derivatives_are_asked_for_by_matching_only(case: str) -> None:
    module = f"once_{case.replace(' ', '_')}"
    write_model(module, *MODELS[case][:2])
    assert main(["run", "--model", f"{module}:make", "--method", "fedavg", "--rounds", "1", "--lr", "0.01"]) == 0


GOOD = {
    "keyed dropout": "return self.b(F.dropout(self.a(x), training=self.training))",
    "in place where it may be": "return self.b(F.relu_(self.a(x)))",
    "first layer frozen at zero": "return self.b(self.a(x)) * 0 + self.b(torch.tanh(self.a(x)))",
}


@pytest.mark.parametrize("case", GOOD)
def test_sound_models_pass_the_trial(case: str) -> None:
    module = f"good_{case.replace(' ', '_')}"
    write_model(module, "", GOOD[case])
    argv = ["run", "--model", f"{module}:make", "--set", "method.ipc=1", "--set", "method.m=1", *QUICK]
    assert main([*argv, "--rounds", "3"]) == 0
