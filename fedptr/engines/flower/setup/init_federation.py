"""`fedptr deploy init`: makes a folder with all that a federation needs, to be copied to its machines.

README.md         the commands
server/           plan, rules, Flower app, certificates, public keys, start script, systemd unit
nodes/NAME/       for the machine of that node: who it is, its key, start script, systemd unit
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedptr.atomic_files import write_text
from fedptr.engines.flower.node import node_plan
from fedptr.engines.flower.server import deploy_plan
from fedptr.engines.flower.server.node_register import read_node_register
from fedptr.engines.flower.setup import certificates, templates
from fedptr.errors import UserError
from fedptr.methods import PTR, method_address
from fedptr.regular_files import expand_home
from fedptr.runs.plan import Plan, load_plan

REGISTER = "nodes.json"  # on the server: every node's name, number, key, and Flower's number for it
REMOVED = "removed"  # in place of Flower's number
LOCAL = 9100  # plus the node's number: the port over which its own processes talk, on its machine only
HERE = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Federation:
    host: str
    port: int
    insecure: bool
    days: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def check(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.:_-]{0,252}", self.host):
            raise UserError(f"--host {self.host!r} is no name or address of a machine")
        for name, value, most in (("port", self.port, 65535), ("days", self.days, 36500)):
            if not 1 <= value <= most:
                raise UserError(f"--{name} must be from 1 to {most}, not {value}")


def init_federation(
    folder: Path, plan: Plan, federation: Federation, nodes: Mapping[str, str], rules: Mapping[str, Any]
) -> None:
    """`nodes` maps names to data: a path, a named dataset, or nothing yet."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} already holds something; choose another folder, or `fedptr deploy add` a node")
    if not nodes:
        raise UserError("--nodes names no node; give at least one, e.g. --nodes anna,ben")
    for name in nodes:
        check_name(name)
    federation.check()
    try:
        write_federation(folder, plan, federation, nodes, rules)
    except BaseException:  # the corrected command must find it empty
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write_federation(
    folder: Path, plan: Plan, federation: Federation, nodes: Mapping[str, str], rules: Mapping[str, Any]
) -> None:
    server = folder / "server"
    (server / "keys").mkdir(parents=True)
    server.chmod(0o700)
    write_text(server / "plan.toml", plan.toml())
    link = {"address": federation.address, "nodes": "" if federation.insecure else REGISTER}
    write_text(server / deploy_plan.NAME, tomli_w.dumps({"deploy": dict(rules), "flower": link}))
    deploy_plan.read_deploy_plan(server)  # raises where a rule is wrong
    for name, text in templates.APP_FILES.items():
        (server / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(server / "app" / name, text)
    if not federation.insecure:
        certificates.make_authority(server, federation.days)
        certificates.make_server(server, list(dict.fromkeys([federation.host, *HERE])), federation.days)
    write_server_scripts(server, federation)
    write_text(server / REGISTER, "{}\n")
    for name, data in nodes.items():
        add_node(server, name, data, federation)
    write_text(folder / "README.md", make_readme(federation, list(nodes)))


def check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", name):
        raise UserError(f"{name!r} cannot be a node's name; use letters, digits, dots and dashes")


def write_server_scripts(server: Path, federation: Federation) -> None:
    words = "The Flower SuperLink: nodes connect to it, and it starts the run's server."
    secure = "--insecure" if federation.insecure else templates.SUPERLINK_TLS
    bind = "127.0.0.1" if federation.host in HERE else "0.0.0.0"
    body = templates.SUPERLINK.format(bind=bind, port=federation.port, secure=secure)
    write_script(server / "superlink.sh", words, body, federation.insecure)
    write_unit(server, "fedptr-superlink.service", words, server.resolve(), "superlink.sh")


def add_node(server: Path, name: str, data: str, federation: Federation) -> Path:
    """Adds a node: its folder, its key, and its line in the server's register."""
    check_name(name)
    known = read_register(server)
    if name in known:
        raise UserError(f"there is a node {name} already; choose another name")
    folder = server.parent / "nodes" / name
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    number = max((entry["number"] for entry in known.values()), default=-1) + 1
    path = expand_home(data)
    plan = load_plan(server)
    own = [name for name in (plan.model.name, method_address(type(plan.method)).removesuffix(PTR)) if ":" in name]
    tables: dict[str, Any] = {
        "node": {"name": name, "number": number, **({"models": ",".join(own)} if own else {})},
        "data": {"name": str(path.absolute()) if data and path.exists() else data or node_plan.DATA},
        "machine": {"device": "auto", "threads": 0},
    }
    write_text(folder / node_plan.NAME, tomli_w.dumps(tables))
    if not federation.insecure:
        (server / "keys" / f"{name}.pub").write_bytes(certificates.make_node(folder, name))
        shutil.copy(server / "ca.crt", folder / "ca.crt")
    words = f"The Flower SuperNode of {name}: trains on the data that node.toml names."
    secure = "--insecure" if federation.insecure else templates.SUPERNODE_TLS
    body = templates.SUPERNODE.format(address=federation.address, local=LOCAL + number, secure=secure)
    write_script(folder / "supernode.sh", words, body, federation.insecure)
    write_unit(folder, "fedptr-node.service", words, Path("/opt/fedptr") / name, "supernode.sh")
    known[name] = {"number": number, "node": None}
    write_text(server / REGISTER, json.dumps(known, indent=1) + "\n")
    return folder


def read_register(server: Path) -> dict[str, dict[str, Any]]:
    return read_node_register(server / REGISTER)


def list_nodes(server: Path) -> list[str]:
    """The names of the nodes that may take part: those whose keys were removed are left out."""
    return [name for name, entry in read_register(server).items() if entry["node"] != REMOVED]


def read_federation(server: Path) -> Federation:
    """What `init_federation` was given, from what it wrote."""
    host, _, port = deploy_plan.read_deploy_plan(server).flower.address.rpartition(":")
    return Federation(host, int(port), not (server / "ca.crt").exists(), 0)


def write_script(path: Path, words: str, body: str, insecure: bool) -> None:
    write_text(path, templates.make_script_head(words, str(Path(sys.executable).parent), insecure) + body)
    path.chmod(0o755)


def write_unit(folder: Path, name: str, words: str, place: Path, start: str) -> None:
    write_text(folder / name, templates.UNIT.format(words=words, name=name, folder=place, script=start))


def make_readme(federation: Federation, nodes: Sequence[str]) -> str:
    rows = "\n".join(f"| {name} | `nodes/{name}/` | `supernode.sh`, or `fedptr-node.service` |" for name in nodes)
    security = templates.INSECURE if federation.insecure else templates.SECURE
    return templates.README.format(
        count=len(nodes), security=security, address=federation.address, port=federation.port, rows=rows
    )
