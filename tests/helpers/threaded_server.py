"""An HTTP server in a thread, for tests whose other side is not asynchronous."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer

POLL_SECONDS = 0.01


class Server(ThreadingHTTPServer):
    """Many may connect at a time; a client whose connection is not taken tries again only after a second."""

    request_queue_size = 128

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"


@contextmanager
def running_server(server: BaseServer) -> Iterator[None]:
    """Serve until the block ends, and close the server."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": POLL_SECONDS})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on a free port of this machine until the block ends; gives the URL."""
    server = Server(handler)
    with running_server(server):
        yield server.url
