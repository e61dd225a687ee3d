"""Flower is as our patches of it expect; where it is not, the message says what changed and where to look."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import pkgutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedptr[flower]'")

import fedptr
from fedptr.engines.flower import patches
from fedptr.engines.flower.patches import flower_code, forked_client_app, own_client_app, pull_pauses, supernode_loop
from fedptr.engines.flower.patches.flower_code import VERSION, FlowerCode

NAMES = [info.name for info in pkgutil.iter_modules(patches.__path__) if info.name != "flower_code"]
# What Flower's documentation describes, and the functions behind its commands.
PUBLIC = {f"flwr.{name}" for name in ("app", "clientapp", "serverapp")}
PUBLIC |= {f"flwr.{name}.cli" for name in ("superlink", "supernode", "supercore")}


def patch(name: str) -> ModuleType:
    return importlib.import_module(f"{patches.__name__}.{name}")


CODES = [
    pytest.param(name, code, id=f"{name}-{code.name}-{code.line}") for name in NAMES for code in patch(name).FLOWER
]


@pytest.mark.parametrize(("name", "code"), CODES)
def test_flower_is_as_the_patch_expects(name: str, code: FlowerCode) -> None:
    problem = code.difference()
    where = f"{code.module}.{code.name}, line {code.line} of {VERSION}"
    assert not problem, f"Flower changed {where}: {problem}; look at fedptr/engines/flower/patches/{name}.py"


@pytest.mark.skipif(importlib.metadata.version("flwr") != VERSION, reason=f"line numbers are those of Flower {VERSION}")
@pytest.mark.parametrize(("name", "code"), CODES)
def test_line_numbers_are_right(name: str, code: FlowerCode) -> None:
    file = importlib.import_module(code.module).__file__
    assert file is not None
    line = Path(file).read_text(encoding="utf-8").splitlines()[code.line - 1]
    assert code.code.replace("'", '"') in line.replace("'", '"')


@pytest.mark.parametrize("name", NAMES)
def test_every_patch_says_what_it_counts_on_and_why(name: str) -> None:
    assert patch(name).FLOWER
    assert len(patch(name).__doc__ or "") > 200


def test_a_change_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = pull_pauses.FLOWER
    module = importlib.import_module(code.module)
    assert code.difference() == ""
    assert "its source has the digest" in code._replace(sha256="0" * 16).difference()
    assert code._replace(code="sleep(7)").difference() == "it has no `sleep(7)`"
    monkeypatch.setattr(module, code.name, test_a_change_is_noticed)
    assert "it has no `initial_backoff" in code.difference()
    monkeypatch.delattr(module, code.name)
    assert code.difference() == "it is gone"
    assert code._replace(module="flwr.nowhere").difference() == "it is gone"


def flower_imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.partition(".")[0] == "flwr"}


def test_nothing_else_reaches_into_flower() -> None:
    root = Path(fedptr.__file__).parent
    folder = Path(str(patches.__file__)).parent
    strays = {
        f"{path.relative_to(root)}: {name}"
        for path in root.rglob("*.py")
        if path.parent != folder
        for name in flower_imports(path) - PUBLIC
    }
    assert not strays


@pytest.mark.parametrize("name", ["install_from_fab", "get_load_client_app_fn"])
def test_a_flower_that_might_load_what_it_is_sent_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(importlib.import_module(own_client_app.PROCESS), name)
    with pytest.raises(SystemExit, match="2"):
        own_client_app.run_only(None)
    assert flower_code.UNKNOWN in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "name", "apply"),
    [
        (forked_client_app.EXECUTOR, "subprocess", forked_client_app.fork_client_apps),
        (supernode_loop.LOOP, "subprocess", supernode_loop.patch_loop),
        (supernode_loop.LOOP, "time", supernode_loop.patch_loop),
    ],
)
def test_a_flower_that_might_start_what_it_is_sent_is_refused(
    module: str, name: str, apply: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(importlib.import_module(module), name)
    assert callable(apply)
    with pytest.raises(SystemExit, match="2"):
        apply()
    assert flower_code.UNKNOWN in capsys.readouterr().err


@pytest.mark.parametrize("command", [["flwr-serverapp"], ["flwr-clientapp", "--allow-runtime-dependency-installation"]])
def test_a_node_starts_its_own_client_app_and_nothing_else(command: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        forked_client_app.fork(command)


def test_a_supernode_starts_our_superexec_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", started.append)
    supernode_loop.start_superexec(["flower-superexec", "--insecure"])
    assert started[0][1:] == ["-m", "fedptr.engines.flower.superexec", "--insecure"]
    with pytest.raises(SystemExit, match="2"):
        supernode_loop.start_superexec(["flwr-agentapp"])
