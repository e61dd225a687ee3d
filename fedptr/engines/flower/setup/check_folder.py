"""`fedptr deploy check`: finds what is wrong with a server's or a node's folder before it fails."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fedptr.engines.flower.node import node_plan
from fedptr.engines.flower.server import deploy_plan
from fedptr.engines.flower.setup import certificates as keys
from fedptr.engines.flower.setup.init_federation import list_nodes, read_federation
from fedptr.errors import UserError
from fedptr.messages import install_command
from fedptr.models.networks import ModelPlan, build_model
from fedptr.runs.experiment import load_data
from fedptr.runs.plan import load_plan

TESTED = ((1, 41), (1, 43))  # from the first on, before the second
SOON = 30  # days
Finding = tuple[bool, str]  # whether it is right, and what was found


def check_folder(folder: Path) -> int:
    """Prints every finding; 0 if all is right, 2 if not."""
    if (folder / deploy_plan.NAME).exists():
        findings = check_server(folder)
    elif (folder / node_plan.NAME).exists():
        findings = check_node(folder)
    else:
        raise UserError(f"{folder} is neither a server's nor a node's folder; make them with `fedptr deploy init`")
    wrong = 0
    for well, words in findings:
        print(f"{'ok   ' if well else 'WRONG'} {words}")
        wrong += not well
    return 2 if wrong else 0


def check_server(folder: Path) -> Iterator[Finding]:
    yield check_flower()
    yield from try_to_get("the plan", lambda: f"{load_plan(folder).method.name}, {load_plan(folder).run.rounds} rounds")
    try:
        rules, federation, known = deploy_plan.read_deploy_plan(folder), read_federation(folder), list_nodes(folder)
    except UserError as error:
        yield False, str(error)
        return
    least = rules.deploy.min_nodes
    yield least <= len(known), f"deploy.min_nodes is {least}, and {len(known)} nodes are known"
    yield from try_to_get("evaluation", lambda: deploy_plan.check_evaluation(load_plan(folder), rules.deploy))
    if rules.deploy.evaluate == "server":
        yield from try_to_get(
            "the server's test data", lambda: f"{len(load_data(load_plan(folder).data).test_y)} samples"
        )
    if federation.insecure:
        yield False, "INSECURE: nothing is encrypted and anybody may take part; for a trial on one machine only"
    else:
        yield from check_certificates(folder, federation.host)
        for name in known:
            path = folder / "keys" / f"{name}.pub"
            yield from try_to_get(f"public key of node {name}", partial(check_file, keys.load_public_key, path))
    yield from check_connection("127.0.0.1", federation.port, None if federation.insecure else folder / "ca.crt")


def check_node(folder: Path) -> Iterator[Finding]:
    yield check_flower()

    def data() -> str:
        dataset, rows, _, test_rows = node_plan.load_own_data(node_plan.read_node_plan(folder))
        count = len(dataset.train_y) if rows is None else len(rows)
        tests = len(dataset.test_y) if test_rows is None else len(test_rows)
        size = "×".join(map(str, dataset.shape))
        classes = f"{len(dataset.classes)} classes: {', '.join(dataset.classes[:20])}"
        if dataset.target == "number":
            classes = f"labels are numbers of {dataset.label_mean:.3g}±{dataset.label_std:.3g}"
        return f"{count} samples of {size}, {tests} for tests, {classes}"

    yield from try_to_get("the node's data", data)
    yield from check_own_models(folder)
    start = (folder / "supernode.sh").read_text(encoding="utf-8") if (folder / "supernode.sh").exists() else ""
    words = start.split()
    if "--superlink" not in words:
        yield False, "supernode.sh is missing or names no --superlink; make it with `fedptr deploy init`"
        return
    host, _, port = words[words.index("--superlink") + 1].rpartition(":")
    insecure = "--insecure" in words
    if insecure:
        yield False, "INSECURE: nothing is encrypted and anybody may take part; for a trial on one machine only"
    else:
        yield from check_private_key(folder / "key")
        yield from try_to_get(
            "the federation's certificate", partial(check_file, keys.load_certificate, folder / "ca.crt")
        )
    yield from check_connection(host, int(port), None if insecure else folder / "ca.crt")


def check_own_models(folder: Path) -> Iterator[Finding]:
    """Whether the models that node.toml names can be built for the node's own data."""
    with contextlib.suppress(UserError):  # reported before
        plan = node_plan.read_node_plan(folder)
        dataset = node_plan.load_own_data(plan).dataset
        for name in plan.node.allowed_names():

            def made(name: str = name) -> str:
                with contextlib.chdir(folder):  # where the node's worker is
                    model = build_model(ModelPlan(name), dataset.shape, dataset.outputs)
                return f"{sum(p.numel() for p in model.parameters()):,} parameters"

            yield from try_to_get(f"the model {name}", made)


def check_flower() -> Finding:
    try:
        version = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        return False, f"Flower is not installed; install it with: {install_command('flower')}"
    found = tuple(int(part) for part in version.split(".")[:2])
    return TESTED[0] <= found < TESTED[1], f"Flower {version}; fedptr was tested with 1.41 and allows 1.42"


def try_to_get(what: str, get: Callable[[], str]) -> Iterator[Finding]:
    try:
        yield True, f"{what}: {get()}"
    except UserError as error:
        yield False, f"{what}: {error}"


def check_file(load: Callable[[Path], object], path: Path) -> str:
    """The file's name; UserError where it does not hold what it should."""
    load(path)
    return path.name


def check_private_key(path: Path) -> Iterator[Finding]:
    if not path.is_file():
        yield False, f"{path.name} is missing; it was made by `fedptr deploy init`"
        return
    yield from try_to_get("private key", partial(check_file, keys.load_public_half, path))
    mode = path.stat().st_mode & 0o777
    words = (
        f"{path.name} may be read by its owner alone" if not mode & 0o77 else f"others may read it: chmod 600 {path}"
    )
    yield not mode & 0o77, words


def check_certificates(folder: Path, host: str) -> Iterator[Finding]:
    for name in ("ca.key", "server.key"):
        yield from check_private_key(folder / name)
    certificate, authority = folder / "server.crt", folder / "ca.crt"
    try:
        yield keys.is_signed_by(certificate, authority), "server.crt is signed by ca.crt"
        hosts, end = keys.read_hosts(certificate)
        for name in ("ca", "server"):
            own = keys.encode_public_key(keys.load_certificate(folder / f"{name}.crt").public_key())
            yield keys.load_public_half(folder / f"{name}.key") == own, f"{name}.key belongs to {name}.crt"
    except UserError as error:
        yield False, str(error)
        return
    yield host in hosts, f"server.crt is for {', '.join(hosts)}, and nodes go to {host}"
    left = (end - datetime.datetime.now(datetime.UTC)).days
    yield left > SOON, f"server.crt is good for {left} more days"


def check_connection(host: str, port: int, authority: Path | None) -> Iterator[Finding]:
    """Whether the SuperLink answers, with a certificate that we trust."""
    where = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), timeout=5) as stream:
            if authority is None:
                yield True, f"{where} answers"
                return
            context = ssl.create_default_context(cafile=str(authority))
            with context.wrap_socket(stream, server_hostname=host):
                yield True, f"{where} answers, with a certificate that ca.crt vouches for"
    except ssl.SSLCertVerificationError as error:
        yield False, f"{where} has a certificate that is not to be trusted ({error.verify_message})"
    except ssl.SSLError as error:
        yield False, f"{where} does not speak TLS ({error.reason})"
    except FileNotFoundError:
        yield False, f"{authority} is missing"
    except OSError as error:
        yield False, f"{where} does not answer ({error.strerror or error}); is superlink.sh running, the port open?"
