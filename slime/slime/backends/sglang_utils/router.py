"""The address that serves a role: a single engine itself, or a router in front of several.

Guarantee: an impossible configuration fails at start with the flag to change. The router is ``sglang-router`` in a
process of its own with a lifeline (``python -m slime.backends.sglang_utils.router``). It logs to
``<run_dir>/logs/router-<role>.log``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from groundwork.exceptions import ConfigError
from groundwork.network import find_available_port, is_port_available
from groundwork.process import ChildProcess, spawn, watch_lifeline
from slime.args import Arguments
from slime.arguments.placement import Role
from slime.backends.sglang_utils.server import engine_environment
from slime.backends.sglang_utils.server_args import command_line
from slime.exceptions import EngineError

ROUTER_PACKAGE = "sglang_router"
# The router cannot read prompts given as ids, so requests name their conversation: a request with the header
# X-SMG-Routing-Key goes to the engine that had the key before, a new key to the one with the fewest requests.
_POLICIES: dict[Role, dict[str, object]] = {
    "policy": {"policy": "manual", "assignment_mode": "min_load"},
    "prm": {"policy": "cache_aware", "balance_abs_threshold": 10, "balance_rel_threshold": 1.2},
}
_START_TIMEOUT_SECONDS = 120.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Address:
    """Where a role is served, and its router process, if any."""

    host: str
    port: int
    router: ChildProcess | None = None


def check_router(choice: str, num_engines: int) -> bool:
    """Return whether a router is needed; raise :class:`ConfigError` if ``--router`` cannot work."""
    if choice == "direct" and num_engines > 1:
        raise ConfigError(
            f"--router direct needs a single engine, but there are {num_engines}; use --router sglang, or one engine: "
            "--rollout-num-gpus-per-engine equal to --rollout-num-gpus"
        )
    needed = choice == "sglang" or (choice == "auto" and num_engines > 1)
    if needed and importlib.util.find_spec(ROUTER_PACKAGE) is None:
        raise ConfigError(
            f"{num_engines} engines need a router, but the package sglang-router is not installed: "
            "pip install sglang-router, or use one engine"
        )
    return needed


def requested_port(args: Arguments, role: Role) -> int | None:
    """Return the port to serve the policy on: ``--sglang-router-port`` without an ip.

    Raises:
        ConfigError: something else listens there.
    """
    port = args.sglang_router_port
    if role != "policy" or not port or args.sglang_router_ip:
        return None
    if not is_port_available(port):
        raise ConfigError(
            f"--sglang-router-port {port}: the port is in use on this machine; give another one, or remove the flag for any free port"
        )
    return port


def serve_behind_one_address(args: Arguments, role: Role, urls: list[str]) -> Address:
    """Start a router if a role's engines need one, and return their address."""
    if not check_router(args.router, len(urls)):
        parts = urlsplit(urls[0])
        return Address(parts.hostname or "127.0.0.1", parts.port or 80)
    port = requested_port(args, role) or find_available_port()
    options: dict[str, object] = {
        "host": "127.0.0.1",
        "port": port,
        "worker_urls": urls,
        **_POLICIES[role],
        "prometheus_host": "127.0.0.1",
        "prometheus_port": find_available_port(),
        "request_timeout_secs": args.sglang_router_request_timeout_secs or 14400,
        "log_level": "warn",
    }
    command = [sys.executable, "-m", "slime.backends.sglang_utils.router", *command_line(options)]
    log_path = Path(args.run_dir) / "logs" / f"router-{role}.log"
    child = spawn(command, env=engine_environment(os.environ, cpu=False), log_path=log_path, name=f"router-{role}")
    _wait_until_all_serve(child, port, urls)
    return Address("127.0.0.1", port, child)


def workers_of(client: httpx.Client) -> dict[str, dict[str, Any]]:
    """Return what a router says of each engine in its list, by URL: ``id``, ``is_healthy`` and more.

    Args:
        client: has the router's URL as its base.

    Raises:
        httpx.HTTPError: the router does not answer, or not with 200.
    """
    answer = client.get("/workers").raise_for_status()
    return {worker["url"]: worker for worker in answer.json()["workers"]}


def _wait_until_all_serve(child: ChildProcess, port: int, urls: list[str]) -> None:
    """Return once the router sends requests to every engine; its own health answer wants only one."""
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    missing = urls
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=5.0, trust_env=False) as client:
        while time.monotonic() < deadline and child.alive():
            with contextlib.suppress(httpx.HTTPError):
                workers = workers_of(client)
                missing = [url for url in urls if not workers.get(url, {}).get("is_healthy")]
            if not missing:
                return
            time.sleep(_POLL_SECONDS)
    problem = f"did not find {', '.join(missing)}" if child.alive() else f"ended with status {child.returncode}"
    tail = child.log_tail()
    child.stop()
    raise EngineError(f"{child.name} {problem}. Log: {child.log_path}. Its last lines:\n{tail}")


def main() -> None:
    """Run the router with the arguments of the command line until it is told to stop.

    The router is a separate process in our group, because inside this one it would block the lifeline's thread.
    """
    watch_lifeline()
    sys.exit(subprocess.call([sys.executable, "-m", "sglang_router.launch_router", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
