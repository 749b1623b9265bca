"""The wheel in an environment that has what it declares and no more: the client's commands work there, without torch.

What ``pipx install`` and ``uv tool install`` make is an environment like this one. Its packages are links to those here, so the
test needs no network; a package that the wheel needs and does not declare is missing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.helpers.made_runs import MadeRun
from tests.helpers.plain_python import plain_environment, plain_python

ABSENT = ("torch", "ray", "sglang", "peft")


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the files that git knows."""
    folder = tmp_path_factory.mktemp("source")
    listed = ["git", "-C", str(repository), "ls-files", "-z", "openclaw", "agentrl", "slime", "scripts", "*.toml"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in [*filter(None, names), "README.md", "LICENSE"]:
        if (repository / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / name, folder / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    subprocess.run([*command, "-w", str(folder / "wheels"), str(folder)], check=True)
    (found,) = (folder / "wheels").iterdir()
    return found


@pytest.fixture(scope="module")
def program(wheel: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command ``openclaw-rl`` of a fresh environment."""
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("tool") / "env"
    python = plain_python(folder, [Requirement(text).name for text in project["dependencies"]])
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*install, str(wheel)], check=True)
    return folder / "bin" / "openclaw-rl"


def run(
    program: Path, *words: str, home: Path, more: Mapping[str, str] | None = None, text: str = ""
) -> subprocess.CompletedProcess[str]:
    environment = {**plain_environment(home), "HOME": str(home), "PATH": "/usr/bin:/bin", **(more or {})}
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        [str(program), *words], cwd=home, env=environment, capture_output=True, text=True, check=False, input=text
    )


def test_the_environment_has_no_torch(program: Path, tmp_path: Path) -> None:
    found = f"import importlib.util as u; print([name for name in {ABSENT} if u.find_spec(name)])"
    done = run(program.with_name("python"), "-c", found, home=tmp_path)
    assert done.stdout == "[]\n"


def test_every_command_explains_itself(program: Path, tmp_path: Path) -> None:
    listed = run(program, "--help", home=tmp_path).stdout
    names = [line.split()[0] for line in listed.splitlines() if line.startswith("  ")]
    assert {"init", "chat", "inspect", "report", "doctor"} <= set(names)
    for name in names:
        done = run(program, name, "--help", home=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), name
        assert done.stdout.startswith("usage: "), name


def test_the_version_is_that_of_the_wheel(program: Path, wheel: Path, tmp_path: Path) -> None:
    version = wheel.name.split("-")[1]
    assert run(program, "--version", home=tmp_path).stdout.startswith(f"openclaw-rl {version} in ")


def test_a_run_is_looked_at(program: Path, tmp_path: Path) -> None:
    folder = MadeRun(tmp_path / "run").healthy(updates=2).close()
    listed = run(program, "inspect", str(folder), "--turns", home=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "turn-0" in listed.stdout
    assert run(program, "report", str(folder), home=tmp_path).returncode == 0
    assert "<svg" in (folder / "report.html").read_text()
    assert run(program, "doctor", str(folder), home=tmp_path).returncode in (0, 1)
    assert run(program, "versions", str(folder), home=tmp_path).returncode == 0


def test_without_a_run_or_a_server_it_says_what_to_type(program: Path, tmp_path: Path) -> None:
    assert "start one: openclaw-rl init" in run(program, "runs", home=tmp_path).stderr
    refused = run(program, "chat", "--base-url", "http://127.0.0.1:9/v1", home=tmp_path, text="hello\n")
    assert refused.returncode == 2
    assert "start a server: openclaw-rl init" in refused.stderr + refused.stdout


def test_init_writes_a_run_and_clients(program: Path, tmp_path: Path) -> None:
    done = run(program, "init", "--yes", "--run", "cpu", "--skip-checks", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"next:  git clone https://github.com/Gen-Verse/OpenClaw-RL {tmp_path}/OpenClaw-RL && bash " in done.stdout
    assert (tmp_path / ".config" / "openclaw-rl" / "start.sh").is_file()


def test_the_wheel_has_every_module_and_page(wheel: Path, repository: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = ["git", "-C", str(repository), "ls-files", "openclaw", ":!*.md"]
    known = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    assert set(known) <= names
    assert "machine_check/facts.py" in names
