"""Which Python a launch script runs with: that of ``.venv``, else that of the active environment, else it says what to type."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import pytest

CALLS = {"launch": "launch --method combine", "program": "program -m anything", "demo": "demo --method combine"}


@dataclass
class Repository:
    """A repository of two scripts and a lock, and an environment that is active."""

    root: Path
    own: Path
    active: Path
    variables: dict[str, str] = field(default_factory=dict)

    def python(self, folder: Path, why: str = "", packages: str = "") -> None:
        """Put a Python into an environment that lacks what ``why`` says; with ``packages`` as words it is enough."""
        folder.mkdir(parents=True, exist_ok=True)
        asked = f'case "${{*:3}}" in "{packages}") ;; *) {f"echo {why!r}" if why else "true"} ;; esac'
        (folder / "python").write_text(f'#!/bin/bash\ncase "$1" in -c) {asked} ;; *) echo "ran $0" ;; esac\n')
        (folder / "python").chmod(0o755)

    def run(self, call: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a script."""
        (self.root / "run.sh").write_text(f'source "{self.root}/scripts/launch.sh"\n{CALLS[call]} "$@"\n')
        variables = {"PATH": f"{self.active}:/usr/bin:/bin", **self.variables}
        command = ["bash", str(self.root / "run.sh"), *words]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture
def made(repository: Path, tmp_path: Path) -> Repository:
    root = tmp_path / "clone"
    for folder in ("scripts", "requirements"):
        (root / folder).mkdir(parents=True)
    (root / "scripts" / "launch.sh").write_text((repository / "scripts" / "launch.sh").read_text())
    (root / "scripts" / "setup.sh").write_text('echo "set up $1"\n')
    (root / "requirements" / "gpu.txt").write_text("sglang==0.5.23 \\\n    --hash=sha256:0\n")
    return Repository(root, root / ".venv" / "bin", tmp_path / "active" / "bin")


@pytest.mark.parametrize("call", ["launch", "program"])
def test_the_own_environment_comes_first(made: Repository, call: str) -> None:
    made.python(made.own)
    made.python(made.active)
    assert made.run(call).stdout == f"ran {made.own}/python\n"


@pytest.mark.parametrize("call", ["launch", "program", "demo"])
def test_without_one_the_active_environment_is_taken(made: Repository, call: str) -> None:
    made.python(made.active)
    assert made.run(call).stdout == f"ran {made.active}/python\n"


@pytest.mark.parametrize("call", ["launch", "program"])
def test_an_active_environment_that_lacks_packages_is_named(made: Repository, call: str) -> None:
    made.python(made.active, "lacks ray, sglang")
    made.variables["VIRTUAL_ENV"] = str(made.active.parent)
    done = made.run(call)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"no .venv, and {made.active}/python lacks ray, sglang; run: bash {made.root}/scripts/setup.sh, "
        f"or: pip install -r {made.root}/requirements.txt\n"
    )


@pytest.mark.parametrize("call", ["launch", "program"])
def test_a_python_that_nobody_activated_is_not_blamed(made: Repository, call: str) -> None:
    made.python(made.active, "lacks ray")
    done = made.run(call)
    assert (done.returncode, done.stderr) == (2, f"no environment yet; run: bash {made.root}/scripts/setup.sh\n")


def test_a_half_made_environment_is_named(made: Repository) -> None:
    made.python(made.own, "lacks torch")
    made.python(made.active)
    done = made.run("launch")
    assert done.returncode == 2
    assert done.stderr == (
        f"the environment in .venv lacks torch; run: bash {made.root}/scripts/setup.sh, or wait for the set-up that runs\n"
    )


def test_a_finished_set_up_is_asked_nothing(made: Repository) -> None:
    made.python(made.own, "lacks everything")
    (made.root / ".venv" / ".setup-cpu").touch()
    assert made.run("launch").stdout == f"ran {made.own}/python\n"


@pytest.mark.parametrize("word", ["--dry-run", "--help", "-h"])
def test_a_dry_run_needs_few_packages(made: Repository, word: str) -> None:
    made.python(made.active, "lacks torch", "httpx yaml")
    assert made.run("launch", word).stdout == f"ran {made.active}/python\n"
    assert made.run("launch").returncode == 2


def test_the_demo_sets_up_what_is_missing_and_leaves_an_environment_of_pip_alone(made: Repository) -> None:
    assert made.run("demo").stdout == "set up cpu\n"
    made.python(made.own, "lacks torch")
    assert made.run("demo").stdout == "set up cpu\n"
    made.python(made.own)
    assert made.run("demo").stdout == f"ran {made.own}/python\n"
    (made.root / ".venv" / ".setup-cpu").touch()
    assert made.run("demo").stdout == f"set up cpu\nran {made.own}/python\n", "it may be older than its lock"


def test_a_python_is_asked_for_its_version_and_its_packages(repository: Path) -> None:
    sglang = metadata.version("sglang")
    asked = {
        "": "",
        "httpx yaml": "",
        f"sglang=={sglang}": "",
        "sglang==0.4.1 httpx": f"has sglang {sglang}, not 0.4.1",
        "httpx no_such_package": "lacks no_such_package",
    }
    calls = "\n".join(f'echo "$(cannot_run {sys.executable} {words})"' for words in asked)
    done = subprocess.run(
        ["bash", "-c", f'source "{repository}/scripts/launch.sh"\n{calls}\ncannot_run no-such-python'],
        cwd=repository / "slime" / "slime",  # a folder ray is here
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:-1] == [*asked.values(), "does not start"]


def test_another_python_is_named(repository: Path) -> None:
    script = (repository / "scripts" / "launch.sh").read_text()
    [code] = re.findall(r"code='(.*?)'\n", script, re.DOTALL)
    older = code.replace("sys.version_info", "(3, 10, 1)")
    assert older.count("(3, 10, 1)") == 2
    done = subprocess.run([sys.executable, "-c", older], capture_output=True, text=True, check=True)
    assert done.stdout == "is Python 3.10, not 3.11 or 3.12\n"
