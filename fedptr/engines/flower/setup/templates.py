"""The texts that `fedptr deploy init` writes: the Flower app, start scripts, systemd units, and a README."""

from __future__ import annotations

APP = """\
# The Flower app. Both halves are in the installed fedptr, so nothing is bundled or installed.
# torch is not listed here, because Flower would install another one.
[project]
name = "fedptr-app"
version = "1.0.0"
description = "One ClientApp and one ServerApp for every method of fedptr"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedptr"

[tool.flwr.app.components]
serverapp = "fedptr_app.server:app"
clientapp = "fedptr_app.client:app"

[tool.flwr.app.config]
folder = ""

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
"""
APP_FILES = {
    "pyproject.toml": APP,
    "fedptr_app/__init__.py": '"""See fedptr.engines.flower."""\n',
    "fedptr_app/server.py": "from fedptr.engines.flower import server_app\n\napp = server_app.app\n",
    "fedptr_app/client.py": "from fedptr.engines.flower import client_app\n\napp = client_app.app\n",
}

HEAD = """\
#!/bin/sh
# {words}
set -eu
cd "$(dirname "$0")"
here=$(pwd)
BIN=${{FEDPTR_BIN:-{bin}}}  # where Python, fedptr and Flower are
[ -x "$BIN/flower-superlink" ] || BIN=$(dirname "$(command -v flower-superlink)")
export PATH="$BIN:$PATH" FLWR_HOME="$here/flower"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export OMP_WAIT_POLICY=passive
umask 077
"""
LOUD = """\
echo "INSECURE: nothing is encrypted and anybody may take part. Only for a trial on one machine." >&2
"""
SUPERLINK = """\
exec "$BIN/python" -m fedptr.engines.flower.superlink \\
  --host {bind} --port {port} --database superlink.db --disable-runtime-dependency-installation \\
  {secure}
"""
SUPERLINK_TLS = "--ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key --enable-supernode-auth"
SUPERNODE = """\
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2
export FEDPTR_NODE_PID=$$  # the worker ends when this process does
exec "$BIN/python" -m fedptr.engines.flower.supernode --superlink {address} --host 127.0.0.1 --port {local} \\
  --node-config "folder=\\"$here\\"" \\
  {secure}
"""
SUPERNODE_TLS = "--root-certificates ca.crt --auth-supernode-private-key key"

UNIT = """\
# {words}
# Correct the paths; then:
#   useradd --system fedptr
#   chown -R fedptr {folder}
#   cp {name} /etc/systemd/system/ && systemctl enable --now {name}
[Unit]
Description={words}
Wants=network-online.target
After=network-online.target

[Service]
User=fedptr
WorkingDirectory={folder}
ExecStart={folder}/{script}
Restart=always
RestartSec=5
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ReadWritePaths={folder}
CacheDirectory=fedptr
Environment=FEDPTR_CACHE=%C/fedptr

[Install]
WantedBy=multi-user.target
"""

README = """\
# A federation of {count} nodes, made by `fedptr deploy init`

{security}

The server `{address}` must be reachable from the nodes (TCP port {port}); the nodes need no open port.

| on | copy there | then |
|---|---|---|
| the server | `server/` | `server/superlink.sh`, or as a service: `server/fedptr-superlink.service` |
{rows}

Everywhere: `pip install 'fedptr[flower]'`, the same version. Put each node's data where its `node.toml` says, and check
with `fedptr deploy check nodes/NAME` (on the server: `fedptr deploy check server`) what is still missing.

Register the nodes' keys once the SuperLink is running. Nodes may start before that: they try until they are let in.

```
fedptr deploy register server        # on the server
```

Then, on the server:

```
fedptr deploy run server             # starts the run in server/run, and shows its rounds
fedptr status server/run             # rounds, nodes, when they were last seen, accuracy
fedptr resume server/run             # after anything that stopped it
fedptr deploy add server NAME        # one more node, also during a run
```
"""
SECURE = """\
Everything is encrypted (TLS, with a certificate authority of your own, `server/ca.key`), and only nodes whose keys are
in `server/keys` are let in. A node's folder holds its private key: hand it over safely, and keep no copy on the
server. Nodes run the fedptr that is installed there and own models that their node.toml names; no program is sent."""
INSECURE = "**INSECURE: nothing is encrypted and anybody may take part. For a trial on one machine only.**"


def make_script_head(words: str, bin_: str, insecure: bool) -> str:
    return HEAD.format(words=words, bin=bin_) + (LOUD if insecure else "")
