"""Resolve the two locks of the project: ``requirements/cpu.txt`` and ``requirements/gpu.txt``.

The inputs are the dependencies of ``pyproject.toml``. The CPU lock also reads ``cpu_overrides.txt`` and ``cpu_excludes.txt``.
A lock is one set of pins for Python 3.11 and 3.12 on Linux x86-64; a pin that only one of them takes carries a marker.
The other files of ``requirements/`` with pins are kept by hand; only their hashes are written here.

Guarantees: a refresh changes a pin only if the inputs force it or ``--upgrade`` names it. The GPU lock takes the version of
the CPU lock wherever its packages allow. Every pin has the SHA-256 of each file that the registry lists for it, on any system;
they stay as long as the pin does, so a refresh never admits a file that was changed or added later. ``--check`` writes nothing
and fails if a refresh would change a file, if a pin cannot be installed on either Python, or if the registry has no file of a
hash.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12")
PLATFORM = "x86_64-manylinux_2_34"
WHEELS_ONLY = ("--only-binary", ":all:")
EXTRAS = ("train", "serve", "megatron", "tracking", "tinker", "tools", "gui", "demo", "dev")
LOCKS = ("cpu", "gpu")
HEADERS = {
    "cpu": "# Lock of the CPU environment, without any CUDA package, for Python 3.11 and 3.12 on Linux x86-64.\n",
    "gpu": "# Lock of the CUDA environment for Python 3.11 and 3.12 on Linux x86-64.\n",
}
WRITTEN_BY = "# Written by scripts/lock.sh from pyproject.toml; do not edit. Installed with --no-deps --require-hashes by scripts/setup.sh.\n"
INPUTS = ("cpu_overrides", "cpu_excludes")
_PIN = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s;]+)(?:\s*;\s*python_version == ['\"](?P<python>[\d.]+)['\"])?\s*$"
)
_HASH = re.compile(r"\s+(?:\\\s+)?--hash=(?P<hash>sha256:[0-9a-f]{64})(?!\S)")
_PIN_START = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s;]+)")

Pins = Mapping[str, str]
Hashes = dict[tuple[str, str], tuple[str, ...]]


class Unresolved(Exception):
    """The resolver found no solution; the message holds its reason."""


def canonical(name: str) -> str:
    """Return the normalised name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(text: str, python: str) -> dict[str, str]:
    """Return the pins of a lock for one Python (``"3.11"``), by normalised name.

    Raises:
        ValueError: a line is neither a comment nor a pin.
    """
    pins: dict[str, str] = {}
    for line in _HASH.sub("", text).splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        match = _PIN.match(line)
        if match is None:
            raise ValueError(f"{line!r} is not a pin; write NAME==VERSION, or run scripts/lock.sh")
        if match["python"] in (None, python):
            pins[canonical(match["name"])] = match["version"]
    return pins


def read_hashes(text: str) -> Hashes:
    """Return the hashes (``"sha256:..."``, sorted) of a lock's pins, by normalised name and version; pins without any are absent."""
    entries = re.split(r"\n(?!\s)", text)  # a hash is on the line of its pin or on an indented one after it
    return {
        (canonical(pin["name"]), pin["version"]): tuple(sorted(hashes))
        for entry in entries
        if (pin := _PIN_START.match(entry)) and (hashes := _HASH.findall(entry))
    }


def write_hashes(text: str, hashes: Hashes) -> str:
    """Return the text of a lock with these hashes, each on a line of its own after its pin, in place of those it has."""
    lines: list[str] = []
    for line in _HASH.sub("", text).splitlines():
        pin = _PIN.match(line)
        own = hashes[canonical(pin["name"]), pin["version"]] if pin else ()
        lines.append(" \\\n    ".join([line, *(f"--hash={item}" for item in own)]))
    return "\n".join(lines) + "\n"


def write_lock(kind: str, pins: Mapping[str, Pins], hashes: Hashes) -> str:
    """Return the text of a lock from the pins of each Python."""
    lines: list[str] = []
    for name in sorted({name for pin in pins.values() for name in pin}):
        versions = {python: pins[python].get(name) for python in pins}
        if len(set(versions.values())) == 1:
            lines.append(f"{name}=={versions[PYTHONS[0]]}")
        else:
            lines += [
                f'{name}=={version} ; python_version == "{python}"' for python, version in versions.items() if version
            ]
    return write_hashes(HEADERS[kind] + WRITTEN_BY + "\n".join(lines), hashes)


def local_builds(overrides: str) -> dict[str, str]:
    """Return the full versions of overrides that name a local build (``2.13.0+cpu``), by the package's name.

    Package registries hold no local builds, so the resolver works on the public version and the lock names the build.
    """
    return {name: version for name, version in read_lock(overrides, PYTHONS[0]).items() if "+" in version}


def by_hand(requirements: Path) -> list[Path]:
    """Return the locks that are kept by hand."""
    return [path for path in sorted(requirements.glob("*.txt")) if path.stem not in (*LOCKS, *INPUTS)]


class Resolver:
    """Runs uv on the project's inputs for one kind of lock."""

    def __init__(self, uv: str, kind: str, requirements: Path, project: Path) -> None:
        self.uv, self.kind, self.project = uv, kind, project
        self.overrides, self.excludes = requirements / "cpu_overrides.txt", requirements / "cpu_excludes.txt"
        self.builds = local_builds(self.overrides.read_text()) if kind == "cpu" else {}
        self.build_hashes = read_hashes(self.overrides.read_text()) if kind == "cpu" else {}

    def compile(self, python: str, preferences: Iterable[Pins]) -> tuple[dict[str, str], Hashes]:
        """Return the pins for one Python and the hashes of their files.

        Earlier preferences win; one that does not fit the inputs is ignored.
        """
        extras = [part for extra in EXTRAS for part in ("--extra", extra)]
        text = self._lock([str(self.project), *extras], python, preferences)
        result = read_hashes(text)
        pins = {name: self._build(name, version) for name, version in read_lock(text, python).items()}
        hashes: Hashes = {}
        for name, version in pins.items():
            own = (self.build_hashes if "+" in version else result).get((name, version), ())
            if not own:
                raise ValueError(f"{name}=={version} has no hash; add --hash=sha256:... to it in cpu_overrides.txt")
            hashes[name, version] = own
        return pins, hashes

    def listed(self, lock: Path) -> Hashes:
        """Return the hashes of all files that the registry lists for the pins of a lock that is kept by hand."""
        pins = read_lock(lock.read_text(), PYTHONS[0])
        with tempfile.TemporaryDirectory() as folder:
            wanted = Path(folder) / "pins.txt"
            wanted.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
            # Hashes need no wheel, and a lock that is kept by hand may have a package without one.
            return read_hashes(self._lock([str(wanted), "--no-deps"], PYTHONS[0], [pins], wheels=()))

    def _lock(
        self, inputs: list[str], python: str, preferences: Iterable[Pins], wheels: Sequence[str] = WHEELS_ONLY
    ) -> str:
        """Return the lock that uv writes."""
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "lock.txt"
            output.write_text(
                "".join(
                    f"{name}=={self._public(version)}\n"
                    for preference in preferences
                    for name, version in preference.items()
                )
            )
            options = ["--generate-hashes", "--no-header", "--no-annotate", "--output-file", str(output)]
            self._run(["compile", *inputs, *options, *wheels], python, Path(folder))
            return output.read_text()

    def try_install(self, python: str, pins: Pins) -> None:
        """Let the resolver install the pins without doing it: every pin exists, has a wheel and suits the others."""
        with tempfile.TemporaryDirectory() as folder:
            lock = Path(folder) / "lock.txt"
            lock.write_text("".join(f"{name}=={self._public(version)}\n" for name, version in pins.items()))
            self._run(
                ["install", "--dry-run", "--target", str(Path(folder) / "site"), "-r", str(lock), *WHEELS_ONLY],
                python,
                Path(folder),
            )

    def _run(self, command: list[str], python: str, folder: Path) -> None:
        options = ["--python-version", python, "--python-platform", PLATFORM]
        if self.kind == "cpu":
            overrides = folder / "overrides.txt"
            pins = read_lock(self.overrides.read_text(), python)
            overrides.write_text("".join(f"{name}=={self._public(version)}\n" for name, version in pins.items()))
            options += ["--overrides", str(overrides), "--excludes", str(self.excludes)]
        done = subprocess.run(
            [self.uv, "--no-config", "pip", *command, *options], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise Unresolved(f"the {self.kind} lock does not resolve for Python {python}:\n{done.stderr.strip()}")

    @staticmethod
    def _public(version: str) -> str:
        return version.split("+")[0]

    def _build(self, name: str, version: str) -> str:
        build = self.builds.get(name, version)
        return build if self._public(build) == version else version


def kept(pins: Pins, upgrade: list[str] | None) -> dict[str, str]:
    """Return the pins that a refresh keeps where it can: all, none (an empty ``upgrade``), or all but the named ones."""
    if upgrade is None:
        return dict(pins)
    named = {canonical(name) for name in upgrade}
    return {name: version for name, version in pins.items() if named and name not in named}


def resolve(
    uv: str, root: Path, upgrade: list[str] | None
) -> tuple[dict[str, dict[str, dict[str, str]]], dict[str, Hashes]]:
    """Return the pins of both locks by kind and Python, starting from the locks on disk, and the hashes by kind."""
    requirements = root / "requirements"
    solved: dict[str, dict[str, dict[str, str]]] = {}
    listed: dict[str, Hashes] = {}
    preferences: list[Pins] = []
    for kind in LOCKS:
        resolver = Resolver(uv, kind, requirements, root / "pyproject.toml")
        text = (requirements / f"{kind}.txt").read_text()
        solved[kind], listed[kind] = {}, {}
        for python in PYTHONS:
            wanted = [*preferences, kept(read_lock(text, python), upgrade)]
            solved[kind][python], hashes = resolver.compile(python, wanted)
            listed[kind] |= hashes
            preferences.append(solved[kind][python])
    return solved, listed


def settled(stored: Hashes, listed: Hashes, upgrade: list[str] | None) -> Hashes:
    """Return the hashes that a refresh writes: the stored ones of each pin that it keeps, else those that are listed."""
    return {
        (name, version): stored.get((name, version), own) if kept({name: version}, upgrade) else own
        for (name, version), own in listed.items()
    }


def unlisted(stored: Hashes, listed: Hashes) -> list[str]:
    """Return one line for each stored hash that no listed file of its pin has."""
    return [
        f"{name}=={version}: the registry has no file with {item}; if you trust its files: scripts/lock.sh --upgrade {name}"
        for (name, version), own in stored.items()
        for item in own
        if (name, version) in listed and item not in listed[name, version]
    ]


def refreshed_by_hand(uv: str, path: Path, upgrade: list[str] | None) -> tuple[str, list[str]]:
    """Return the text of a lock that is kept by hand with its hashes, and what ``unlisted`` says of those it had."""
    text, project = path.read_text(), ROOT / "pyproject.toml"
    listed = Resolver(uv, "gpu", path.parent, project).listed(path)
    # A plain version also admits its local builds, and an index that has them answers with those.
    for (name, version), own in Resolver(uv, "cpu", path.parent, project).build_hashes.items():
        public = name, version.split("+")[0]
        if public in listed:
            listed[public] = tuple(sorted({*listed[public], *own}))
    stored = read_hashes(text)
    return write_hashes(text, settled(stored, listed, upgrade)), unlisted(stored, listed)


def differences(old: Pins, new: Pins) -> list[str]:
    """Return one line for each pin that differs."""
    names = sorted(set(old) | set(new))
    return [
        f"{name} {old.get(name, 'absent')} -> {new.get(name, 'absent')}"
        for name in names
        if old.get(name) != new.get(name)
    ]


def main() -> int:
    """Refresh the locks, or check them."""
    parser = argparse.ArgumentParser(
        prog="scripts/lock.sh", description="Resolve requirements/cpu.txt and gpu.txt from pyproject.toml."
    )
    parser.add_argument("--uv", required=True, help=argparse.SUPPRESS)
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit 1 if a lock is out of date or a pin cannot be installed",
    )
    parser.add_argument(
        "--upgrade",
        nargs="*",
        metavar="PACKAGE",
        help="take the newest versions of these packages (of all, if none is named)",
    )
    arguments = parser.parse_args()
    if arguments.check and arguments.upgrade is not None:
        parser.error("--check writes nothing; give it without --upgrade")
    started = time.monotonic()
    changed: list[str] = []
    strange: list[str] = []
    try:
        solved, listed = resolve(arguments.uv, ROOT, arguments.upgrade)
        written: dict[Path, str] = {}
        for kind in LOCKS:
            path = ROOT / "requirements" / f"{kind}.txt"
            before = path.read_text()
            resolver = Resolver(arguments.uv, kind, path.parent, ROOT / "pyproject.toml")
            for python in PYTHONS:
                lines = differences(read_lock(before, python), solved[kind][python])
                changed += lines
                print("".join(f"lock: {kind}, Python {python}: {line}\n" for line in lines), end="")
                if arguments.check:
                    resolver.try_install(python, read_lock(before, python))
                count = len(solved[kind][python])
                print(
                    f"lock [{time.monotonic() - started:.0f} s] {kind}, Python {python}: {count} packages", flush=True
                )
            stored = read_hashes(before)
            strange += [f"{kind}, {line}" for line in unlisted(stored, listed[kind])]
            written[path] = write_lock(kind, solved[kind], settled(stored, listed[kind], arguments.upgrade))
        for path in by_hand(ROOT / "requirements"):
            written[path], lines = refreshed_by_hand(arguments.uv, path, arguments.upgrade)
            strange += [f"{path.stem}, {line}" for line in lines]
        for path, text in written.items():
            if not arguments.check:
                path.write_text(text)
            elif not changed and path.read_text() != text:
                changed.append(f"{path.name} is not as scripts/lock.sh writes it")
                print(f"lock: {changed[-1]}")
    except (Unresolved, ValueError) as problem:
        print(f"lock: {problem}", file=sys.stderr)
        return 1
    if arguments.check and strange:
        print("".join(f"lock: {line}\n" for line in strange), end="", file=sys.stderr)
        return 1
    if arguments.check and changed:
        print(
            "lock: the locks do not follow from pyproject.toml; run scripts/lock.sh and commit requirements/",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
