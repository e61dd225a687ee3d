"""Whose process is at the other end of a connection from this machine.

Linux lists every TCP connection with the account that owns it, in /proc/net/tcp and tcp6. On other systems nobody can
tell.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED = "01"  # a connection that was closed is listed as root's


def find_peer_user(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The user id of the process that connected from `client` to `server`; None if there is none in the table."""
    wanted = [(encode_address(*client), encode_address(*server))]
    wanted += [(encode_address(*client, mapped=True), encode_address(*server, mapped=True))]
    for table in TABLES:
        for line in table.read_text().splitlines()[1:]:
            _, local, remote, state, _, _, _, user, _, inode = line.split()[:10]
            if (local, remote) in wanted and state == ESTABLISHED and inode != "0":
                return int(user)
    return None


def encode_address(host: str, port: int, mapped: bool = False) -> str:
    """As in the table.

    >>> encode_address("127.0.0.1", 8000), encode_address("::1", 80)
    ('0100007F:1F40', '00000000000000000000000001000000:0050')
    """
    address = ipaddress.ip_address(host)
    packed = address.packed
    if mapped and len(packed) == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    words = [packed[k : k + 4][::-1] for k in range(0, len(packed), 4)]  # of four bytes, in the machine's order
    return f"{b''.join(words).hex().upper()}:{port:04X}"


def is_own_user(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Whether it is this process's user, or root, who may do anything anyway. Everybody's where nobody can tell."""
    if not TABLES[0].exists():
        return True
    return find_peer_user(client, server) in (os.getuid(), 0)
