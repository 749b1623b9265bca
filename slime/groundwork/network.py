"""Ports and addresses of this machine. Owns the reservations of the ports that this process gave away."""

from __future__ import annotations

import ipaddress
import random
import socket
from pathlib import Path
from urllib.parse import urlsplit

QUIET_PORT = 30001
"""First port to hand out. Ray's workers use 10002 to 19999. SGLang takes rendezvous ports from 22000 to 29999 itself,
without a look at reservations (log/sglang.md#sglang-rendezvous-port). 30000 is the gateway's."""
PORT_TRIES = 200
_claims: list[socket.socket] = []


def find_available_port(base_port: int = 0, host: str = "127.0.0.1") -> int:
    """Return a free port outside the kernel's ephemeral range, reserved for this process's lifetime.

    With ``base_port``, return the first free port from there on, without a reservation. A reserved port stays available
    to a program that starts to listen much later. The system picks the port if the ephemeral range leaves none or if
    there are no abstract Unix sockets.

    Raises:
        OSError: no port is free.
    """
    if base_port:
        for port in range(base_port, 1 << 16):
            if is_port_available(port, host):
                return port
        raise OSError(f"no port from {base_port} upwards is free on {host}")
    quiet = range(QUIET_PORT, _first_port_of_connections())
    for port in random.SystemRandom().sample(quiet, min(PORT_TRIES, len(quiet))):
        if is_port_available(port, host) and _claim(port):
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def _first_port_of_connections() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except FileNotFoundError:
        return 32768


def _claim(port: int) -> bool:
    """Reserve the port with an abstract Unix socket, which the kernel releases when the process exits."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0slime-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


def is_port_available(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether ``port`` can be bound on ``host``."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_http_url(text: str) -> bool:
    """Return whether ``text`` is an absolute HTTP or HTTPS address, as it can be sent: with a host, and a possible port.

    One with a name or password before its host is none: what shows or stores an address would show those, too.
    """
    try:
        parts = urlsplit(text)
        possible = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return possible and "@" not in parts.netloc and text.isascii() and text.isprintable() and " " not in text
