"""`model.init`: a run starts from the weights of a file, which must fit, must not change, and is never unpickled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedptr.cli.main import main
from fedptr.errors import UserError
from fedptr.models.initial_weights import load_initial_weights
from fedptr.models.networks import MLP, ModelPlan
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.plan import Plan, check_plan, load_plan

TABLES = {
    "run": {"rounds": 2},
    "data": {"subset": 120},
    "split": {"clients": 3, "min_size": 8},
    "machine": {"threads": 1},
    "method": {"name": "fedavg"},
}
OPTIONS = ["--method", "fedavg", "--model", "mlp", "--width", "8", "--subset", "120", "--clients", "3"]
OPTIONS += ["--rounds", "2", "--batch", "16", "--set", "machine.threads=1"]
Capture = pytest.CaptureFixture[str]


def plan_with(**model: object) -> Plan:
    return check_plan({**TABLES, "model": {"name": "mlp", "width": 8, **model}})


def train(out: Path, *more: str) -> Path:
    assert main(["run", *OPTIONS, "--out", str(out), *more]) == 0
    return out


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("init") / "first")


def refuse(capsys: Capture, *argv: str) -> str:
    capsys.readouterr()
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fedptr: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("name", ["", "weights.safetensors"])
def test_a_run_starts_where_another_ended(first: Path, name: str) -> None:
    """Bit for bit, from the run's folder or from its file."""
    task = prepare_experiment(plan_with(init=str(first / name))).task
    wanted = load_file(first / "weights.safetensors")
    found = task.parameters(task.init())
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_the_saved_plan_has_an_absolute_path(first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(first.parent)
    out = train(tmp_path / "run", "--init", first.name)
    assert load_plan(out).model.init == str(first)
    monkeypatch.chdir(tmp_path)
    again = tmp_path / "again"
    assert main(["run", str(out / "plan.toml"), "--out", str(again)]) == 0
    shas = [json.loads((folder / "summary.json").read_text())["weights_sha256"] for folder in (first, out, again)]
    assert shas[0] != shas[1] == shas[2]


def test_a_new_last_layer_keeps_its_values(first: Path, tmp_path: Path) -> None:
    """A file of another head, under another name besides: its backbone is taken, and nothing else."""
    given = load_file(first / "weights.safetensors")
    file = tmp_path / "backbone.safetensors"
    save_file({**{k: v for k, v in given.items() if k[0] != "5"}, "fc.weight": torch.ones(3)}, file)
    fresh = prepare_experiment(plan_with()).task
    task = prepare_experiment(plan_with(init=str(file), init_except="5.*, fc.*")).task
    for name, value in task.parameters(task.init()).items():
        assert torch.equal(value, fresh.parameters(fresh.init())[name] if name[0] == "5" else given[name])


def test_running_statistics_come_with_it(tmp_path: Path) -> None:
    source, model = (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)) for _ in range(2))
    source(torch.randn(20, 4))
    save_file(source.state_dict(), tmp_path / "a.safetensors", {"format": "pt"})
    assert load_initial_weights(model, ModelPlan(init=str(tmp_path / "a.safetensors"))) == []
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in model.state_dict().items())


def test_half_precision_is_taken_as_the_models(tmp_path: Path) -> None:
    model = MLP((1, 2, 2), 2, width=4)
    save_file({name: value.detach().half() for name, value in model.named_parameters()}, tmp_path / "a.safetensors")
    load_initial_weights(model, ModelPlan(init=str(tmp_path / "a.safetensors")))
    assert {value.dtype for value in model.parameters()} == {torch.float32}


def test_what_does_not_fit_is_named(first: Path, tmp_path: Path) -> None:
    given = load_file(first / "weights.safetensors")
    given["1.weight"], given["extra"] = torch.ones(2, 2), torch.ones(1)
    del given["3.bias"]
    save_file(given, tmp_path / "a.safetensors")
    with pytest.raises(UserError) as error:
        prepare_experiment(plan_with(init=str(tmp_path / "a.safetensors")))
    said = str(error.value)
    assert "does not fit the model mlp: it lacks 3.bias; it has in addition extra; of another shape" in said
    assert "1.weight (2×2, not 8×64)" in said
    assert "model.init_except" in said


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"init": "nowhere.safetensors"}, "model.init nowhere.safetensors cannot be read (No such file"),
        ({"init_except": "5.*"}, "model.init_except is for a model that starts from a file"),
        ({"freeze": "7.*"}, "model.freeze: 7.* matches no parameter; the model has 1.weight, 1.bias, 3.weight"),
        ({"freeze": "1.*, *"}, "model.freeze = 1.*, * leaves nothing of mlp to train"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(
    model: dict[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [word for key, value in model.items() for word in ("--set", f"model.{key}={value}")]
    assert words in refuse(capsys, "run", *OPTIONS, *settings, "--out", "out")
    assert not list(tmp_path.iterdir())


def test_a_pattern_for_nothing_and_bad_numbers_are_refused(first: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model.init_except: 9.\* matches no parameter"):
        prepare_experiment(plan_with(init=str(first), init_except="9.*"))
    given = load_file(first / "weights.safetensors")
    given["1.bias"][0] = torch.nan
    save_file(given, tmp_path / "a.safetensors")
    with pytest.raises(UserError, match=r"1.bias has numbers that are not finite"):
        prepare_experiment(plan_with(init=str(tmp_path / "a.safetensors")))


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('code of the file ran')",)


@pytest.mark.parametrize("legacy", [True, False])
def test_a_pickle_is_refused_with_a_way_out(legacy: bool, tmp_path: Path) -> None:
    torch.save({"a": Trap()}, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(UserError, match=r"is a pickle, which can run code .* convert it once with: python -c"):
        prepare_experiment(plan_with(init=str(tmp_path / "a.pt")))


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"[]", b"\x10" + b"\0" * 7])
def test_damaged_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(UserError, match="is not a sound safetensors file"):
        prepare_experiment(plan_with(init=str(tmp_path / "a.safetensors")))


def test_a_file_of_ours_that_changed_by_a_bit_is_refused(first: Path, tmp_path: Path) -> None:
    content = bytearray((first / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"is damaged .*does not match its checksum"):
        prepare_experiment(plan_with(init=str(tmp_path / "a.safetensors")))


def test_another_file_under_the_name_is_not_resumed(first: Path, tmp_path: Path, capsys: Capture) -> None:
    file, out = tmp_path / "a.safetensors", tmp_path / "run"
    tensors = load_file(first / "weights.safetensors")
    save_file(tensors, file)
    content = file.read_bytes()
    train(out, "--init", str(file))
    save_file({**tensors, "5.bias": tensors["5.bias"] + 1}, file)
    resume = ("resume", str(out), "--rounds", "3")
    assert f"the initial weights of {out} changed since the run was started" in refuse(capsys, *resume)
    file.unlink()
    assert f"model.init {file} cannot be read" in refuse(capsys, *resume)
    file.write_bytes(content)
    assert main(list(resume)) == 0
    straight = train(tmp_path / "straight", "--init", str(file), "--rounds", "3")
    one, other = (json.loads((folder / "summary.json").read_text()) for folder in (out, straight))
    assert one["weights_sha256"] == other["weights_sha256"]
