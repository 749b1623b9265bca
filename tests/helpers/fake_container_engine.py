"""A stand-in for the command lines of docker and podman: knows the words that `agentrl.sandbox.container` uses, refuses others.

A test makes a `FakeEngine`, which installs itself as an executable; that runs this file as a program. A container is a
supervisor as a plain process of this machine that is not a child of the command line, as with a daemon. It sees the mounts as
the real one would only for `CODE_INSIDE` and for doors, whose ports are those of this machine. `FakeEngine.change` says what goes wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

ROOT = Path(__file__).resolve().parents[2]
LOCAL_SUPERVISOR = ROOT / "tests/helpers/local_supervisor.py"
CODE_INSIDE = "/run/agentrl/agentrl/sandbox/inside"
POLL_SECONDS = 0.01
NO_DAEMON = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
DEFAULTS: dict[str, Any] = {
    "images": ["img:1"],
    "runtimes": {"runc": {}, "runsc": {}},
    "dead": False,
    "run_fails": "",
    "run_waits": False,
    "rm_busy": 0,
    "keeps_stdin": False,
    "list_fails": False,
}


class FakeEngine:
    """An installed stand-in, and what it was asked for."""

    def __init__(self, folder: Path, name: str = "docker") -> None:
        self.name = name
        self.folder = folder
        self.containers = folder / "containers"
        self.containers.mkdir(parents=True)
        (folder / "bin").mkdir()
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -B "{__file__}" "{folder}" {name} "$@"\n')
        program.chmod(0o755)
        (folder / "calls").touch()
        self.change()
        self.environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": "/", "AGENTRL_KEY": "secret"}

    def change(self, **settings: Any) -> None:
        """Set what goes wrong from now on; whatever is not named is in order."""
        new = self.folder / "settings.new"
        new.write_text(json.dumps({**DEFAULTS, **settings}))
        new.rename(self.folder / "settings")

    def calls(self, command: str | None = None) -> list[list[str]]:
        """Return the words of each call, of one command or of all, in order."""
        lines = (self.folder / "calls").read_text().splitlines()
        found: list[list[str]] = [json.loads(line)["argv"] for line in lines]
        return [each for each in found if command in (None, each[0])]

    def environments(self) -> list[dict[str, str]]:
        """Return the variables of each call."""
        return [json.loads(line)["env"] for line in (self.folder / "calls").read_text().splitlines()]

    def alive(self) -> list[str]:
        """Return the names of the containers that exist."""
        return [each.name for each in self.containers.iterdir()]

    def vanish(self, name: str) -> None:
        """End a container as if the machine had."""
        end(self.containers / name)


def main() -> int:
    folder, name, *argv = Path(sys.argv[1]), *sys.argv[2:]
    with (folder / "calls").open("a") as calls:
        calls.write(json.dumps({"argv": argv, "env": dict(os.environ)}) + "\n")
    settings = json.loads((folder / "settings").read_text())
    if settings["dead"]:
        print(NO_DAEMON, file=sys.stderr)
        return 125 if argv[0] == "run" else 1
    if argv[0] == "run":
        return run(folder, settings, argv[1:])
    if argv[0] == "rm":
        return remove(folder, name, settings, argv[1:])
    if argv[:2] == ["ps", "--all"]:
        return list_containers(folder, settings, argv[2:])
    if argv[:2] == ["image", "inspect"] and argv[2:4] == ["--format", "{{.Id}}"]:
        found = argv[4] in settings["images"]
        print("sha256:0" if found else f"Error: No such image: {argv[4]}", file=sys.stdout if found else sys.stderr)
        return 0 if found else 1
    known = {
        ("docker", "version", "--format", "{{.Server.Version}}"): "28.2.2",
        ("podman", "info", "--format", "{{.Host.Os}}"): "linux",
        ("docker", "info", "--format", "{{json .Runtimes}}"): json.dumps(settings["runtimes"]),
    }
    if (said := known.get((name, *argv))) is None:
        print(f"unknown command: {argv}", file=sys.stderr)
        return 1
    print(said)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the options that `run` may have."""
    options = argparse.ArgumentParser(prog="run", allow_abbrev=False)
    for flag in ("--rm", "--interactive", "--read-only", "--no-healthcheck"):
        options.add_argument(flag, action="store_true", required=True)
    for flag in ("--label", "--ulimit", "--tmpfs", "--mount"):
        options.add_argument(flag, action="append", required=True)
    single = ("name", "pull", "log-driver", "network", "cap-drop", "security-opt", "user", "memory", "memory-swap")
    for flag in (*single, "cpus", "pids-limit", "shm-size", "workdir", "hostname", "entrypoint"):
        options.add_argument(f"--{flag}", required=True)
    options.add_argument("--runtime")
    options.add_argument("image")
    options.add_argument("words", nargs=argparse.REMAINDER)
    return options


def run(folder: Path, settings: dict[str, Any], argv: list[str]) -> int:
    """Start a container and stay until it ends, as ``run --interactive`` does."""
    at = argv.index("--")
    options = parser().parse_args([*argv[:at], *argv[at:]])
    assert options.pull == "never"
    if options.image not in settings["images"]:
        print(f"docker: Error response from daemon: No such image: {options.image}", file=sys.stderr)
        return 125
    if settings["run_fails"]:
        print(settings["run_fails"], file=sys.stderr)
        return 125
    home = folder / "containers" / options.name
    home.mkdir()
    (home / "label").write_text(options.label[0])
    while settings["run_waits"]:
        time.sleep(POLL_SECONDS)
        settings = json.loads((folder / "settings").read_text())
    code = next(each for each in options.mount if each.endswith(f"target={CODE_INSIDE},readonly"))
    packages = Path(code.split(",")[1].removeprefix("source=")).parents[2]
    words = options.words
    assert options.entrypoint == "python3"
    assert words[:4] == ["-I", "-S", "-B", "-c"]
    assert "agentrl.sandbox.inside.supervisor" in words[4]
    process = subprocess.Popen(
        [sys.executable, "-S", "-B", str(LOCAL_SUPERVISOR), str(home), with_doors(words[5], options.mount)],
        env={"PYTHONPATH": str(packages), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    (home / "pid").write_text(str(process.pid))
    if settings["keeps_stdin"]:
        keep_open(process.stdin, home)
    threading.Thread(target=copy, args=(sys.stdin.buffer, process.stdin), daemon=True).start()
    copy(process.stdout, sys.stdout.buffer)
    code = process.wait()
    end(home)
    return 137 if code < 0 else code


def with_doors(told: str, mounts: list[str]) -> str:
    """Return the supervisor's settings with the sockets of doors where this machine has them."""
    settings = json.loads(told)
    fields: list[dict[str, str]] = [
        {name: value for name, _, value in (each.partition("=") for each in mount.split(","))} for mount in mounts
    ]
    hosts = {each["target"]: each["source"] for each in fields}
    for path in hosts.values():
        if Path(path).is_socket():
            assert os.stat(path).st_mode & 0o002, f"a container's user may not connect to {path}"
    settings["doors"] = {port: hosts[path] for port, path in settings["doors"].items()}
    return json.dumps(settings)


def keep_open(pipe: BinaryIO, home: Path) -> None:
    """Hold a container's stdin open in a process of its own, so that it outlives the command line."""
    holder = subprocess.Popen(
        ["sleep", "600"],
        stdin=subprocess.DEVNULL,
        stdout=pipe.fileno(),
        stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin"},
        start_new_session=True,
    )
    (home / "holder").write_text(str(holder.pid))


def copy(source: BinaryIO, target: BinaryIO) -> None:
    """Pass bytes on until the end."""
    try:
        while data := os.read(source.fileno(), 1 << 16):
            target.write(data)
            target.flush()
        target.close()
    except (OSError, ValueError):
        pass


def end(home: Path) -> None:
    """End a container's processes, and forget it."""
    sys.path.insert(0, str(ROOT))
    from agentrl.sandbox.inside.kernel import end_below

    for name in ("pid", "holder"):
        if (home / name).exists() and Path("/proc", pid := (home / name).read_text()).exists():
            try:
                end_below(int(pid), also=True)
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
    subprocess.run(["rm", "-rf", str(home)], check=True)


def remove(folder: Path, name: str, settings: dict[str, Any], argv: list[str]) -> int:
    """Do ``rm --force --volumes NAME``."""
    force, volumes, container = argv
    assert (force, volumes) == ("--force", "--volumes")
    homes = folder / "containers"
    if not (homes / container).exists():
        missing = {"docker": "Error: No such container", "podman": "Error: no container with name or ID"}
        print(f"{missing[name]}: {container}", file=sys.stderr)
        return 1
    if settings["rm_busy"]:
        new = folder / "settings.rm"
        new.write_text(json.dumps({**settings, "rm_busy": settings["rm_busy"] - 1}))
        new.rename(folder / "settings")
        print(f"Error response from daemon: removal of container {container} is already in progress", file=sys.stderr)
        return 1
    end(homes / container)
    print(container)
    return 0


def list_containers(folder: Path, settings: dict[str, Any], argv: list[str]) -> int:
    """Do ``ps --all --quiet --no-trunc --filter label=NAME=VALUE``."""
    quiet, whole, filtered, wanted = argv
    assert (quiet, whole, filtered) == ("--quiet", "--no-trunc", "--filter")
    if settings["list_fails"]:
        print("Error response from daemon: out of disk", file=sys.stderr)
        return 1
    for home in (folder / "containers").iterdir():
        if f"label={(home / 'label').read_text()}" == wanted:
            print(home.name)
    return 0


if __name__ == "__main__":
    ended = main()
    sys.stdout.flush()
    os._exit(ended)
