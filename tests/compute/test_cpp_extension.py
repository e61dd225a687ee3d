"""The cache of compiled code: what is damaged is never loaded, and what is there serves without a compiler."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wait_until import PATIENCE

from fedptr.compute import compiler, cpp_extension
from fedptr.compute.compiler import KINDS, UnavailableError, build_for_installation, kinds_here
from fedptr.compute.cpp_extension import (
    load_installed,
    load_library,
    processor_features,
    read_compiler,
    remove_old_scratch,
)

LONG_AGO = 10**9  # seconds after 1970: in 2001

LOAD = (
    "from fedptr.compute.cpp_extension import load_library\n"
    "code = load_library('small', 'float')\n"
    "print(code.answer(), code.identity)\n"
)
SOURCE = 'extern "C" int answer() { return sizeof(REAL) + 38; }\n'


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package with a C++ file that compiles quickly."""
    place = tmp_path / "package"
    left_out = shutil.ignore_patterns("*.pyc", "built")
    shutil.copytree(Path(cpp_extension.__file__).parents[1], place / "fedptr", ignore=left_out)
    (place / "fedptr" / "compute" / "small.cpp").write_text(SOURCE)
    return place


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "compiled").mkdir()
    return tmp_path / "compiled"


def load(package: Path, cache: Path, **more: str) -> tuple[str, str]:
    """What a new process prints that loads the code, on stdout and on stderr."""
    env = {**os.environ, "PYTHONPATH": str(package), "TORCHINDUCTOR_CACHE_DIR": str(cache), **more}
    command = [sys.executable, "-c", LOAD]
    done = subprocess.run(command, env=env, cwd=package, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout, done.stderr


def built(cache: Path) -> Path:
    (path,) = cache.glob("*.so")
    return path


@pytest.mark.slow
def test_a_damaged_library_is_compiled_again_and_never_loaded(package: Path, cache: Path) -> None:
    """A process that maps a library which is cut off is killed by the system (SIGBUS) or computes nonsense."""
    first, said = load(package, cache)
    assert first.startswith("42 ")
    assert "compiling small.cpp" in said
    assert load(package, cache) == (first, "")
    whole = built(cache).read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    note = built(cache).with_suffix(".json")
    told = note.read_bytes()
    for damaged in (b"", whole[:100], whole[: len(whole) // 2], whole[:-1], bytes(flipped)):
        built(cache).write_bytes(damaged)
        assert read_compiler(built(cache)) is None
        again, said = load(package, cache)
        assert again == first
        assert "compiling small.cpp" in said
        assert built(cache).read_bytes() == whole
    for damaged in (b"", b"[]", told[:-20], told.replace(b'"compiler": "', b'"compiler": "x')):
        note.write_bytes(damaged)
        assert load(package, cache)[0] == first
        assert note.read_bytes() == told


@pytest.mark.slow
def test_without_its_compiler_the_library_serves(package: Path, cache: Path) -> None:
    first, _ = load(package, cache)
    for gone in ("/nowhere/c++", "false"):
        again, said = load(package, cache, CXX=gone)
        assert again == first, "it is the same code, and says so"
        assert "using small.cpp as it was compiled before, by" in said
    built(cache).write_bytes(built(cache).read_bytes()[:-1])
    with pytest.raises(AssertionError, match="UnavailableError"):
        load(package, cache, CXX="/nowhere/c++")  # but not a damaged one


@pytest.mark.slow
def test_another_compiler_or_other_flags_are_another_library(package: Path, cache: Path, tmp_path: Path) -> None:
    first, _ = load(package, cache)
    other, _ = load(package, cache, CXX="c++ -O0")
    wrapper = tmp_path / "c++"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "c++ (Another) 99.1"; exit; }}\nexec {shutil.which("c++")} "$@"\n'
    )
    wrapper.chmod(0o755)
    newer, _ = load(package, cache, CXX=str(wrapper))
    assert len({first, other, newer}) == 3
    assert "(Another) 99.1" in newer
    assert len(list(cache.glob("*.so"))) == 3
    link = tmp_path / "elsewhere"
    link.symlink_to(str(shutil.which("c++")))
    assert load(package, cache, CXX=str(link))[0] == first, "its name and its place do not matter"
    assert len(list(cache.glob("*.so"))) == 3


def test_what_killed_compilations_left_is_removed_after_a_day(tmp_path: Path) -> None:
    for name in ("building-old", "building-new", "tmp12345678", "tmpforeign", "fxgraph"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ("made.so" if name != "tmpforeign" else "theirs")).write_bytes(b"x")
        if name != "building-new":
            os.utime(tmp_path / name, (LONG_AGO, LONG_AGO))
    remove_old_scratch(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"building-new", "tmpforeign", "fxgraph"}


def test_a_note_that_is_no_json_object_is_no_note(tmp_path: Path) -> None:
    path = tmp_path / "x-1-2.so"
    path.write_bytes(b"x")
    for text in ("[]", "3", '{"compiler": 1}', "[" * 100_000, json.dumps({"compiler": "x", "sha256": "x"})):
        path.with_suffix(".json").write_text(text)
        assert read_compiler(path) is None


def test_nothing_compiled_and_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiler, "COMPILERS", ())
    monkeypatch.setattr(cpp_extension, "INSTALLED", tmp_path)
    with pytest.raises(UnavailableError, match="there is no C"):
        load_library.__wrapped__("convnet", "float")


# What an installation brings

ONLY_X86 = pytest.mark.skipif(platform.machine().lower() not in compiler.X86, reason="the kinds are of x86-64")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source that compiles quickly, and the libraries of an installation."""
    source = tmp_path / "small.cpp"
    source.write_text(SOURCE)
    monkeypatch.setattr(cpp_extension, "INSTALLED", tmp_path / "built")
    build_for_installation(source, tmp_path / "built")
    return source


@ONLY_X86
def test_a_processor_gets_what_it_can_run() -> None:
    assert kinds_here(frozenset(KINDS["avx512"])) == ["avx512", "avx2"]
    assert kinds_here(frozenset({*KINDS["avx512"]} - {"avx512dq"})) == ["avx2"]
    assert kinds_here(frozenset({"avx2", "avx512f"})) == [], "not half of what is needed"
    assert kinds_here(frozenset()) == []
    assert all(name in KINDS["avx512"] for name in KINDS["avx2"])


@ONLY_X86
def test_the_best_one_is_loaded_and_none_on_an_older_processor(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for has, kind in ((KINDS["avx512"], "avx512"), (KINDS["avx2"], "avx2"), (("sse2",), "")):
        monkeypatch.setattr(cpp_extension, "processor_features", lambda has=has: frozenset(has))
        found = load_installed(small, "float")  # it has no such instruction, so that it loads everywhere
        assert (f"-{kind} by" in found.identity and found.answer() == 42) if found else not kind
    assert load_installed(small, "double") is None, "only what runs need"


def test_what_is_damaged_or_made_of_another_source_is_not_loaded(small: Path) -> None:
    if not kinds_here(processor_features()):
        pytest.skip("this processor is older than what an installation brings")
    assert load_installed(small, "float") is not None
    built = sorted((small.parent / "built").glob("*.so"))
    notes = [path.with_suffix(".json").read_bytes() for path in built]
    assert sorted(path.name for path in built[0].parent.iterdir()) == sorted(
        path.with_suffix(end).name for path in built for end in (".so", ".json")
    )
    small.write_text(SOURCE.replace("38", "39"))
    assert load_installed(small, "float") is None
    small.write_text(SOURCE)
    for text in (b"[]", b"{}", notes[0][:-9]):
        for path in built:
            path.with_suffix(".json").write_bytes(text)
        assert load_installed(small, "float") is None
    for path, note in zip(built, notes, strict=True):
        path.with_suffix(".json").write_bytes(note)
        whole = path.read_bytes()
        path.unlink()  # loaded code is not written over
        path.write_bytes(whole[:-1])
    assert load_installed(small, "float") is None


def test_what_is_there_is_not_built_again(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build_for_installation(small, small.parent / "built")
    times = [path.stat().st_mtime_ns for path in built]
    assert build_for_installation(small, small.parent / "built") == built
    assert [path.stat().st_mtime_ns for path in built] == times
    built[0].unlink()
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(UnavailableError, match="does not tell its version"):
        build_for_installation(small, small.parent / "built")
