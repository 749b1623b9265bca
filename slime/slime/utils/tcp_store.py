"""Torch's rendezvous store, which takes no key: whoever reaches it reads and writes it.

Guarantees: a store that this process hosts listens on the address that it is given, alone. By itself torch listens on
all interfaces, whatever the address.
"""

from __future__ import annotations

import errno
import functools
import importlib
import logging
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from groundwork.network import is_loopback

logger = logging.getLogger(__name__)

_BACKLOG = 2048
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
TIMEOUT = timedelta(minutes=5)


def hosted_store(
    address: str, port: int = 0, *, world_size: int | None = None, timeout: timedelta = TIMEOUT, **options: Any
) -> TCPStore:
    """Return a store that this process hosts at ``address`` (a name or an IP address), without waiting for others.

    Args:
        address: of this machine. One that is translated on the way here is not an interface's: then the store listens on all.
        port: 0 for a free one, see the store's ``port``.
        world_size: number of users, None if it is not fixed.
        timeout: of the store's operations.
        options: further arguments of torch's store.

    Raises:
        OSError: the port is taken, or the name is unknown.
    """
    with _listener(address, port) as listener:
        return TCPStore(
            address,
            listener.getsockname()[1],
            world_size,
            True,
            timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            **options,
        )


def _listener(address: str, port: int) -> socket.socket:
    family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(where)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            logger.warning("%s is not an address of this machine; the rendezvous listens on all interfaces", address)
            listener.bind(("", port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def meet_on_loopback(address: str) -> None:
    """Let gloo listen on loopback too if the rendezvous at ``address`` is there, unless the user names an interface."""
    if is_loopback(address):
        os.environ.setdefault(GLOO_INTERFACE, "lo")


def host_rendezvous_at_their_address() -> None:
    """Make this process's ``tcp://`` and ``env://`` rendezvous host their store as `hosted_store` does.

    Raises:
        AttributeError: this torch uses other names, so that a change is noticed.
    """
    module: Any = importlib.import_module("torch.distributed.rendezvous")  # the package has a function of that name
    module.TCPStore = _as_hosted(module.TCPStore)


def _as_hosted(original: Callable[..., TCPStore]) -> Callable[..., TCPStore]:
    @functools.wraps(original, updated=())
    def store(
        *, host_name: str, port: int, is_master: bool, timeout: timedelta, world_size: int, **options: Any
    ) -> Any:
        meet_on_loopback(host_name)
        if not is_master:
            return original(host_name, port, world_size, False, timeout, **options)
        return hosted_store(host_name, port, world_size=world_size, timeout=timeout, **options)

    return store
