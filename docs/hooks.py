"""For MkDocs: a page per method, made from its code, so that it cannot be out of date.

Rule, cost, theory and settings come from the class, the numbered details from the module docstrings. A page says
`<!-- methods -->` where it wants the table of all methods. `results/METHOD.md` and
`results/choose.md` are put in where they exist.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fedptr.core.method import Method
from fedptr.methods import all_methods
from fedptr.methods.fedavg import FedAvg
from fedptr.reproduce.tables import bars
from fedptr.settings import describe_type

ROOT = Path(__file__).parent.parent
OPTIONAL = {"report.md": "The report"}
NOT_YET = """!!! note "Not filled in yet"
    This place is for measured results. It is filled from `results/{name}` when that file is there; until then
    nothing is claimed here.
"""


def on_config(config: MkDocsConfig) -> None:
    """Puts the methods, and pages that may be there, into the navigation."""
    for entry in config.nav or []:
        if "Methods" in entry:
            entry["Methods"] = [{name: f"methods/{name}.md"} for name in all_methods()]
        if "In depth" in entry:
            entry["In depth"] += [{title: name} for name, title in OPTIONAL.items() if (ROOT / "docs" / name).exists()]


def on_files(files: Files, config: MkDocsConfig) -> None:
    for name, method in all_methods().items():
        files.append(File.generated(config, f"methods/{name}.md", content=page(method)))
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "benchmarks.md", content=results))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    markdown = markdown.replace("../benchmarks/RESULTS.md", "benchmarks.md")
    markdown = re.sub(r"\[([^]]+)\]\(\.\./((?:fedptr|results)/[^)]+)\)", r"\1 (`\2`)", markdown)  # not on the site
    for marker, make in MARKERS.items():
        markdown = markdown.replace(f"<!-- {marker} -->", make())
    return re.sub(r"<!-- results/(\S+) -->", lambda found: results(found[1]), markdown)


def page(method: type[Method]) -> str:
    """A method: its rule, cost, details, settings, and all of its code."""
    source, cost = f"{method.__module__.replace('.', '/')}.py", method.cost.in_words()
    parts = [
        f"# {method.name}",
        f"{sentence(method.idea)}",
        f"```text\n{in_formulas(method)}\n```",
        "| " + " | ".join(cost) + " |",
        "|" + "---|" * len(cost),
        "| " + " | ".join(cost.values()) + " |",
        "\nDown and up: sent per client and round. Keeps: between rounds. All in model sizes.\n",
        f"**Cite:** {method.cite}",
        theory(method),
        "## How it is done here",
        *(prose(module) for module in modules(method)),
        "Each deviation from a paper is one of these details or one of these settings.",
        "## Settings",
        f"`fedptr run --method {method.name} --set method.NAME=VALUE`, or `[method]` in a plan.\n",
        settings(method),
        "## Results",
        f"<!-- results/{method.name}.md -->",
        "## All of its code",
        f'??? abstract "{source}"\n\n    ```python\n{textwrap.indent(inspect.getsource(method), "    ")}    ```',
    ]
    return "\n".join(part if part.startswith("|") else f"\n{part}\n" for part in parts)


def sentence(text: str) -> str:
    """`idea` as a sentence, without the formula at its end, which is shown apart."""
    words, _, rest = text.partition(": ")
    words = words if re.search("[−(]", rest) else text
    return words[0].upper() + words[1:] + "."


def in_formulas(method: type[Method]) -> str:
    """A round of the method, as it declares it."""
    return "\n".join(method.rule.in_words()) if method.rule else "see its code"


def theory(method: type[Method]) -> str:
    """Where theory sees it end on quadratics, a line for each of its rows in the oracle's table."""
    lines = [f"- {row.row}: {row.because}." for row in method.oracle]
    return "\n".join(["On quadratics with a known optimum ([the oracle](../oracle.md)):", "", *lines]) if lines else ""


def modules(method: type[Method]) -> list[Any]:
    """The method's module, and those of its parts other than FedAvg."""
    found = [inspect.getmodule(cls) for cls in method.__mro__ if cls is method or cls not in (FedAvg, Method, object)]
    if any("trajectory" in str(module) for module in found):
        import fedptr.methods.ptr.matching

        found.append(fedptr.methods.ptr.matching)
    return list(dict.fromkeys(found))


def prose(module: Any) -> str:
    """A module's docstring as Markdown: its symbol tables are code blocks, its numbered details a list."""
    blocks, own = [], module.__name__.startswith("fedptr.methods.")
    for block in re.split(r"\n\s*\n", inspect.getdoc(module) or ""):
        if re.match(r" {4}", block):
            blocks.append(f"```text\n{textwrap.dedent(block)}\n```")
        elif not block.startswith(">>>"):
            blocks.append(
                re.sub(r"^(.*:)\n(?=1\. )", r"\1\n\n", re.sub(r"^   (?=\S)", "    ", block, flags=re.MULTILINE))
            )
    return ("" if own else f"### {module.__name__}\n\n") + "\n\n".join(blocks)


def settings(method: type[Method]) -> str:
    hints = typing.get_type_hints(method)
    lines = ["| setting | default | meaning | takes |", "|---|---|---|---|"]
    for f in fields(method):
        takes = describe_type(hints[f.name], f.metadata["bounds"])
        lines.append(f"| `{f.name}` | `{json.dumps(f.default)}` | {f.metadata['doc']} | {takes} |")
    return "\n".join(lines)


def costs() -> str:
    """What each method costs, as it says itself."""
    keys = list(FedAvg.cost.in_words())
    lines = [f"| method | {' | '.join(keys)} |", "|---" * (1 + len(keys)) + "|"]
    for name, method in all_methods().items():
        lines.append(f"| [{name}](methods/{name}.md) | {' | '.join(method.cost.in_words()[key] for key in keys)} |")
    return "\n".join(lines)


def families() -> dict[str, list[type[Method]]]:
    """The methods of each family."""
    found: dict[str, list[type[Method]]] = {}
    for method in all_methods().values():
        found.setdefault(method.family, []).append(method)
    return found


def table_of_methods() -> str:
    """A row a method, the families one after another."""
    head = ["method", "local direction", "server's step", "sent down / up", "client keeps", "server keeps"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for family, members in families().items():
        lines.append(f"| **{family}** |" + " |" * (len(head) - 1))
        for method in members:
            also = f" ({', '.join(method.aliases)})" if method.aliases else ""
            link = f"[{method.name}](methods/{method.name}.md){also}"
            cost = method.cost.in_words()
            kept = ("–" if cost[key] == "0" else cost[key] for key in ("client keeps", "server keeps"))
            row = [link, *directions(method), f"{cost['down']} / {cost['up']}", *kept]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def directions(method: type[Method]) -> tuple[str, str]:
    """A local step, with where it starts and what its symbols are, and the server's step."""
    if not method.rule:
        return "see its code", "see its code"
    rule = method.rule
    start = f"from {rule.start}" if rule.start != "x" else ""
    return ", ".join(part for part in (rule.local, start, rule.where) if part), rule.server


def ideas() -> str:
    """Each method in a line, with what it does differently from FedAvg."""
    lines = ["| method | idea | local direction, or the server's step |", "|---|---|---|"]
    for name, method in all_methods().items():
        local, server = directions(method)
        shown = server if local == FedAvg.rule.local else local
        lines.append(f"| [{name}](methods/{name}.md) | {sentence(method.idea)} | {shown} |")
    return "\n".join(lines)


def results(name: str) -> str:
    """What somebody wrote about the results of a method (or all), and its numbers as they are in results/."""
    path = ROOT / "results" / name
    words = path.read_text(encoding="utf-8") if path.exists() else ""
    numbers = compared() if name == "choose.md" else measured(name.removesuffix(".md"))
    return "\n\n".join(part for part in (words, numbers) if part) or NOT_YET.format(name=name)


def tables() -> list[dict[str, Any]]:
    """What `fedptr reproduce` found at the scale whose results are kept here, Table 1 first."""
    found = sorted((ROOT / "results" / "cpu").glob("*/reproduce.json"), key=lambda path: path.parent.name)
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]


def measured(name: str) -> str:
    """A method's cells in all tables."""
    lines = [
        f"| {data['title'].partition(':')[0]}, {cell['row']} | {number(cell)} | {theirs(cell)} | {gap(cell, data)} |"
        for data in tables()
        for cell in data["cells"]
        if cell["column"] == name and "mean" in cell
    ]
    head = ["| `cpu` scale | accuracy % | paper | gap (paper's), verdict |", "|---|---:|---:|---|"]
    more = "\nHow they were made, and what we think of them: `results/README.md` in the repository."
    return "\n".join([*head, *lines, more]) if lines else ""


def compared() -> str:
    """The accuracies of Table 1, a row for each condition, and of all global methods, a row for each."""
    found = {data["recipe"]: data for data in tables()}
    return "\n\n".join(grid(found[name]) for name in ("table1", "global-methods") if name in found)


def grid(data: dict[str, Any]) -> str:
    """A recipe's accuracies, with its name; rows of which there is nothing are left out."""
    columns = list(dict.fromkeys(cell["column"] for cell in data["cells"]))
    lines = []
    for row in dict.fromkeys(cell["row"] for cell in data["cells"]):
        cells = {cell["column"]: cell for cell in data["cells"] if cell["row"] == row and "mean" in cell}
        if cells:
            lines.append([row, *(number(cells[column]) if column in cells else "–" for column in columns)])
    return "\n".join([f"{data['title']}:", "", *bars(["", *columns], lines, len(columns))])


def number(cell: dict[str, Any]) -> str:
    """Of how many seeds it is stands beside it where that is not as many as for the others."""
    n = len(cell["accuracies"])
    few = f" [{n}]" if n < len(cell["folders"]) else ""
    return f"{cell['mean']:.1f}" + ("" if cell["ci95"] is None else f" ± {cell['ci95']:.1f}") + few


def theirs(cell: dict[str, Any]) -> str:
    return "–" if cell["paper"] is None else f"{cell['paper']:.1f}"


def gap(cell: dict[str, Any], data: dict[str, Any]) -> str:
    if cell["column"] == data["reference"] or cell["gap"] is None:
        return "–"
    several = "" if cell["gap_ci95"] is None else f" ± {cell['gap_ci95']:.1f}"
    paper = f" ({cell['paper_gap']:+z.1f}), {cell['verdict']}" if cell["paper_gap"] is not None else ""
    return f"{cell['gap']:+z.1f}{several}{paper}"


MARKERS = {"costs": costs, "ideas": ideas, "methods": table_of_methods}
