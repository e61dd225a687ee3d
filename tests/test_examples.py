"""The examples run as documented, and the one-file FedPTR computes what the package does."""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from documented_commands import check_commands
from torch import Tensor, nn
from wait_until import PATIENCE

from fedptr.core.federation import Rounds, federate
from fedptr.core.local_training import Local
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.data.sources import SOURCES, find_dataset
from fedptr.methods import make_method
from fedptr.models.networks import ConvNet
from fedptr.runs.experiment import Experiment, prepare_experiment
from fedptr.runs.plan import check_plan

EXAMPLES = Path(__file__).parent.parent / "examples"
MINIMAL = EXAMPLES / "fedptr_minimal.py"
ROUNDS, CLIENTS, SEED = 7, 4, 3  # with m = 2, rounds 3 to 6 match, project and pull
SMALL = {"H": 3, "R": 4, "ipc": 2, "lam": 0.05}


def accuracies(*command: str | Path, cwd: Path) -> list[float]:
    """The percentages a command prints, line by line."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return [float(number) / 100 for number in re.findall(r"accuracy +([\d.]+)%", done.stdout)]


@pytest.mark.slow
def test_own_model_and_data(tmp_path: Path) -> None:
    seen = accuracies(sys.executable, "-W", "error", EXAMPLES / "own_model_and_data.py", cwd=tmp_path)
    assert seen[0] < 0.85 < seen[-1]  # chance is 0.4
    assert len(seen) < 30, "the example should show an early stop"


@pytest.mark.slow
def test_own_regression(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / "own_regression.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    scores = re.findall(r"^(\S+) +R² ([\d.]+)", done.stdout, re.MULTILINE)
    assert [name for name, _ in scores] == ["fedavg", "fedptr"]
    assert all(0.35 < float(r2) < 0.6 for _, r2 in scores)  # linear regression on all data has about 0.5


@pytest.mark.slow
def test_own_callbacks(tmp_path: Path) -> None:
    """Every callback acts: a log, lower learning rates, early stops, and the best model, which is loaded again."""
    seen = accuracies(sys.executable, "-W", "error", EXAMPLES / "own_callbacks.py", cwd=tmp_path)
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert len(lines) - 1 == len(seen) - 1 < 100, "it stops early"
    rates = [line.split(",")[1] for line in lines[1:]]
    assert len(set(rates)) == 3
    assert rates == sorted(rates, key=float, reverse=True)
    assert seen[-1] > 0.85 > seen[0]
    assert (tmp_path / "best-model" / "weights.safetensors").exists()


@pytest.mark.slow
@pytest.mark.real
def test_own_airlines(tmp_path: Path) -> None:
    if find_dataset(SOURCES["flights"]) is None:
        pytest.skip("flights is not installed: run `fedptr data get flights`")
    together, tuned, alone = accuracies(sys.executable, "-W", "error", EXAMPLES / "own_airlines.py", cwd=tmp_path)
    assert min(together, tuned, alone) > 0.68  # always saying "early" is right 56 times in 100


@pytest.mark.slow
def test_own_cli_model(tmp_path: Path) -> None:
    """The command as its file has it, on images with a bright quarter that is the class."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 4
    x = rng.normal(size=(400, 8, 8)).astype(np.float32)
    for image, k in zip(x, y, strict=True):
        image[4 * (k // 2) :, 4 * (k % 2) :][:4, :4] += 2
    np.savez(tmp_path / "own.npz", train_x=x[:300], train_y=y[:300], test_x=x[300:], test_y=y[300:])
    own = shutil.copy(EXAMPLES / "own_cli_model.py", tmp_path)
    (command,) = re.findall(r"^ +(fedptr run .*)$", Path(own).read_text(encoding="utf-8"), re.MULTILINE)
    _, *arguments = shlex.split(command)
    (mean,) = accuracies(sys.executable, "-m", "fedptr", *arguments, cwd=tmp_path)
    assert mean > 0.5  # chance is 0.25
    assert (tmp_path / "runs/fedptr-own-seed0/summary.json").exists()


def test_minimal_is_short_and_stands_alone() -> None:
    text = MINIMAL.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    nodes = list(ast.walk(ast.parse(text)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"numpy", "torch", "sklearn"}


@pytest.mark.slow
def test_minimal_learns(tmp_path: Path) -> None:
    seen = accuracies(sys.executable, "-W", "error", MINIMAL, "5", cwd=tmp_path)
    assert len(seen) == 5
    assert seen[-1] > seen[2] > seen[0] > 0.1
    assert seen[-1] > 0.55


@functools.cache
def minimal() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fedptr_minimal", MINIMAL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def experiment() -> Experiment:
    """What the package makes of the plan the one file stands for."""
    tables = {
        "run": {"seed": SEED},
        "split": {"clients": CLIENTS, "alpha": 0.1, "min_size": 250, "seed": 5},
        "model": {"name": "mlp", "width": 64},
    }
    return prepare_experiment(check_plan(tables))


def data() -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """Clients and test set of the one file's own making."""
    (x, y), test = minimal().load_data()
    rows = minimal().draw_split(y, CLIENTS, alpha=0.1, min_size=250, seed=5)
    return [(x[own], y[own]) for own in rows], test


def test_minimal_has_the_same_data_split_and_model() -> None:
    clients, test = data()
    assert experiment().split.draws > 1  # so that redrawing is compared too
    for (x, y), samples in zip([*clients, test], [*experiment().clients, experiment().test], strict=True):
        expected_x, expected_y = samples.take(torch.arange(len(samples)))
        assert torch.equal(y, expected_y)
        assert torch.allclose(x, expected_x, rtol=0, atol=1e-6)
    w = nn.utils.parameters_to_vector(minimal().make_mlp(SEED).parameters())
    assert torch.equal(w, experiment().task.init())


def double() -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """A fifth of every client, in float64, where only a mistake is larger than 1e-12."""
    clients, (x, y) = data()
    return [(x[::5].double(), y[::5]) for x, y in clients], (x.double(), y)


def model(kind: str) -> nn.Module:
    if kind == "convnet":
        with Key(SEED).fixed("init"):
            return ConvNet((1, 8, 8), 10, width=3, depth=2).double()  # its biases before a norm stay below ε
    mlp: nn.Module = minimal().make_mlp(SEED)
    return mlp.double()


@functools.cache
def package(kind: str) -> list[Tensor]:
    """The package's global models, round by round."""
    clients, test = double()
    task = Classification(model(kind), (1, 8, 8), 10)
    own = minimal().Settings()
    shared = {name: getattr(own, name) for name in ("m", "beta", "lr_img", "lr_beta", "mtt_momentum", "K", "eta")}
    local = Local(lr=own.lr, momentum=own.momentum, batch=own.batch)
    runs = federate(
        make_method("fedptr", dsa=False, **{**shared, **SMALL}),
        task, [Samples(*client) for client in clients], Samples(*test), Rounds(rounds=ROUNDS, seed=SEED), local,
    )  # fmt: skip
    return [task.init(), *(run.w for run in runs)]


def one_file(kind: str, **change: float) -> list[Tensor]:
    settings = minimal().Settings(**{**SMALL, **change})
    clients, test = double()
    w: list[Tensor] = minimal().run_fedptr(clients, test, model(kind), ROUNDS, SEED, settings)
    return w


def gaps(a: list[Tensor], b: list[Tensor]) -> list[float]:
    """By round, the largest difference of any weight."""
    return [float((x - y).abs().max()) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("kind", ["mlp", "convnet"])
def test_minimal_equals_the_package(kind: str) -> None:
    ours = package(kind)
    assert all(len(y) > 32 for _, y in double()[0])  # several batches each
    assert min(gaps(ours[:-1], ours[1:])) > 1e-3  # every round trains
    assert max(gaps(ours, one_file(kind))) < 1e-12


@pytest.mark.parametrize(
    ("name", "value"),
    [("lam", 0.06), ("m", 1), ("H", 2), ("R", 3), ("K", 4), ("eta", 0.011), ("lr_img", 900.0), ("lr_beta", 2e-5)],
)
def test_every_part_of_it_counts(name: str, value: float) -> None:
    """The comparison above is not blind: a little of anything else and the two differ by far more."""
    assert gaps(package("mlp"), one_file("mlp", **{name: value}))[-1] > 1e-5


def readme() -> str:
    return (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")


def test_the_readme_example_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", readme(), re.DOTALL)
    (tmp_path / "example.py").write_text(f"import torch\ntorch.set_num_threads(1)\ntorch.manual_seed(0)\n{code}")
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > 0.8


def test_the_readme_commands_are_understood() -> None:
    """Every `fedptr …` line of the README is parsed, and its plan checked, as the command line would."""
    assert check_commands(readme()) >= 5


def test_the_readme_is_short_and_starts_with_a_run() -> None:
    assert len(readme().splitlines()) <= 120
    assert re.findall(r"^fedptr .*?(?=  |$)", readme(), re.MULTILINE)[0] == "fedptr run"
    assert "\nmake demo " in readme()
    assert "\nmake test " in readme()


@pytest.mark.slow
def test_docstrings_become_texts(tmp_path: Path) -> None:
    """With fewer texts than the example's, as its packages change."""
    from fedptr.data.load import load_dataset

    command = [sys.executable, str(EXAMPLES / "docstrings" / "write_tables.py"), str(tmp_path / "docstrings")]
    subprocess.run(command, check=True, cwd=tmp_path)
    data = load_dataset(str(tmp_path / "docstrings"))
    assert data.classes == ("matplotlib", "numpy", "scipy", "sklearn", "torch")
    assert data.vocabulary
    assert len(data.train_y) > 3 * len(data.test_y) > 900
