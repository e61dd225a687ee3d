"""For MkDocs: generates a page for each method from its code, so that the pages are always up to date.

Rule, cost, theory and settings come from the class, the numbered details from the module docstrings. In a page,
`<!-- methods -->` stands for the table of all methods and `<!-- settings -->` for the settings of a plan; MARKERS has
the other tables. `results/METHOD.md` and `results/choose.md` are inserted if they exist.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import fedptr
from fedptr.core.method import Method
from fedptr.methods import all_methods
from fedptr.methods.fedavg import FedAvg
from fedptr.reproduce.tables import markdown_table
from fedptr.runs.describe_settings import MEANINGS, SettingInfo, format_toml, list_settings

ROOT = Path(__file__).parent.parent
# Of the API page: headings by the module or package that a name comes from, and what is shown of some classes.
HEADINGS = {"core.client_states": "Saved states", "core": "Training", "data": "Data", "runs": "Saved states"}
MEMBERS = {"StateStore": "close", "CheckpointStore": "save, rounds, load"}
NOT_YET = """!!! note "Not filled in yet"
    This section shows measured results from `results/{name}`; that file does not exist yet.
"""


def on_config(config: MkDocsConfig) -> None:
    """Adds the methods to the navigation."""
    for entry in config.nav or []:
        if "Methods" in entry:
            entry["Methods"] = [{name: f"methods/{name}.md"} for name in all_methods()]


def on_files(files: Files, config: MkDocsConfig) -> None:
    for name, method in all_methods().items():
        files.append(File.generated(config, f"methods/{name}.md", content=method_page(method)))
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "benchmarks.md", content=results))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    markdown = markdown.replace("../benchmarks/RESULTS.md", "benchmarks.md")
    not_on_the_site = r"\[([^]]+)\]\(\.\./((?:fedptr|results|examples)/[^)]+)\)"
    markdown = re.sub(not_on_the_site, r"\1 (`\2`)", markdown)
    for marker, make in MARKERS.items():
        markdown = markdown.replace(f"<!-- {marker} -->", make())
    return re.sub(r"<!-- results/(\S+) -->", lambda found: results_markdown(found[1]), markdown)


def method_page(method: type[Method]) -> str:
    """The page of a method: its rule, cost, details, settings, results and code."""
    source, cost = f"{method.__module__.replace('.', '/')}.py", method.cost_in_words()
    parts = [
        f"# {method.name}",
        f"{make_sentence(method.idea)}",
        f"```text\n{format_rule(method)}\n```",
        "| " + " | ".join(cost) + " |",
        "|" + "---|" * len(cost),
        "| " + " | ".join(cost.values()) + " |",
        "\nDown and up: sent per client and round. Keeps: between rounds. All in model sizes.\n",
        f"**Local optimiser:** {method.optimisers_in_words()}",
        f"**Cite:** {method.cite}",
        format_oracle(method),
        "## How it is done here",
        *(docstring_markdown(module) for module in find_modules(method)),
        "Each deviation from a paper is one of these details or one of these settings.",
        "## Settings",
        f"`fedptr run --method {method.name} --set method.NAME=VALUE`, or `[method]` in a plan.\n",
        settings_table([info for info in list_settings("method", method.name) if info.key != "name"]),
        "## Results",
        f"<!-- results/{method.name}.md -->",
        "## All of its code",
        f'??? abstract "{source}"\n\n    ```python\n{textwrap.indent(inspect.getsource(method), "    ")}    ```',
    ]
    return "\n".join(part if part.startswith("|") else f"\n{part}\n" for part in parts)


def make_sentence(text: str) -> str:
    """`idea` as a sentence, without the formula at its end, which the page shows separately."""
    words, _, rest = text.partition(": ")
    words = words if re.search("[−(]", rest) else text
    return words[0].upper() + words[1:] + "."


def format_rule(method: type[Method]) -> str:
    """The formulas of a round, as the method declares them."""
    return "\n".join(method.rule.in_words()) if method.rule else "see its code"


def format_oracle(method: type[Method]) -> str:
    """What theory says about its limit on quadratics, with a line for each of its rows in the oracle's table."""
    lines = [f"- {row.row}: {row.because}." for row in method.oracle]
    return "\n".join(["On quadratics with a known optimum ([the oracle](../oracle.md)):", "", *lines]) if lines else ""


def find_modules(method: type[Method]) -> list[Any]:
    """The modules of the method and of its base classes, without FedAvg."""
    found = [inspect.getmodule(cls) for cls in method.__mro__ if cls is method or cls not in (FedAvg, Method, object)]
    if any("trajectory" in str(module) for module in found):
        from fedptr.methods.ptr import by_gradient, by_trajectory, matching

        found += [matching, by_trajectory, by_gradient]
    return list(dict.fromkeys(found))


def docstring_markdown(module: Any) -> str:
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


def settings_table(found: list[SettingInfo]) -> str:
    """A row for each setting."""
    lines = ["| setting | default | meaning | example |", "|---|---|---|---|"]
    for info in found:
        value, example = (f"`{format_toml(value)}`" for value in (info.default, info.example))
        takes = "" if info.takes == "text" else f"<br>*takes {info.takes}*"
        lines.append(f"| `{info.key}` | {value} | {info.meaning}{takes} | {example} |")
    return "\n".join(lines)


def all_settings() -> str:
    """The sections of a plan; the settings of a method are on its page."""
    parts = []
    for section, meaning in MEANINGS.items():
        found = list_settings(section)
        if section == "method":
            found = [info for info in found if info.key == "name"]
        parts += [f"## [{section}] {{ #{section} }}", f"{meaning[0].upper()}{meaning[1:]}.", settings_table(found)]
    links = ", ".join(f"[{name}](methods/{name}.md#settings)" for name in all_methods())
    return "\n\n".join([*parts, f"The other settings in `[method]` are the method's own: {links}."])


def costs_table() -> str:
    """The cost that each method declares."""
    keys = list(FedAvg.cost_in_words())
    lines = [f"| method | {' | '.join(keys)} |", "|---" * (1 + len(keys)) + "|"]
    for name, method in all_methods().items():
        lines.append(f"| [{name}](methods/{name}.md) | {' | '.join(method.cost_in_words()[key] for key in keys)} |")
    return "\n".join(lines)


def group_by_family() -> dict[str, list[type[Method]]]:
    """The methods of each family."""
    found: dict[str, list[type[Method]]] = {}
    for method in all_methods().values():
        found.setdefault(method.family, []).append(method)
    return found


def methods_table() -> str:
    """A row for each method, grouped by family."""
    head = ["method", "local direction", "server's step", "sent down / up", "client keeps", "server keeps"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for family, members in group_by_family().items():
        lines.append(f"| **{family}** |" + " |" * (len(head) - 1))
        for method in members:
            also = f" ({', '.join(method.aliases)})" if method.aliases else ""
            link = f"[{method.name}](methods/{method.name}.md){also}"
            cost = method.cost_in_words()
            kept = ("–" if cost[key] == "0" else cost[key] for key in ("client keeps", "server keeps"))
            row = [link, *describe_steps(method), f"{cost['down']} / {cost['up']}", *kept]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def describe_steps(method: type[Method]) -> tuple[str, str]:
    """The local step, with its start and symbols, and the server's step."""
    if not method.rule:
        return "see its code", "see its code"
    rule = method.rule
    start = f"from {rule.start}" if rule.start != "x" else ""
    return ", ".join(part for part in (rule.local, start, rule.where) if part), rule.server


def ideas_table() -> str:
    """A row for each method, with the step in which it differs from FedAvg."""
    lines = ["| method | idea | local direction, or the server's step |", "|---|---|---|"]
    for name, method in all_methods().items():
        local, server = describe_steps(method)
        shown = server if local == FedAvg.rule.local else local
        lines.append(f"| [{name}](methods/{name}.md) | {make_sentence(method.idea)} | {shown} |")
    return "\n".join(lines)


def public_names() -> str:
    """Everything that `from fedptr import …` offers, by package, for mkdocstrings to fill in from the docstrings."""
    groups: dict[str, list[str]] = {heading: [] for heading in ("Training", "Data", "Models", "Saved states")}
    for name, module in fedptr._HOME.items():
        heading = HEADINGS.get(module) or HEADINGS.get(module.partition(".")[0], "Models")
        shown = f"\n    options:\n      members: [{MEMBERS[name]}]" if name in MEMBERS else ""
        groups[heading].append(f"::: fedptr.{name}{shown}")
    return "\n\n".join(f"## {heading}\n\n" + "\n\n".join(names) for heading, names in groups.items() if names)


def method_classes() -> str:
    """The methods' classes, each with a link to its page."""
    lines = ["| class | method | idea |", "|---|---|---|"]
    for name, method in all_methods().items():
        lines.append(f"| `methods.{method.__name__}` | [{name}](methods/{name}.md) | {make_sentence(method.idea)} |")
    return "\n".join(lines)


def results_markdown(name: str) -> str:
    """The text about the results of a method (or of all), and its numbers from results/."""
    path = ROOT / "results" / name
    words = path.read_text(encoding="utf-8") if path.exists() else ""
    numbers = comparison_tables() if name == "choose.md" else method_results(name.removesuffix(".md"))
    return "\n\n".join(part for part in (words, numbers) if part) or NOT_YET.format(name=name)


def read_tables() -> list[dict[str, Any]]:
    """The results of `fedptr reproduce` that are kept in results/cpu, by recipe."""
    found = sorted((ROOT / "results" / "cpu").glob("*/reproduce.json"), key=lambda path: path.parent.name)
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]


def method_results(name: str) -> str:
    """The cells of a method in all tables."""
    lines = [
        f"| {data['title'].partition(':')[0]}, {cell['row']} | "
        f"{format_accuracy(cell)} | {format_paper_number(cell)} | {format_gap(cell, data)} |"
        for data in read_tables()
        for cell in data["cells"]
        if cell["column"] == name and "mean" in cell
    ]
    head = ["| `cpu` scale | accuracy % | paper | gap (paper's), verdict |", "|---|---:|---:|---|"]
    more = "\n`results/README.md` in the repository says how they were made, and discusses them."
    return "\n".join([*head, *lines, more]) if lines else ""


def comparison_tables() -> str:
    """The accuracies of Table 1, with a row for each condition, and of all global methods, with a row for each."""
    found = {data["recipe"]: data for data in read_tables()}
    return "\n\n".join(accuracy_table(found[name]) for name in ("table1", "global-methods") if name in found)


def accuracy_table(data: dict[str, Any]) -> str:
    """A recipe's title and accuracies; rows without results are left out."""
    columns = list(dict.fromkeys(cell["column"] for cell in data["cells"]))
    lines = []
    for row in dict.fromkeys(cell["row"] for cell in data["cells"]):
        cells = {cell["column"]: cell for cell in data["cells"] if cell["row"] == row and "mean" in cell}
        if cells:
            lines.append([row, *(format_accuracy(cells[column]) if column in cells else "–" for column in columns)])
    return "\n".join([f"{data['title']}:", "", *markdown_table(["", *columns], lines, len(columns))])


def format_accuracy(cell: dict[str, Any]) -> str:
    """Mean ± interval, with the number of finished seeds if some are missing."""
    n = len(cell["accuracies"])
    few = f" [{n}]" if n < len(cell["folders"]) else ""
    return f"{cell['mean']:.1f}" + ("" if cell["ci95"] is None else f" ± {cell['ci95']:.1f}") + few


def format_paper_number(cell: dict[str, Any]) -> str:
    return "–" if cell["paper"] is None else f"{cell['paper']:.1f}"


def format_gap(cell: dict[str, Any], data: dict[str, Any]) -> str:
    if cell["column"] == data["reference"] or cell["gap"] is None:
        return "–"
    several = "" if cell["gap_ci95"] is None else f" ± {cell['gap_ci95']:.1f}"
    paper = f" ({cell['paper_gap']:+z.1f}), {cell['verdict']}" if cell["paper_gap"] is not None else ""
    return f"{cell['gap']:+z.1f}{several}{paper}"


MARKERS = {
    "api": public_names,
    "costs": costs_table,
    "ideas": ideas_table,
    "method-classes": method_classes,
    "methods": methods_table,
    "settings": all_settings,
}
