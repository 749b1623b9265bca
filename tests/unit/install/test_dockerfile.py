"""The Dockerfile: its targets, and that each runs the set-up script with everything the script needs.

No image is built here; ``python -m tests.images`` does. The set-up step of each target runs on a copy of the files that the
target has by then.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.images.files import Stage, left_out, read_stages, sources
from tests.unit.install.conftest import StandInMachine
from tests.unit.install.test_setup_script import VENV_WAS_MADE, Clone

SETUP = {"cpu": "scripts/setup.sh cpu", "gpu": "scripts/setup.sh gpu --skip-checks"}


@pytest.fixture
def stages(repository: Path) -> dict[str, Stage]:
    return read_stages(repository)


def test_there_is_one_target_for_each_environment(stages: dict[str, Stage]) -> None:
    assert set(stages) == set(SETUP)
    assert "cuda:13." in stages["gpu"].base, "torch is built for CUDA 13"
    assert "-devel-" in stages["gpu"].base, "kernels are compiled at run time"


@pytest.mark.parametrize("kind", SETUP)
def test_a_target_installs_packages_with_the_script_only(stages: dict[str, Stage], kind: str) -> None:
    runs = stages[kind].all("RUN")
    assert [run for run in runs if "scripts/" in run or "pip" in run or "uv " in run] == [SETUP[kind]]


@pytest.mark.parametrize("kind", SETUP)
def test_set_up_and_programs_run_as_a_user_without_privileges(stages: dict[str, Stage], kind: str) -> None:
    instructions = stages[kind].instructions
    assert stages[kind].all("USER") == ["openclaw"]
    assert instructions.index(("USER", "openclaw")) < instructions.index(("RUN", SETUP[kind]))
    assert all("--chown=openclaw:openclaw" in copy for copy in stages[kind].all("COPY"))


@pytest.mark.parametrize("kind", SETUP)
def test_what_is_copied_and_started_exists(repository: Path, stages: dict[str, Stage], kind: str) -> None:
    for source in (source for copy in stages[kind].all("COPY") for source in sources(copy)):
        assert (repository / source).exists(), source
        assert not left_out(repository, source), f".dockerignore leaves {source} out"
    assert stages[kind].all("COPY")[-1].endswith(". .")
    (command,) = (json.loads(value) for value in stages[kind].all("CMD"))
    assert (repository / command[1]).exists()


@pytest.mark.parametrize("kind", SETUP)
def test_the_set_up_step_has_the_files_it_needs(
    repository: Path, tmp_path: Path, stand_in_machine: StandInMachine, stages: dict[str, Stage], kind: str
) -> None:
    clone = Clone(tmp_path / "clone", repository, stand_in_machine)
    shutil.rmtree(clone.root)
    for source in stages[kind].copied_before(SETUP[kind]):
        shutil.copytree(repository / source, clone.root / source)
    program, *words = SETUP[kind].split()
    done = subprocess.run(
        [str(clone.root / program), *words], env=stand_in_machine.variables, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.returncode == VENV_WAS_MADE


@pytest.mark.parametrize("kind", SETUP)
def test_sources_copied_later_leave_the_environment_current(stages: dict[str, Stage], kind: str) -> None:
    # scripts/setup.sh fingerprints the lock and itself; test_setup_script.py shows that.
    assert stages[kind].copied_before(SETUP[kind]) == ["requirements", "scripts"]


def test_nothing_local_or_large_enters_an_image(repository: Path) -> None:
    ignored = set((repository / ".dockerignore").read_text().split())
    assert {".git", ".venv", ".cache", "models", "runs"} <= ignored


def test_conversations_that_the_pages_record_enter_neither_a_commit_nor_an_image(
    repository: Path, tmp_path: Path
) -> None:
    """Nor a job: Ray leaves out what git ignores, and refuses a folder of more than 100 MiB."""
    written = ["rl_buffer", "rollouts", "checkpoints", "debug_rollouts", "saved", "runs"]
    written += [f"openclaw-combine/{name}" for name in written[:4]]
    for name in written:
        assert left_out(repository, name), name
    shutil.copy(repository / ".gitignore", tmp_path)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    command = ["git", "-C", str(tmp_path), "check-ignore", *(f"{name}/ledger.sqlite" for name in written)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [line.rpartition("/")[0] for line in done.stdout.splitlines()] == written
