"""From a run folder to a model that predicts: load_model, run.model, run.save, the best round, a client's own model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedptr
from fedptr import Classification, Local, Rounds, Run, Samples, federate, load_model, methods
from fedptr.cli.main import main
from fedptr.data.load import load_dataset
from fedptr.errors import UserError
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.plan import load_plan

SMALL = ["--width", "4", "--rounds", "3", "--batch", "64", "--set", "model.depth=1", "--set", "machine.threads=1"]


def train(out: Path, *options: str) -> Path:
    assert main(["run", "--out", str(out), *SMALL, *options]) == 0
    return out


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(
        tmp_path_factory.mktemp("model") / "run", "--method", "fedavg", "--lr", "0.3", "--set", "output.best=true"
    )


def summary_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def digit_images(kind: str = "raw") -> tuple[Tensor, Tensor]:
    digits = load_dataset("digits")
    x = torch.from_numpy(digits.test_x)
    return (x if kind == "raw" else x.float() / 16), torch.from_numpy(digits.test_y)


def share_right(model: fedptr.Predictor, x: Tensor, y: Tensor) -> float:
    return float((model.probabilities(x).argmax(1) == y).double().mean())


def test_the_loaded_model_scores_as_the_run_did(run_folder: Path) -> None:
    model = load_model(run_folder)
    x, y = digit_images()
    assert share_right(model, x, y) == pytest.approx(summary_of(run_folder)["accuracy_final"], abs=1e-12)
    assert model.classes == tuple("0123456789")
    assert model.shape == (1, 8, 8)
    assert not model.training
    assert model.predict(x[:3]) == [model.classes[k] for k in model(x[:3]).argmax(1).tolist()]


def test_floats_in_zero_to_one_are_the_same_images(run_folder: Path) -> None:
    model = load_model(run_folder)
    torch.testing.assert_close(model(digit_images()[0]), model(digit_images("floats")[0]), rtol=1e-4, atol=1e-4)


def test_model_json_says_what_is_needed(run_folder: Path) -> None:
    told = json.loads((run_folder / "model.json").read_text())
    assert told["network"] == {"name": "convnet", "width": 4, "depth": 1}
    assert (told["shape"], told["pixel_max"]) == ([1, 8, 8], 16)
    assert told["made_by"] == {"method": "fedavg", "dataset": "digits", "rounds": 3}


def test_the_best_round_is_kept(run_folder: Path) -> None:
    best = summary_of(run_folder)["best"]
    lines = [json.loads(line) for line in (run_folder / "rounds.jsonl").read_text().splitlines()]
    assert (
        best["accuracy"] == max(line["test_accuracy"] for line in lines) == lines[best["rounds"] - 1]["test_accuracy"]
    )
    assert share_right(load_model(run_folder, best=True), *digit_images()) == pytest.approx(best["accuracy"], abs=1e-12)


def test_a_run_that_kept_no_best_round_says_so(tmp_path: Path) -> None:
    out = train(tmp_path / "run", "--method", "fedavg", "--rounds", "1")
    with pytest.raises(UserError, match=r"kept no best round; run its plan with output.best = true"):
        load_model(out, best=True)


def test_a_resumed_run_keeps_the_same_best_round(run_folder: Path, tmp_path: Path) -> None:
    out = train(tmp_path / "run", "--method", "fedavg", "--lr", "0.3", "--set", "output.best=true", "--rounds", "1")
    assert main(["resume", str(out), "--rounds", "3"]) == 0
    assert summary_of(out)["best"] == summary_of(run_folder)["best"]


def test_an_earlier_runs_folder_without_model_json_is_read_from_its_plan(run_folder: Path, tmp_path: Path) -> None:
    out = train(tmp_path / "run", "--method", "fedavg", "--lr", "0.3")
    expected = load_model(out)(digit_images()[0])
    (out / "model.json").unlink()
    torch.testing.assert_close(load_model(out)(digit_images()[0]), expected, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["ditto", "finetune", "per-fedavg", "mocha", "fedavg"])
def test_a_clients_own_model_scores_as_it_was_recorded(method: str, tmp_path: Path) -> None:
    linear = ["--model", "linear"] if method == "mocha" else []
    out = train(tmp_path / "run", "--method", method, "--set", "split.test=shares", *linear)
    last = json.loads((out / "rounds.jsonl").read_text().splitlines()[-1])["client_tests"]
    told = last["accuracy" if method == "fedavg" else "personal_accuracy"]
    experiment = prepare_experiment(load_plan(out))
    for i in (0, 3):
        own = experiment.client_tests[i]
        assert own.rows is not None
        model = load_model(out, client=i)
        assert share_right(model, own.x[own.rows], own.labels) == pytest.approx(told[last["id"].index(i)], abs=1e-12)
    with pytest.raises(UserError, match=r"there is no client 99; clients with data are 0, 1"):
        load_model(out, client=99)


@pytest.mark.parametrize("damage", ["other bytes", "nothing"])
def test_damaged_weights_are_refused(damage: str, run_folder: Path, tmp_path: Path) -> None:
    out = train(tmp_path / "run", "--method", "fedavg", "--rounds", "1")
    path = out / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content) if damage == "other bytes" else b"")
    with pytest.raises(UserError, match=r"sha256 does not fit|is damaged"):
        load_model(out)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "shape": "a"}', "[" * 100_000])
def test_a_damaged_model_json_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(UserError, match=r"does not describe a model"):
        load_model(tmp_path)


def test_missing_folders_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a folder; name the folder of a run"):
        load_model(tmp_path / "none")
    with pytest.raises(UserError, match=r"model.json cannot be read"):
        load_model(tmp_path)


class WithBuffers(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def make_with_buffers(shape: tuple[int, ...], classes: int) -> nn.Module:
    return WithBuffers()


def run_in_library(model: nn.Module) -> tuple[Run, Samples]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    x = torch.randn(90, 4, generator=g) + 2 * nn.functional.one_hot(y, 4)
    data = Samples(x, y)
    clients = [data.part(torch.arange(k, 90, 3)) for k in range(3)]
    task = Classification(model, (4,), 3)
    *_, run = federate(methods.FedAvg(), task, clients, data, Rounds(rounds=5), Local(lr=0.1, batch=16))
    return run, data


@pytest.mark.filterwarnings("ignore:the model has BatchNorm")
@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 3), WithBuffers])
def test_run_model_is_what_was_trained(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    given = make()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    run, data = run_in_library(given)
    right = float((run.model(data.x).argmax(1) == data.y).double().mean())
    assert right == pytest.approx(run.record["test_accuracy"], abs=1e-12)
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items()), "the user's own module"

    run.save(tmp_path / "out", classes=["a", "b", "c"], mean=[0.0] * 4, std=[1.0] * 4)
    loaded = load_model(tmp_path / "out", network=make())
    torch.testing.assert_close(loaded(data.x), run.model(data.x), rtol=0, atol=0)
    assert loaded.classes == ("a", "b", "c")
    with pytest.raises(UserError, match=r"a module of your own; give one like it"):
        load_model(tmp_path / "out")
    run.save(tmp_path / "made", factory=f"{__name__}:make_with_buffers")
    if make is WithBuffers:
        torch.testing.assert_close(load_model(tmp_path / "made")(data.x), run.model(data.x), rtol=0, atol=0)
    with pytest.raises(UserError, match=r"2 class names were given for 3 classes"):
        run.save(tmp_path / "other", classes=["a", "b"])


def test_a_run_without_a_module_says_so() -> None:
    run, _ = run_in_library(nn.Linear(4, 3))
    with pytest.raises(UserError, match=r"has no torch module"):
        _ = Run(run.round, run.server, run.clients).model
