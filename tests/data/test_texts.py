"""Tables of texts: which they are, the tokens they become, and runs on them from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_texts import make_texts, write_texts
from torch import nn

import fedptr
from fedptr.cli.main import main
from fedptr.data.load import load_dataset
from fedptr.data.tables import holds_text
from fedptr.data.to_samples import to_samples
from fedptr.data.tokens import TextPlan, encode_texts, split_words
from fedptr.errors import UserError
from fedptr.runs.plan import DataPlan, load_plan

FEW = ["--clients", "2", "--min-size", "5", "--threads", "1", "--alpha", "10", "--batch", "16", "--width", "8"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPTR_CACHE", str(tmp_path / "cache"))


def run(path: Path, out: Path, *more: str) -> int:
    return main(["run", "--dataset", str(path), *FEW, "--out", str(out), *more])


def test_tokens_are_words_and_marks_and_do_not_depend_on_other_texts() -> None:
    assert split_words("Don't   stop: 3.5 times—ÜBER!", 6) == ["don't", "stop", ":", "3", ".", "5"]
    plan = TextPlan(vocabulary=1000, length=5)
    texts = [text for text, _ in make_texts(50)]
    tokens = encode_texts(texts, plan)
    assert tokens.dtype == np.int64
    assert tokens.shape == (50, 5)
    assert 0 <= tokens.min() <= tokens.max() < 1000
    for text, row in zip(texts, tokens, strict=True):
        assert (encode_texts([text.upper()], plan)[0] == row).all()
        assert (row != 0).sum() == min(5, len(split_words(text)))
    assert encode_texts(["good"], plan).tolist() == [[627, 0, 0, 0, 0]]  # so that saved models stay right


def test_a_table_of_texts_is_cached_by_vocabulary_and_length(tmp_path: Path) -> None:
    path = str(write_texts(tmp_path / "a.csv"))
    data, short = load_dataset(path), load_dataset(path, text=TextPlan(50, 3))
    assert data.train_x.shape == (96, 64)
    assert (data.vocabulary, data.shape, short.shape) == (10_000, (64, 10_000), (3, 50))
    assert (load_dataset(path).shape, load_dataset(path, text=TextPlan(50, 3)).shape) == (data.shape, short.shape)
    train, _ = to_samples(data)
    x, _ = train.take(torch.arange(3))
    assert x.dtype == torch.int64
    np.testing.assert_array_equal(x, data.train_x[:3])


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("text,label\n12,a\n3,b\n", True),
        ("words,label\n12,a\nthree,b\n", True),
        ("label,anything\na,see\nb,this\n", True),
        ("x,label\n12,a\n3,b\n", False),
        ("text,stars,label\ngood,3,a\nbad,1,b\n", False),
        ("a,b,label\n1,2,a\n3,4,b\n", False),
        ("", False),
    ],
)
def test_text_is_the_only_column_beside_the_label(content: str, text: bool, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(content + content.partition("\n")[2] * 10)
    assert holds_text(str(tmp_path / "a.csv")) is text
    if text:
        assert load_dataset(str(tmp_path / "a.csv")).vocabulary
    assert not holds_text(str(tmp_path / "none.csv"))


def test_text_beside_other_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,stars,label\ngood,3,a\nbad,1,b\n" * 5)
    with pytest.raises(UserError, match=r"'text' .* is not a number; .*text is taken where it is the only column"):
        load_dataset(str(tmp_path / "a.csv"))


@pytest.mark.parametrize("method", ["fedavg", "fedptr", "fedptr-s", "scaffold"])
def test_texts_are_trained_on_from_the_command_line(method: str, tmp_path: Path, capsys) -> None:
    path, out = write_texts(tmp_path / "a.csv"), tmp_path / "run"
    assert run(path, out, "--method", method, "--rounds", "8") == 0
    assert json.loads((out / "summary.json").read_text())["accuracy_final"] > 0.8
    card = json.loads((out / "model.json").read_text())
    assert (card["text"], card["shape"], card["classes"]) == (True, [64, 10_000], ["bad", "good"])
    assert not (out / "auxiliary").exists()
    assert main(["report", str(out), "-o", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    assert main(["predict", str(out), "a lovely, great story"]) == 0
    assert "good,0." in capsys.readouterr().out
    (tmp_path / "b.txt").write_text("awful boring\nhappy great people\n")
    (tmp_path / "b.csv").write_text("id,text\n1,awful boring\n2,happy great people\n")
    for name in ("b.txt", "b.csv"):
        assert main(["predict", str(out), str(tmp_path / name)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split(",")[1] for line in lines] == ["class", "bad", "good"]
    assert main(["predict", str(out), str(tmp_path / "none.txt")]) == 2
    assert "does not exist" in capsys.readouterr().err
    model = fedptr.load_model(out)
    assert model.predict(torch.from_numpy(encode_texts(["sad, poor film"], TextPlan()))) == ["bad"]


def test_a_run_on_texts_resumes_with_the_same_bits(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.csv")
    matching = ["--method", "fedptr", "--set", "data.length=12", "--set", "data.vocabulary=300"]
    assert run(path, tmp_path / "whole", *matching, "--rounds", "6") == 0
    assert run(path, tmp_path / "parts", *matching, "--rounds", "4") == 0
    assert main(["resume", str(tmp_path / "parts"), "--rounds", "6"]) == 0
    shas = [json.loads((tmp_path / f / "summary.json").read_text())["weights_sha256"] for f in ("whole", "parts")]
    assert shas[0] == shas[1]
    assert load_plan(tmp_path / "whole").data.text == TextPlan(300, 12)
    assert DataPlan().text == TextPlan()


def test_models_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = write_texts(tmp_path / "a.csv"), tmp_path / "run"
    for model in ("mlp", "convnet", "linear"):
        assert run(path, out, "--model", model) == 2
        assert "is for images and tables, and these are texts; use --model text-mean" in capsys.readouterr().err
    assert main(["run", "--model", "text-conv", "--out", str(out)]) == 2
    assert "is for texts, and these are numbers or images" in capsys.readouterr().err
    assert run(path, out, "--method", "fedptr-s", "--set", "method.dsa=true") == 2
    assert "set method.dsa = false" in capsys.readouterr().err
    assert run(path, out, "--method", "naive") == 2
    assert "naive trains on auxiliary samples among the client's own" in capsys.readouterr().err
    assert not out.exists()


OWN = """
import torch
from torch import nn

class Bag(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.table = nn.EmbeddingBag(shape[1], classes, mode="sum")
    def forward(self, tokens):
        assert tokens.dtype == torch.int64
        return self.table(tokens)

class Vectors(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.table, self.head = nn.Embedding(shape[1], 5), nn.Linear(5, classes)
    def embed(self, tokens):
        return self.table(tokens)
    def forward(self, x):
        return self.head(torch.tanh((x if x.is_floating_point() else self.embed(x)).mean(1)))

class Wrong(Vectors):
    def forward(self, x):
        return super().forward(x) * (2 if x.is_floating_point() else 1)
"""


def test_a_model_of_ones_own_gets_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_texts.py").write_text(OWN)
    path = write_texts(tmp_path / "a.csv")
    assert run(path, tmp_path / "bag", "--model", "own_texts:Bag", "--method", "fedavg", "--rounds", "2") == 0
    assert main(["predict", str(tmp_path / "bag"), "good"]) == 0
    for method in ("fedptr", "fedptr-s", "fedavg+ptr"):
        assert run(path, tmp_path / "no", "--model", "own_texts:Bag", "--method", method) == 2
        assert "give the model a method embed(tokens)" in capsys.readouterr().err
        assert not (tmp_path / "no" / "rounds.jsonl").exists()
    assert run(path, tmp_path / "ptr", "--model", "own_texts:Vectors", "--method", "fedptr", "--rounds", "5") == 0
    assert run(path, tmp_path / "no", "--model", "own_texts:Wrong", "--method", "fedavg") == 2
    assert "answers differently to tokens and to what its embed returns" in capsys.readouterr().err


def test_an_exported_model_takes_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = write_texts(tmp_path / "a.csv"), tmp_path / "run"
    assert run(path, out, "--method", "fedavg", "--rounds", "1") == 0
    assert main(["export", str(out), "--format", "torch"]) == 0
    assert "takes int64 token numbers below 10000, shape [n, 64]" in capsys.readouterr().out
    assert isinstance(torch.export.load(str(out / "model.pt2")).module(), nn.Module)
