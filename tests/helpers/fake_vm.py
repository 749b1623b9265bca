"""A stand-in for OSWorld's machines: the server inside one, and a program that starts, reverts and ends them.

A machine is a process with a folder as its disk and a small picture as its screen. It carries out commands of a task in its
folder, and notes what mouse and keyboard were told. ``broken`` in `FakeVms.settings` names routes that fail.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SIZE = (64, 48)
TREE = '<desktop-frame name="main"><application name="Files"><button name="Open">Open</button></application></desktop-frame>'


class FakeVms:
    """An installed program of `agentrl.tasks.gui.osworld.providers.CommandVm`, and what its machines did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.program = folder / "vms"
        self.program.write_text(
            f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m tests.helpers.fake_vm {folder} "$@"\n'
        )
        self.program.chmod(0o755)
        self.settings()

    def settings(self, **changes: Any) -> None:
        """Say what goes wrong: ``broken`` routes, ``refuses`` words of the program, and whether the screen is ``blank``."""
        said = {"broken": [], "refuses": [], "blank": False, **changes}
        (self.folder / "settings.json").write_text(json.dumps(said))

    def running(self) -> list[Path]:
        """Return the folders of the machines that run."""
        return [path.parent for path in self.folder.glob("*/pid") if _alive(int(path.read_text()))]

    def orders(self) -> list[dict[str, Any]]:
        """Return what mouse and keyboard of the newest machine were told."""
        newest = max(self.folder.glob("*/orders"), key=lambda path: path.stat().st_mtime_ns)
        return [json.loads(line) for line in newest.read_text().splitlines()]

    def calls(self, route: str) -> int:
        """Return how often a route of the machines was called."""
        return sum(path.read_text().split().count(route) for path in self.folder.glob("*/calls"))

    def kill(self) -> None:
        """Kill all machines."""
        for machine in self.running():
            os.kill(int((machine / "pid").read_text()), signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Server(BaseHTTPRequestHandler):
    """The server inside a machine."""

    disk: Path

    def do_GET(self) -> None:
        self._route({"/screenshot": self._screenshot, "/accessibility": self._tree, "/terminal": self._terminal})

    def do_POST(self) -> None:
        setup = {f"/setup/{name}": self._note for name in ("launch", "open_file", "activate_window", "close_window")}
        own = {
            "/execute": self._execute,
            "/file": self._file,
            "/screen_size": self._size,
            "/setup/upload": self._upload,
        }
        self._route(setup | own)

    def _route(self, routes: dict[str, Any]) -> None:
        self.body = self.rfile.read(int(self.headers.get("content-length") or 0))
        with open(self.disk / "calls", "a") as calls:
            calls.write(self.path + "\n")
        broken = json.loads((self.disk.parent / "settings.json").read_text())["broken"]
        if self.path not in routes or self.path in broken:
            self._answer(b"broken", 500 if self.path in broken else 404)
        else:
            routes[self.path]()

    def _answer(self, body: bytes | dict[str, Any], status: int = 200) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _screenshot(self) -> None:
        from PIL import Image

        blank = json.loads((self.disk.parent / "settings.json").read_text())["blank"]
        image = Image.new("RGB", SIZE, "white")
        if not blank:
            image.paste((200, 0, 0), (4, 4, 20, 12))
        data = io.BytesIO()
        image.save(data, "PNG")
        self._answer(data.getvalue())

    def _tree(self) -> None:
        self._answer({"AT": TREE})

    def _terminal(self) -> None:
        self._answer({"output": "user@vm:~$ ", "status": "success"})

    def _size(self) -> None:
        self._answer({"width": SIZE[0], "height": SIZE[1]})

    def _note(self) -> None:
        with open(self.disk / "notes", "ab") as file:
            file.write(self.path.encode() + b" " + self.body + b"\n")
        self._answer(b"ok")

    def _path(self, name: str) -> Path:
        return self.disk / name.lstrip("/").replace("/", "_")

    def _upload(self) -> None:
        name = re.search(rb'name="file_path"\r\n\r\n(.*?)\r\n', self.body, re.DOTALL)
        data = re.search(rb'name="file_data".*?\r\n\r\n(.*)\r\n--', self.body, re.DOTALL)
        assert name is not None
        assert data is not None
        self._path(name[1].decode()).write_bytes(data[1])
        self._answer(b"ok")

    def _file(self) -> None:
        from urllib.parse import parse_qs

        path = self._path(parse_qs(self.body.decode())["file_path"][0])
        self._answer(path.read_bytes() if path.exists() else b"none", 200 if path.exists() else 404)

    def _execute(self) -> None:
        said = json.loads(self.body)
        command, shell = said["command"], said["shell"]
        if isinstance(command, list) and "pyautogui" in " ".join(command):
            with open(self.disk / "orders", "a") as file:
                file.write(command[3] + "\n")
            self._answer({"status": "success", "output": "", "error": "", "returncode": 0})
            return
        ran = subprocess.run(command, shell=shell, cwd=self.disk, capture_output=True, text=True, timeout=30)
        self._answer({"status": "success", "output": ran.stdout, "error": ran.stderr, "returncode": ran.returncode})

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def serve(disk: Path) -> None:
    """Be a machine until killed."""
    Server.disk = disk
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    (disk / "port.new").write_text(str(server.server_address[1]))
    (disk / "port.new").rename(disk / "port")
    server.serve_forever()


def start(folder: Path, pool: str) -> None:
    """Start a machine that outlives this program, and print its name and URL."""
    name = f"{len(list(folder.glob('vm-*'))):03}"
    disk = folder / f"vm-{name}"
    disk.mkdir()
    command = [sys.executable, "-m", "tests.helpers.fake_vm", str(folder), "serve", disk.name]
    environment = {key: value for key, value in os.environ.items() if key != "AGENTRL_OWNER"}
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **quiet)  # type: ignore[call-overload]
    (disk / "pid").write_text(str(process.pid))
    (disk / "pool").write_text(pool)
    while not (disk / "port").exists():
        time.sleep(0.01)
    print(json.dumps({"id": disk.name, "url": f"http://127.0.0.1:{(disk / 'port').read_text()}"}))


def stop(folder: Path, name: str) -> None:
    """End a machine."""
    pid = int((folder / name / "pid").read_text())
    if _alive(pid):
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Do what the command line says."""
    folder, word, *rest = Path(sys.argv[1]), *sys.argv[2:]
    if word in json.loads((folder / "settings.json").read_text())["refuses"]:
        sys.exit(f"no {word} today")
    if word == "serve":
        serve(folder / rest[0])
    elif word == "start":
        start(folder, rest[0])
    elif word == "revert":
        stop(folder, rest[0])
        start(folder, (folder / rest[0] / "pool").read_text())
    elif word == "stop":
        stop(folder, rest[0])
    elif word == "sweep":
        mine = [path.parent for path in folder.glob("vm-*/pool") if path.read_text() == rest[0]]
        left = [disk for disk in mine if _alive(int((disk / "pid").read_text()))]
        for disk in left:
            stop(folder, disk.name)
        print(len(left))


if __name__ == "__main__":
    main()
