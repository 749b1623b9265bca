"""A clean root: Debian from its packages, with nothing of this machine but its way to the package indexes.

`debootstrap` makes the root and bubblewrap runs programs in it, as they would run in a container with ``network_mode: host``:
own processes, own ``/dev``, ``/dev/shm`` of 64 MiB, which is Docker's default, ``/sys`` to read, and no variable of this machine.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

NEEDS = ("debootstrap", "bwrap")
SHM_BYTES = 64 << 20
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
Mounts = Sequence[tuple[Path, str, bool]]
"""Each: a folder of this machine, its place, and whether it is writable."""


@dataclass
class Root:
    """A root, and what its image says about programs in it."""

    path: Path
    user: str = "root"
    folder: str = "/"
    variables: dict[str, str] = field(default_factory=dict)

    def inside(self, path: str) -> Path:
        """Return where a path of the root, relative to its working folder, is on this machine."""
        return self.path / (Path(self.folder) / path).relative_to("/")

    def _group(self) -> str:
        """Return the number of the user's group."""
        users = dict(line.split(":", 1) for line in (self.path / "etc" / "passwd").read_text().splitlines())
        return users[self.user].split(":")[2]

    def start(
        self, words: Sequence[str], mounts: Mounts = (), variables: Mapping[str, str] | None = None, **more: object
    ) -> subprocess.Popen[str]:
        """Start a program; ``more`` goes to `subprocess.Popen`."""
        home = "/root" if self.user == "root" else f"/home/{self.user}"
        given = {"PATH": PATH, "HOME": home, **self.variables, **(variables or {})}
        command = [
            "bwrap",
            "--bind",
            str(self.path),
            "/",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--ro-bind",
            "/sys",
            "/sys",
        ]
        command += [
            "--size",
            str(SHM_BYTES),
            "--tmpfs",
            "/dev/shm",
            "--ro-bind",
            "/etc/resolv.conf",
            "/etc/resolv.conf",
        ]
        for folder in local_indexes():
            command += ["--ro-bind", str(folder), str(folder)]
        for source, place, writable in mounts:
            command += ["--bind" if writable else "--ro-bind", str(source), place]
        command += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--clearenv"]
        for name, value in given.items():
            command += ["--setenv", name, value]
        command += ["--chdir", self.folder, "--", "setpriv", "--reuid", self.user, "--regid", self._group()]
        return subprocess.Popen([*command, "--init-groups", *words], text=True, **more)  # type: ignore[call-overload]

    def run(
        self,
        words: Sequence[str],
        mounts: Mounts = (),
        variables: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> str:
        """Run a program to its end and return what it prints; ``log`` gets that, too.

        Raises:
            CalledProcessError: it failed.
        """
        process = self.start(words, mounts, variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = process.communicate()
        if log is not None:
            with log.open("a") as file:
                file.write(f"$ {words[-1]}\n{said}")
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, list(words), said)
        return said

    def copied(self, path: Path) -> Root:
        """Return a copy at a path, which is replaced."""
        removed(path)
        subprocess.run(["cp", "--archive", "--reflink=auto", str(self.path), str(path)], check=True)
        return Root(path)


def removed(path: Path) -> None:
    """Remove a folder if it is there."""
    if path.exists():
        shutil.rmtree(path)


def missing() -> list[str]:
    """Return the programs that this machine lacks to make a root."""
    return [name for name in NEEDS if shutil.which(name) is None]


def debian(release: str, work: Path) -> Root:
    """Return a minimal Debian of a release; one that is in ``work`` already is taken."""
    root = Root(work / f"debian-{release}")
    if not root.path.exists():
        new = work / f"debian-{release}.new"
        removed(new)
        command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", release, str(new)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"debootstrap failed:\n{done.stdout[-2000:]}{done.stderr}")
        new.rename(root.path)
    return root


def pip_settings() -> dict[str, str]:
    """Return this machine's settings of pip by name; a variable goes before a file, as pip does it."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        settings.setdefault(name.rpartition(".")[2], str(ast.literal_eval(value)))
    return settings


def local_indexes() -> list[Path]:
    """Return the folders of this machine in which pip looks for packages."""
    found = []
    for value in pip_settings().values():
        for scheme, name in re.findall(r"(?:^|(?<=\s))(file://)?(/\S+)", value):
            folder = Path(name).parent if scheme else Path(name)  # an index of files links to its neighbours
            if folder.is_dir():
                found.append(folder)
    return found


def let_pip_find_packages(root: Root) -> None:
    """Give a root this machine's indexes of packages, and the certificates to reach them."""
    settings = pip_settings()
    if certificates := settings.get("cert"):
        shutil.copy(certificates, root.path / "etc" / "pip.pem")
        settings["cert"] = "/etc/pip.pem"
    text = "".join(f"{name} = {value}\n" for name, value in settings.items())
    (root.path / "etc" / "pip.conf").write_text(f"[global]\n{text}")
    for folder in local_indexes():
        (root.path / folder.relative_to("/")).mkdir(parents=True, exist_ok=True)


def stop(process: subprocess.Popen[str], seconds: float) -> float:
    """Send the program that `Root.start` started a SIGTERM, as Docker does, and return how long it took to end.

    Raises:
        TimeoutExpired: after ``seconds``; it is killed then.
    """
    began = time.monotonic()
    started = [each for each in psutil.Process(process.pid).children(recursive=True) if each.name() != "bwrap"]
    started[0].terminate()
    try:
        process.wait(seconds)
    finally:
        process.kill()
    return time.monotonic() - began
