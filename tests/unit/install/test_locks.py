"""scripts/locks.py with a stand-in for the resolver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import locks
import pytest


def hash_of(file: str) -> str:
    """What the stand-in takes for the hash of a file."""
    return "sha256:" + file.encode().hex().ljust(64, "0")


def pinned(pin: str, *files: str) -> str:
    """The lines of a pin with the hashes of its files."""
    return " \\\n    ".join([pin, *sorted(f"--hash={hash_of(file)}" for file in files)]) + "\n"


class Registry:
    """A project of three packages, its locks and a resolver that knows what the registry has."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state: dict[str, Any] = {
            "versions": {
                "3.11": {"engine": ["1.0"], "kernels": ["5.0"], "torch": ["2.1"]},
                "3.12": {"engine": ["1.0"], "kernels": ["5.0"], "torch": ["2.1"]},
            },
            "files": {},
        }
        (root / "requirements").mkdir()
        (root / "requirements" / "cpu_overrides.txt").write_text(
            "# the build without CUDA\n" + pinned("torch==2.1+cpu", "the CPU wheel")
        )
        (root / "requirements" / "cpu_excludes.txt").write_text("kernels\n")
        for kind in locks.LOCKS:
            (root / "requirements" / f"{kind}.txt").write_text("")

    def run(self, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
        monkeypatch.setattr(locks, "ROOT", self.root)
        monkeypatch.setattr(locks, "subprocess", SimpleNamespace(run=self.uv))
        monkeypatch.setattr(sys, "argv", ["lock.sh", "--uv", "uv", *words])
        return locks.main()

    def uv(self, command: list[str], **_: object) -> SimpleNamespace:
        """Answer as uv does: the newest version of what is asked for unless a preference names another that exists, with the
        hashes of its files; no answer without one."""

        def option(name: str) -> str:
            return Path(command[command.index(name) + 1]).read_text() if name in command else ""

        def pins(text: str) -> list[list[str]]:
            return [word.split("==") for word in text.split() if "==" in word]

        def entry(name: str, version: str) -> str:
            files = self.state["files"].get(name, [name + version])
            return " ".join([f"{name}=={version}", *(f"--hash={hash_of(file)}" for file in files)])

        versions = self.state["versions"][command[command.index("--python-version") + 1]]
        assert "+" not in option("--overrides"), "no registry has local builds"
        problem = ""
        if "compile" in command:
            assert "--generate-hashes" in command
            preferred: dict[str, str] = {}
            for name, version in pins(option("--output-file")):
                if version in versions.get(name, []):
                    preferred.setdefault(name, version)
            if "--no-deps" in command:
                found = pins(option("compile"))
            else:
                excluded = option("--excludes").split()
                found = [[name, preferred.get(name, versions[name][-1])] for name in versions if name not in excluded]
            problem = self.state.get("impossible", "")
            Path(command[command.index("--output-file") + 1]).write_text("\n".join(entry(*pin) for pin in found))
        else:
            assert "--dry-run" in command
            for name, version in pins(option("-r")):
                if version not in versions.get(name, []) or name in self.state.get("no_wheel", []):
                    problem = f"there is no version of {name}=={version}"
        return SimpleNamespace(returncode=int(bool(problem)), stderr=f"error: {problem}")

    def release(self, name: str, version: str, *pythons: str) -> None:
        for python in pythons or locks.PYTHONS:
            self.state["versions"][python].setdefault(name, []).append(version)

    def lock(self, kind: str) -> str:
        return (self.root / "requirements" / f"{kind}.txt").read_text()

    def pins(self, kind: str) -> list[str]:
        return [line.removesuffix(" \\") for line in self.lock(kind).splitlines() if line[0] not in "# "]

    def hashes(self, kind: str, name: str) -> list[str]:
        """The hashes of the first pin of a package."""
        return next(list(own) for (each, _), own in locks.read_hashes(self.lock(kind)).items() if each == name)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry(tmp_path)
    assert made.run(monkeypatch) == 0
    return made


def test_a_refresh_writes_both_locks(registry: Registry) -> None:
    assert registry.pins("cpu") == ["engine==1.0", "torch==2.1+cpu"]
    assert registry.pins("gpu") == ["engine==1.0", "kernels==5.0", "torch==2.1"]


def test_a_refresh_keeps_pins_and_an_upgrade_moves_the_named_ones(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.release("engine", "1.1")
    registry.release("kernels", "5.1")
    assert registry.run(monkeypatch) == 0
    assert "engine==1.0" in registry.pins("cpu")
    assert registry.run(monkeypatch, "--upgrade", "engine") == 0
    assert registry.pins("cpu") == ["engine==1.1", "torch==2.1+cpu"]
    assert registry.pins("gpu") == ["engine==1.1", "kernels==5.0", "torch==2.1"]
    assert registry.run(monkeypatch, "--upgrade") == 0
    assert "kernels==5.1" in registry.pins("gpu")


def test_a_pin_that_one_python_cannot_take_gets_a_marker(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    for python, version in (("3.11", "6.0"), ("3.12", "7.0")):
        registry.state["versions"][python]["engine"] = [version]
    assert registry.run(monkeypatch) == 0
    lines = ['engine==6.0 ; python_version == "3.11"', 'engine==7.0 ; python_version == "3.12"']
    assert registry.pins("gpu")[:2] == lines
    assert locks.read_lock(registry.lock("gpu"), "3.12")["engine"] == "7.0"
    assert registry.run(monkeypatch, "--check") == 0


def test_the_check_passes_on_fresh_locks_and_writes_nothing(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.release("engine", "1.1")
    before = [registry.lock(kind) for kind in locks.LOCKS]
    assert registry.run(monkeypatch, "--check") == 0
    assert [registry.lock(kind) for kind in locks.LOCKS] == before


def test_the_check_finds_an_input_that_the_lock_does_not_follow(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.release("added", "3.0")
    assert registry.run(monkeypatch, "--check") == 1
    output = capsys.readouterr()
    assert "gpu, Python 3.12: added absent -> 3.0" in output.out
    assert "run scripts/lock.sh" in output.err


def test_the_check_finds_a_pin_that_the_registry_lost(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.state["versions"]["3.12"]["engine"] = ["1.2"]
    assert registry.run(monkeypatch, "--check") == 1
    output = capsys.readouterr()
    assert "cpu, Python 3.12: engine 1.0 -> 1.2" in output.out
    assert "there is no version of engine==1.0" in output.err


def test_the_check_finds_a_pin_without_a_wheel(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.state["no_wheel"] = ["kernels"]
    assert registry.run(monkeypatch, "--check") == 1
    assert "the gpu lock does not resolve for Python 3.11" in capsys.readouterr().err


def test_the_check_finds_a_lock_edited_by_hand(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    (registry.root / "requirements" / "gpu.txt").write_text(registry.lock("gpu") + "# a note\n")
    assert registry.run(monkeypatch, "--check") == 1


def test_a_refresh_without_a_solution_changes_nothing_and_shows_the_reason(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = registry.lock("gpu")
    registry.state["impossible"] = "engine needs torch 3"
    assert registry.run(monkeypatch) == 1
    assert "engine needs torch 3" in capsys.readouterr().err
    assert registry.lock("gpu") == before


def test_every_pin_has_the_hashes_of_its_files(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.lock("cpu").endswith(
        pinned("engine==1.0", "engine1.0") + pinned("torch==2.1+cpu", "the CPU wheel")
    ), "no registry lists a local build: its override has the hash"
    for python, version in (("3.11", "6.0"), ("3.12", "7.0")):
        registry.state["versions"][python]["engine"] = [version]
    registry.state["files"]["kernels"] = ["wheel", "archive"]
    assert registry.run(monkeypatch, "--upgrade") == 0
    assert pinned('engine==7.0 ; python_version == "3.12"', "engine7.0") in registry.lock("gpu")
    assert pinned("kernels==5.0", "wheel", "archive") in registry.lock("gpu")


def test_a_pin_that_stays_keeps_its_hashes(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    before = registry.lock("gpu")
    registry.state["files"]["engine"] = ["engine1.0", "added later"]
    assert registry.run(monkeypatch) == 0
    assert registry.run(monkeypatch, "--upgrade", "kernels") == 0
    assert registry.lock("gpu") == before
    assert registry.run(monkeypatch, "--check") == 0, "what was locked is still there"
    assert registry.run(monkeypatch, "--upgrade", "engine") == 0
    assert registry.hashes("gpu", "engine") == sorted(map(hash_of, registry.state["files"]["engine"]))


@pytest.mark.parametrize("kind", ["cpu", "gpu", "aside"])
def test_the_check_finds_a_file_that_the_registry_changed(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = registry.root / "requirements" / f"{kind}.txt"
    path.write_text(
        registry.lock(kind).replace(hash_of("engine1.0"), hash_of("theirs"))
        if path.exists()
        else pinned("engine==1.0", "theirs")
    )
    assert registry.run(monkeypatch, "--check") == 1
    assert capsys.readouterr().err == (
        f"lock: {kind}, engine==1.0: the registry has no file with {hash_of('theirs')}; "
        "if you trust its files: scripts/lock.sh --upgrade engine\n"
    )
    assert registry.run(monkeypatch, "--upgrade", "engine") == 0
    assert registry.run(monkeypatch, "--check") == 0
    assert registry.hashes(kind, "engine") == [hash_of("engine1.0")]


def test_the_check_finds_a_pin_without_hashes(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = registry.lock("gpu").replace(pinned("engine==1.0", "engine1.0"), "engine==1.0\n")
    (registry.root / "requirements" / "gpu.txt").write_text(bare)
    assert registry.run(monkeypatch, "--check") == 1
    assert "gpu.txt is not as scripts/lock.sh writes it" in capsys.readouterr().out
    assert registry.run(monkeypatch) == 0
    assert registry.hashes("gpu", "engine") == [hash_of("engine1.0")]


def test_a_lock_kept_by_hand_gets_hashes_and_keeps_its_words(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.release("engine", "1.1")
    (registry.root / "requirements" / "aside.txt").write_text("# Why.\nTorch==2.1\n# Not the newest.\nengine==1.0\n")
    assert registry.run(monkeypatch, "--check") == 1
    assert registry.run(monkeypatch, "--upgrade") == 0
    # An index with CPU builds answers to torch==2.1 with one.
    torch = pinned("Torch==2.1", "torch2.1", "the CPU wheel")
    assert registry.lock("aside") == "# Why.\n" + torch + "# Not the newest.\n" + pinned("engine==1.0", "engine1.0")
    assert registry.run(monkeypatch, "--check") == 0


def test_a_local_build_needs_a_hash(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (registry.root / "requirements" / "cpu_overrides.txt").write_text("torch==2.1+cpu\n")
    assert registry.run(monkeypatch) == 1
    assert "torch==2.1+cpu has no hash; add --hash=sha256:... to it in cpu_overrides.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "engine>=1.0",
        "engine",
        "engine==1.0 ; sys_platform == 'linux'",
        "--index-url x",
        "engine==1.0 --hash=sha256:0",
        "engine==1.0 --hash=md5:00",
    ],
)
def test_a_lock_holds_pins_only(line: str) -> None:
    with pytest.raises(ValueError, match="is not a pin"):
        locks.read_lock(f"# a comment\n{line}\n", "3.11")


def test_the_command_explains_itself_without_installing_the_resolver(repository: Path, tmp_path: Path) -> None:
    for name in ("scripts/lock.sh", "scripts/locks.py", "scripts/python.sh", "requirements/lock_tool.txt"):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes((repository / name).read_bytes())
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", str(tmp_path / "scripts/lock.sh"), "--help"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--upgrade" in done.stdout
    assert not (tmp_path / ".cache").exists()
