"""`fedptr deploy`: trains over several machines, with Flower."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedptr.cli.options import add_set_option, whole_number
from fedptr.cli.run import print_summary
from fedptr.errors import UserError
from fedptr.messages import install_command

if TYPE_CHECKING:
    from fedptr.cli.options import Commands


def add_parser(commands: Commands) -> None:
    deploy = commands.add_parser(
        "deploy", help="train over several machines, with Flower (pip install 'fedptr[flower]')"
    )
    parts = deploy.add_subparsers(dest="part", metavar="WHAT", required=True)
    add_init(parts)

    add = parts.add_parser("add", help="add a node, also while a run is in progress")
    add.add_argument("server", metavar="SERVER", help="the server's folder")
    add.add_argument("name", metavar="NAME", help="the node's name")
    add.add_argument("--data", default="", metavar="DATA", help="its data: a path or a named dataset")
    add.set_defaults(handler=add_command)

    for word, help_, handler in (
        ("remove", "take a node's key from it: it is not let in any more", remove_command),
        ("rotate", "make a new key for a node; the old one is not let in any more", rotate_command),
    ):
        part = parts.add_parser(word, help=help_)
        part.add_argument("server", metavar="SERVER", help="the server's folder; the SuperLink must be running")
        part.add_argument("name", metavar="NAME", help="the node's name")
        part.set_defaults(handler=handler)

    check = parts.add_parser("check", help="find problems before a run starts")
    check.add_argument("folder", metavar="DIR", help="of the server or of a node")
    check.set_defaults(handler=check_command)

    register = parts.add_parser("register", help="tell the running SuperLink the nodes' keys")
    register.add_argument("server", metavar="SERVER", help="the server's folder")
    register.set_defaults(handler=register_command)

    run = parts.add_parser("run", help="start the run on the server, and show its rounds")
    run.add_argument("server", metavar="SERVER", help="the server's folder; the SuperLink must be running")
    run.add_argument("--out", metavar="DIR", help="folder for the results (default SERVER/run)")
    run.add_argument("--force", action="store_true", help="replace an existing folder of results")
    run.set_defaults(handler=run_command)

    simulate = parts.add_parser("simulate", help="run the same app in Flower's simulation, on this machine")
    simulate.add_argument("plan", metavar="PLAN.toml", help="a plan; its clients become simulated nodes")
    simulate.add_argument("--out", metavar="DIR", required=True, help="folder for the results")
    simulate.add_argument("--force", action="store_true", help="replace an existing folder of results")
    simulate.set_defaults(handler=simulate_command)


def add_init(parts: Commands) -> None:
    words = "write a folder with all that server and nodes need"
    more = f"{words[0].upper()}{words[1:]}. (`fedptr init` writes a plan to start from.)"
    init = parts.add_parser("init", help=words, description=more, allow_abbrev=False)
    init.add_argument("dir", metavar="DIR", help="a new folder")
    init.add_argument("plan", nargs="?", metavar="PLAN.toml", help="settings to start from")
    init.add_argument(
        "--nodes", required=True, metavar="NAME,NAME,…", help="the nodes; NAME=DATA says where its data is"
    )
    init.add_argument("--host", default="localhost", metavar="HOST", help="the server, as nodes reach it")
    init.add_argument("--port", type=whole_number("--port", 65535), default=8000, metavar="PORT", help="its port")
    init.add_argument(
        "--days",
        type=whole_number("--days", 36500),
        default=365,
        metavar="N",
        help="how many days certificates are valid",
    )
    init.add_argument("--insecure", action="store_true", help="no encryption, no keys: for a trial on one machine only")
    add_set_option(init, "change any setting of the plan, or deploy.KEY of the rules")
    init.set_defaults(handler=init_command)


def require_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise UserError(f"this needs Flower; install it with: {install_command('flower')}")


def init_command(args: argparse.Namespace) -> int:
    require_flower()
    from fedptr.engines.flower.setup.init_federation import Federation, init_federation
    from fedptr.messages import print_notice
    from fedptr.runs import plan as planning

    pairs = args.assignments
    rules = planning.assign_settings({}, [pair for pair in pairs if pair[0].startswith("deploy.")]).get("deploy", {})
    tables: dict[str, Any] = planning.read_plan(args.plan) if args.plan else {}
    # By default, a lost node does not stop a run over a network.
    tables = {**tables, "run": {"on_failure": "drop", **tables.get("run", {})}}
    plan = planning.check_plan(
        planning.assign_settings(tables, [pair for pair in pairs if not pair[0].startswith("deploy.")])
    )
    parts = [part.strip().partition("=")[::2] for part in args.nodes.split(",") if part.strip()]
    nodes = dict(parts)
    if len(nodes) < len(parts):
        raise UserError("--nodes names a node twice; each needs a name of its own")
    rules = {"min_nodes": len(nodes), "min_replies": max(1, len(nodes) // 2), **rules}
    init_federation(Path(args.dir), plan, Federation(args.host, args.port, args.insecure, args.days), nodes, rules)
    if args.insecure:
        print_notice("INSECURE: nothing is encrypted and anybody may take part; for a trial on one machine only")
    print(f"ready: {args.dir}; what to do with it is in {Path(args.dir) / 'README.md'}")
    return 0


def add_command(args: argparse.Namespace) -> int:
    require_flower()
    from fedptr.engines.flower.setup.init_federation import add_node, read_federation
    from fedptr.engines.flower.setup.launch_run import register_keys, write_flower_config

    server = Path(args.server)
    federation = read_federation(server)
    folder = add_node(server, args.name, args.data, federation)
    if not federation.insecure:
        try:
            write_flower_config(server, server / "flower")
            register_keys(server)
            print("its key is registered")
        except UserError as error:
            print(f"its key will be registered with the next `fedptr deploy run` or `fedptr resume` ({error})")
    print(f"ready: {folder}; copy it to the node's machine and start supernode.sh there")
    return 0


def prepare_flower(args: argparse.Namespace) -> Path:
    """The server's folder, with which Flower's command line can be called now."""
    require_flower()
    from fedptr.engines.flower.setup.launch_run import write_flower_config

    server = Path(args.server)
    write_flower_config(server, server / "flower")
    return server


def remove_command(args: argparse.Namespace) -> int:
    server = prepare_flower(args)
    from fedptr.engines.flower.setup.launch_run import remove_node

    remove_node(server, args.name)
    print(f"the key of {args.name} is not let in any more; `fedptr deploy rotate {server} {args.name}` makes a new one")
    return 0


def rotate_command(args: argparse.Namespace) -> int:
    server = prepare_flower(args)
    from fedptr.engines.flower.setup.launch_run import rotate_key

    key = rotate_key(server, args.name)
    print(f"ready: {key} and key.pub; put them into the node's folder, start supernode.sh again, and delete this copy")
    return 0


def check_command(args: argparse.Namespace) -> int:
    require_flower()
    from fedptr.engines.flower.setup.check_folder import check_folder

    return check_folder(Path(args.folder))


def register_command(args: argparse.Namespace) -> int:
    server = prepare_flower(args)
    from fedptr.engines.flower.setup.init_federation import list_nodes
    from fedptr.engines.flower.setup.launch_run import register_keys

    register_keys(server)
    print(f"the SuperLink knows {', '.join(list_nodes(server))}")
    return 0


def run_command(args: argparse.Namespace) -> int:
    require_flower()
    from fedptr.engines.flower.setup import launch_run
    from fedptr.runs.folder import claim_folder

    server = Path(args.server)
    out = claim_folder(Path(args.out) if args.out else server / "run", args.force)
    launch_run.write_run_folder(server, out)
    return continue_deployed(out)


def continue_deployed(out: Path) -> int:
    """Submits a run to the SuperLink and shows its rounds; also resumes a stopped one."""
    require_flower()
    from fedptr.engines.flower.setup import launch_run
    from fedptr.runs.plan import load_plan
    from fedptr.runs.progress import show_progress
    from fedptr.runs.summary import read_finished

    plan = load_plan(out)
    launch_run.submit_run(out)
    with show_progress(plan.method.name, plan.run.rounds, plan.method.quick_rounds) as show:
        launch_run.follow_run(out, show)
    return print_summary(read_finished(out)[0], out)


def simulate_command(args: argparse.Namespace) -> int:
    require_flower()
    from fedptr.engines.flower.setup.simulate_run import simulate_run

    return print_summary(simulate_run(Path(args.plan), Path(args.out), args.force), Path(args.out))
