"""The command line of the chat."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from groundwork.command_line import CommandLine, server_url
from groundwork.exceptions import ConfigError
from openclaw.chat.screen import Screen
from openclaw.chat.server import ChatError, Server
from openclaw.chat.talk import Talk
from openclaw.chat.watch import Watch
from openclaw.config.runtime_variables import client_key
from openclaw.runtime.where import DEFAULT_URL

PROG = "openclaw-rl chat"
FAILED_EXIT = 1
CONFIG_EXIT = 2
INTERRUPTED_EXIT = 130


def build_parser() -> CommandLine:
    """Return the command line."""
    parser = CommandLine(
        prog=PROG,
        description="Talk to a running server. It learns from what you say about its replies. SGLANG_API_KEY has the key, "
        "if the server needs one.",
        epilog="/help in the chat lists its commands. Without a terminal, every line of the input is a message, and the "
        "exit status is 1 if one got no reply.",
    )
    parser.add_argument(
        "--base-url",
        type=server_url,
        default=DEFAULT_URL,
        metavar="URL",
        help=f"of the server (default: {DEFAULT_URL})",
    )
    parser.add_argument("--model", metavar="NAME", help="model to ask for (default: the one that the server lists)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Chat; return the exit status."""
    options = build_parser().parse_args(argv)
    try:
        return chat(options.base_url, options.model)
    except (ChatError, ConfigError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return CONFIG_EXIT
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED_EXIT


def chat(base_url: str, model: str | None) -> int:
    """Talk with the server at ``base_url`` until the user quits; return the exit status.

    Raises:
        ChatError: if it does not answer.
        ConfigError: if the key's variable is invalid.
    """
    server = Server(base_url, client_key())
    try:
        served = server.model()
        screen = Screen()
        watch = Watch(server, screen.announce)
        screen.note(f"{model or served} at {server.url}; /help lists the commands")
        talk = Talk(server, model or served, screen, watch)
        try:
            talk.run()
        finally:
            watch.close()
        screen.show_news()
    finally:
        server.close()
    return FAILED_EXIT if talk.failures and not screen.interactive else 0
