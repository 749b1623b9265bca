"""scripts/setup.sh in a copy of its own, on machines of stand-in programs. Nothing is installed."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.install.conftest import StandInMachine

VENV_WAS_MADE = 7
GPU = ("NVIDIA H100 80GB HBM3", 81559, "9.0")


class Clone:
    """What set-up needs of the repository, and a Python that says so instead of making an environment."""

    def __init__(self, root: Path, repository: Path, machine: StandInMachine) -> None:
        self.root, self.machine = root, machine
        for folder in ("scripts", "requirements"):
            shutil.copytree(repository / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
        body = f'if [ "$1 $2" = "-m venv" ]; then exit {VENV_WAS_MADE}; fi\nexec {sys.executable} "$@"'
        machine.variables["PYTHON"] = str(machine.program("the-python", body))

    def setup(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(self.root / "scripts" / "setup.sh"), *words]
        return subprocess.run(command, env=self.machine.variables, capture_output=True, text=True, check=False)

    def stamp(self, kind: str) -> None:
        """Record an environment of a kind as finished now."""
        parts = (self.root / "requirements" / f"{kind}.txt", self.root / "scripts" / "setup.sh")
        digest = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()
        (self.root / ".venv").mkdir(exist_ok=True)
        (self.root / ".venv" / f".setup-{kind}").write_text(f"{digest} {self.root}\n")


@pytest.fixture
def clone(tmp_path: Path, repository: Path, stand_in_machine: StandInMachine) -> Clone:
    return Clone(tmp_path / "clone", repository, stand_in_machine)


def test_gpu_names_every_problem_before_it_installs(clone: Clone) -> None:
    clone.machine.gpus(GPU, driver="550.54.15")
    done = clone.setup("gpu")
    assert done.returncode == 1
    for problem in ("driver 550.54.15 is too old", "no nvcc", "no C++ compiler"):
        assert problem in done.stderr
    assert "nothing was installed" in done.stderr
    assert not (clone.root / ".venv").exists()


def test_gpu_without_a_driver_is_refused_and_skip_checks_goes_on(clone: Clone) -> None:
    clone.machine.toolkit()
    assert "nvidia-smi is not installed" in clone.setup("gpu").stderr
    done = clone.setup("gpu", "--skip-checks")
    assert done.returncode == VENV_WAS_MADE
    assert "1/4 virtual environment" in done.stdout


def test_gpu_goes_on_where_nothing_is_wrong(clone: Clone) -> None:
    clone.machine.gpus(GPU)
    clone.machine.toolkit()
    clone.stamp("gpu")  # the disk of this machine is looked at for a first environment only
    (clone.root / "requirements" / "gpu.txt").write_text("torch==9.0\n")
    done = clone.setup("gpu")
    assert done.stderr == ""
    assert done.returncode == VENV_WAS_MADE


def test_a_machine_with_gpus_gets_the_gpu_environment_by_default(clone: Clone) -> None:
    clone.machine.gpus(GPU)
    assert "no nvcc" in clone.setup().stderr


def test_cpu_asks_for_no_gpu(clone: Clone) -> None:
    assert clone.setup("cpu").returncode == VENV_WAS_MADE
    assert clone.setup().returncode == VENV_WAS_MADE
    refused = clone.setup("cpu", "--skip-checks")
    assert refused.returncode == 2
    assert "--skip-checks is for gpu" in refused.stderr


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_an_environment_is_stale_once_its_lock_or_the_script_changes(clone: Clone, kind: str) -> None:
    assert clone.setup(kind, "--check").returncode == 1
    clone.stamp(kind)
    assert clone.setup(kind, "--check").returncode == 0
    assert "is current" in clone.setup(kind).stdout
    for changed in (f"requirements/{kind}.txt", "scripts/setup.sh"):
        with (clone.root / changed).open("a") as file:
            file.write("\n# changed\n")
        assert clone.setup(kind, "--check").returncode == 1
        clone.stamp(kind)
        assert clone.setup(kind, "--check").returncode == 0


def test_an_environment_of_the_other_kind_is_left_alone(clone: Clone) -> None:
    clone.stamp("cpu")
    done = clone.setup("gpu", "--skip-checks")
    assert done.returncode == 1
    assert ".venv is a cpu environment; type: rm -r .venv && scripts/setup.sh gpu" in done.stderr


def test_the_doctor_needs_no_environment_and_knows_its_state(clone: Clone, repository: Path) -> None:
    for folder in ("openclaw-combine", "openclaw-opd", "openclaw-rl"):
        (clone.root / folder).mkdir()
        (clone.root / folder / "run_tiny_cpu.sh").touch()
    done = clone.setup("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert ".venv       none" in done.stdout
    assert "openclaw-combine/run_tiny_cpu.sh" in done.stdout
    clone.stamp("cpu")
    assert ".venv       cpu current" in clone.setup("doctor").stdout
    (clone.root / "requirements" / "cpu.txt").write_text("torch==9.0\n")
    assert ".venv       cpu stale" in clone.setup("doctor").stdout
    assert clone.setup("doctor", "--check").returncode == 2


def test_the_doctor_fails_where_nothing_can_run(clone: Clone) -> None:
    clone.machine.variables["PYTHON"] = "no-such-python"
    clone.machine.program("python3", f'case "$*" in *version_info*) exit 1 ;; esac\nexec {sys.executable} "$@"')
    done = clone.setup("doctor")
    assert done.returncode == 1
    assert "no Python 3.11 or 3.12 found" in done.stdout


def test_progress_is_shown_and_a_failed_download_is_quoted(clone: Clone) -> None:
    fetched = "".join(f"echo Collecting package{number}\n" for number in range(45))
    pip = f'case "$*" in\n*"/cpu.txt")\n{fetched}echo Installing collected packages\necho no such wheel >&2\nexit 1 ;;\nesac'
    (clone.root / ".venv" / "bin").mkdir(parents=True)
    clone.machine.program("python", pip, clone.root / ".venv" / "bin")
    done = clone.setup("cpu")
    assert done.returncode == 1
    assert "40 of " in done.stdout
    assert done.stdout.rstrip().endswith("unpacking them")
    assert "no such wheel" in done.stderr
    assert clone.setup("cpu", "--check").returncode == 1


@pytest.mark.parametrize("step", ["torch", "index", "packages"])
def test_a_changed_file_of_a_package_is_refused_in_one_line(clone: Clone, step: str) -> None:
    """pip's words are those of pip 23.2; its second try for torch names an index."""
    refusal = (
        "cat >&2 <<END\nERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have\n"
        "    some-package==1.0 from file:///some_package-1.0.whl (from -r x.txt (line 1)):\n"
        f"        Expected sha256 {'0' * 64}\n        Expected     or {'1' * 64}\n"
        f"             Got        {'a' * 64}\n\nEND\nexit 1"
    )
    answers = {"torch": refusal, "index": "exit 0", "packages": "exit 0"} | {step: refusal}
    if step == "index":
        answers["torch"] = "echo no matching distribution >&2; exit 1"
    (clone.root / ".venv" / "bin").mkdir(parents=True)
    clone.machine.program(
        "python",
        f'case "$*" in\n*" --index-url "*)\n{answers["index"]} ;;\n*"/torch.txt")\n{answers["torch"]} ;;\n'
        f'*"/cpu.txt")\n{answers["packages"]} ;;\nesac',
        clone.root / ".venv" / "bin",
    )
    done = clone.setup("cpu")
    assert done.returncode == 1
    assert done.stderr == (
        f"setup: refused some-package==1.0 from file:///some_package-1.0.whl: its sha256 {'a' * 64} "
        "is not in requirements/cpu.txt; to see your indexes, type: pip config list\n"
    )
    assert clone.setup("cpu", "--check").returncode == 1


def test_torch_is_installed_first_with_its_hashes(clone: Clone) -> None:
    (clone.root / ".venv" / "bin").mkdir(parents=True)
    body = 'for last; do :; done\ncase "$last" in */torch.txt) cat "$last"; exit 0 ;; esac\nexit 3'
    clone.machine.program("python", body, clone.root / ".venv" / "bin")
    shown = clone.setup("cpu").stdout
    lock = (clone.root / "requirements" / "cpu.txt").read_text()
    entry = lock[lock.index("\ntorch==") + 1 :].split("\n")
    size = next(number for number, line in enumerate(entry) if not line.endswith("\\")) + 1
    assert "\n".join(entry[:size]) in shown
    assert f"torch, CPU build ({entry[0].split()[0]})" in shown


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("docter", "did you mean doctor?"),
        ("gpus", "did you mean gpu?"),
        ("--chek", "did you mean --check?"),
        ("--skip-check", "did you mean --skip-checks?"),
        ("help", "type: scripts/setup.sh --help"),
        ("x", "type: scripts/setup.sh --help"),
    ],
)
def test_a_mistyped_word_is_one_line(word: str, advice: str, clone: Clone) -> None:
    done = clone.setup(word)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"setup: unknown argument '{word}'; {advice}\n"


def test_the_suite_installs_every_program_that_its_tests_need(repository: Path) -> None:
    """Only verifiers has an environment of its own, whose tests are skipped where it is missing."""
    scripts = {path.name for path in (repository / "scripts").glob("setup_*.sh")}
    called = set(
        re.findall(r"^    scripts/(setup_\w+\.sh) ", (repository / "tests" / "run.sh").read_text(), re.MULTILINE)
    )
    assert scripts - called == {"setup_verifiers.sh"}
