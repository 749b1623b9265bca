"""Options that the commands of pool and router share.

Guarantee: a server that other machines can reach has a key, which only comes from the environment.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Mapping

from agentrl.web.app import MAX_BODY_BYTES
from groundwork.command_line import CommandLine, port_number
from groundwork.exceptions import ConfigError
from groundwork.network import is_loopback

KEY_VARIABLE = "AGENTRL_KEY"


def above_zero(text: str) -> float:
    """Parse a number above 0.

    Raises:
        argparse.ArgumentTypeError: the text is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def count(text: str) -> int:
    """Parse a whole number from 1.

    Raises:
        argparse.ArgumentTypeError: the text is none.
    """
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def add_server_options(parser: CommandLine, port: int) -> None:
    """Add the address and the bound on bodies."""
    add = parser.add_argument
    add(
        "--host", default="127.0.0.1", help=f"address to listen on; any but loopback needs {KEY_VARIABLE} (%(default)s)"
    )
    add("--port", type=port_number, default=port, help="port to listen on; 0 takes a free one (%(default)s)")
    add(
        "--max-body-bytes",
        type=count,
        default=MAX_BODY_BYTES,
        metavar="N",
        help="largest request, in bytes (%(default)s)",
    )


def read_key(host: str, environment: Mapping[str, str]) -> str | None:
    """Return the key of a server on ``host``.

    Raises:
        ConfigError: other machines reach the server, and there is no key.
    """
    key = environment.get(KEY_VARIABLE) or None
    if key is None and not is_loopback(host):
        raise ConfigError(f"--host {host} needs a key; set {KEY_VARIABLE}, or use --host 127.0.0.1")
    return key


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, whose connections send small answers without delay.

    Raises:
        ConfigError: the address cannot be used.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
        # asyncio sets this itself only for sockets that state their protocol; without it an answer takes 40 ms more.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error.strerror}; use another, or --port 0") from error
