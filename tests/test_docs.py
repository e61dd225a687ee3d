"""The documentation: it builds without a warning, loads nothing from a network, and its code does what it says."""

from __future__ import annotations

import html
import importlib
import itertools
import json
import pkgutil
import re
import subprocess
import sys
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import browser  # noqa: F401
from documented_commands import check_commands
from small_world import World
from wait_until import PATIENCE, until

import fedptr
from fedptr.core.federation import Rounds
from fedptr.methods import FedAvg, all_methods
from fedptr.runs.describe_settings import MEANINGS, format_toml, list_settings

pytestmark = pytest.mark.xdist_group("docs")  # so that the site is built once
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
RECIPES = ROOT / "fedptr" / "reproduce" / "recipes"


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


# The built site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("material", "mkdocstrings"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'fedptr[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return folder


class Loads(HTMLParser):
    """What a page loads by itself; links that are only followed do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        passive = tag == "a" or (tag == "link" and given.get("rel") in ("canonical", "next", "prev"))
        if not passive:
            self.found += [given[name] for name in ("src", "href", "data", "poster") if name in given]


def test_examples_are_put_in(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "own.html").read_text(encoding="utf-8"))
    for name in ("own_cli_model.py", "own_model_and_data.py"):
        assert (ROOT / "examples" / name).read_text(encoding="utf-8").splitlines()[-1].split("(")[0].strip() in text
    assert not [page for page in site.rglob("*.html") if re.search(r"--8\s*(&lt;|<)", page.read_text(encoding="utf-8"))]


def test_nothing_is_loaded_from_a_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert len(loads.found) > 3
        assert not [place for place in loads.found if re.match(r"(https?:)?//", place)], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


PATH = ("index", "train", "report", "predict", "own", "add-method", "deploy")


def test_its_pages_are_a_path(site: Path) -> None:
    """Start, train, inspect, load and predict, own data, own method, deploy: each page's next one is on its foot."""
    for page, following in itertools.pairwise(PATH):
        text = (site / f"{page}.html").read_text(encoding="utf-8")
        assert re.search(rf'<link rel="next" href="{following}.html">', text), page


def test_links_lead_to_files(site: Path) -> None:
    """Opened from the disk there is no server that would add `.html` or index.html."""
    for page in site.rglob("*.html"):
        links = re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8"))
        inside = [html.unescape(link) for link in links if not re.match(r"[a-z]+:", link) and page.name != "404.html"]
        assert not [link for link in inside if not (page.parent / link).is_file()], page


def test_the_api_page_has_every_public_name(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in fedptr._HOME:
        assert f'id="fedptr.{name}"' in text, name
    words = html.unescape(re.sub(r"<[^>]+>", "", text))
    assert all(field.metadata["doc"] in words for field in fields(Rounds)), "settings have their meaning"
    assert "setting(" not in words
    assert "&gt;&gt;&gt;" not in re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL), "examples are code"


@pytest.mark.real
def test_search_works_from_the_disk(site: Path, browser: Any) -> None:  # noqa: F811
    for page in ("index.html", "methods/fedptr.html"):
        browser.get((site / page).as_uri())
        box = browser.find_element("css selector", "input.md-search__input")
        until(box.is_displayed, "the search box is shown")
        box.click()
        box.send_keys("SCAFFOLD stalls")
        hits = "return [...document.querySelectorAll('.md-search-result__item a')].map((link) => link.href)"
        found = until(lambda hits=hits: browser.execute_script(hits), "search finds something")  # type: ignore[misc]
        assert [link for link in found if link.startswith((site / "choose.html").as_uri())], found
        assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def sections(site: Path, name: str) -> dict[str, str]:
    """A method's page by its headings, of which the last shows the code, which says everything a second time."""
    text = (site / "methods" / f"{name}.html").read_text(encoding="utf-8")
    text = text[text.index("<h1") :]  # without the navigation
    title, *rest = re.split(r'<h2 id="([\w-]+)">', text)
    found = dict(zip(["title", *rest[::2]], [title, *rest[1::2]], strict=True))
    assert list(found) == ["title", "how-it-is-done-here", "settings", "results", "all-of-its-code"]
    return found


@pytest.mark.parametrize("name", all_methods())
def test_every_method_has_a_page_from_its_code(site: Path, name: str) -> None:
    page, method = sections(site, name), all_methods()[name]
    assert f"<strong>Cite:</strong> {html.escape(method.cite, quote=False)}" in page["title"]
    assert method.rule is None or all(
        html.escape(line, quote=False) in page["title"] for line in method.rule.in_words()
    )
    assert ("w ← w̃, the projected model" in page["title"]) == name.startswith("fedptr")
    assert all(f"<code>{setting.name}</code>" in page["settings"] for setting in fields(method))
    assert f'href="methods/{name}.html"' in (site / "index.html").read_text(encoding="utf-8")
    if name in ("scaffold", "fedptr"):
        assert page["how-it-is-done-here"].count("<li>") >= 4, "the numbered details are a list"


def test_the_settings_page_has_every_key_of_a_plan(site: Path) -> None:
    text = (site / "settings.html").read_text(encoding="utf-8")
    _, *parts = re.split(r'<h2 id="(\w+)">\[', text)
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    assert list(found) == list(MEANINGS)
    for section, part in found.items():
        for info in list_settings(section) if section != "method" else []:
            row = f"<td><code>{info.key}</code></td>\n<td><code>{html.escape(format_toml(info.default), quote=False)}"
            assert row in part, info.place
    assert all(f'href="methods/{name}.html#settings"' in found["method"] for name in all_methods())


def test_what_was_not_measured_is_marked(site: Path) -> None:
    for name in all_methods():
        text = sections(site, name)["results"]
        cells = [cell for path in (ROOT / "results" / "cpu").glob("*/reproduce.json") for cell in cells_of(path, name)]
        known = bool(cells) or (ROOT / "results" / f"{name}.md").exists()
        assert known != ("Not filled in yet" in text), name
        assert all(f"{cell['mean']:.1f}" in text for cell in cells), name


def cells_of(path: Path, column: str) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["column"] == column and "mean" in cell]


# What its pages name


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_what_a_page_names_is_there(page: str) -> None:
    """Settings of methods, recipes, and files in results/."""
    text = re.sub(r"<!--.*?-->", "", (DOCS / page).read_text(encoding="utf-8"))
    known = {f.name for method in all_methods().values() for f in fields(method)} | {"NAME"}
    if page != "add-method.md":  # which makes a method of its own
        assert set(re.findall(r"(?<![-/])\bmethod\.([A-Za-z_]+)", re.sub(r"\$ .*\n.*", "", text))) <= known
    named = re.findall(r"\brecipe `([\w-]+)`", text) + re.findall(r"fedptr reproduce ([a-z][\w-]*)", text)
    assert not [name for name in named if not (RECIPES / f"{name}.toml").exists()]
    assert not [path for path in re.findall(r"\bresults/[\w./-]*\w", text) if not (ROOT / path).exists()]


TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_files_and_modules_that_a_text_names_exist(path: Path) -> None:
    """Links out of the site, paths in backticks, and dotted names of the package down to a function or a class."""
    text = path.read_text(encoding="utf-8").replace("`fedptr/methods/fedfade.py`", "")  # which the page tells to write
    linked = re.findall(r"\]\((\.\./[^)#]+)" if path.parent == DOCS else r"\]\(([^)#:]+)[)#]", text)
    named = re.findall(r"`((?:fedptr|tests|benchmarks|examples)/[\w./-]+)`", text)
    assert not [link for link in linked if not (path.parent / link).exists()]
    assert not [name for name in named if not (ROOT / name).exists()]
    for dotted in re.findall(r"`(fedptr(?:\.\w+)+)(?<!\.toml)\b", text):
        pkgutil.resolve_name(dotted)


# The code on its pages


def test_a_method_in_fifteen_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's file, put where methods are: it is listed and described, and with μ = 0 it is FedAvg, bit for bit."""
    code, _ = blocks("add-method.md")
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    (tmp_path / "fedfade.py").write_text(code, encoding="utf-8")
    script = f"""
from fedptr import methods
methods.__path__.append({str(tmp_path)!r})
from fedptr.cli.main import main
assert main(["methods", "fedfade"]) == 0
assert main(["run", "--method", "fedfade", "--set", "method.fade=2"]) == 2
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert "factor on it per round" in done.stdout
    assert done.stderr == "fedptr: method.fade must be at most 1, not 2\n"
    monkeypatch.syspath_prepend(str(tmp_path))
    world, fade = World(), importlib.import_module("fedfade").FedFade
    ends = [world.weights(method)[-1] for method in (FedAvg(), fade(mu=0.0), fade(mu=1.0), fade(mu=1.0, fade=0.5))]
    assert torch.equal(ends[0], ends[1])
    assert not any(torch.equal(ends[0], end) for end in ends[2:])
    assert not torch.equal(ends[2], ends[3])


def test_the_page_runs_as_a_script(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text("import torch\ntorch.set_num_threads(1)\n" + "\n".join(blocks("add-method.md")))
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    accuracy = [float(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(accuracy) == 20
    assert accuracy[-1] > 0.8


COMMANDS = ("index", "train", "report", "predict", "own", "choose", "gpu", "ray", "audit")


@pytest.mark.parametrize("page", COMMANDS)
def test_its_commands_are_understood(page: str) -> None:
    assert check_commands((DOCS / f"{page}.md").read_text(encoding="utf-8"))
