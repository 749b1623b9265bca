"""What the set-up demands of a GPU machine and what the doctor says, on machines of stand-in programs."""

from __future__ import annotations

import ast
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from machine_check import __main__ as command
from machine_check import checks, facts
from machine_check.__main__ import KINDS, OF_AGENTS, SEVERAL, kind_of, launch_scripts, report
from machine_check.facts import Driver, Gpu, Interpreter, Machine, Toolkit

from tests.unit.install.conftest import StandInMachine

H100 = ("NVIDIA H100 80GB HBM3", 81559, "9.0")
RTX_4090 = ("NVIDIA GeForce RTX 4090", 24564, "8.9")
A100_40 = ("NVIDIA A100-SXM4-40GB", 40960, "8.0")
T4 = ("Tesla T4", 15360, "7.5")
READY = Machine(
    system="Linux",
    architecture="x86_64",
    glibc=(2, 36),
    cores=64,
    memory_gb=1000.0,
    interpreter=Interpreter("python3.11", (3, 11, 9), True, True),
    driver=Driver("580.95.05", tuple(Gpu(index, f"GPU-{index}", *H100[:2], (9, 0)) for index in range(8))),
    toolkit=Toolkit("/usr/local/cuda/bin/nvcc", (13, 0), "/usr/bin/c++"),
)
BARE = replace(
    READY, driver=Driver(failure="nvidia-smi is not installed", installed=False), toolkit=Toolkit(None, None, None)
)


def with_gpus(*gpus: tuple[str, int, str]) -> Machine:
    made = [Gpu(i, f"GPU-{i}", name, mib, facts._pair(capability)) for i, (name, mib, capability) in enumerate(gpus)]
    return replace(READY, driver=Driver("580.95.05", tuple(made)))


def told(problems: list[checks.Problem]) -> str:
    return "\n".join(map(str, problems))


def test_a_ready_machine_has_no_problem() -> None:
    assert checks.base_problems(READY) == []
    assert checks.driver_problems(READY.driver, None) == []
    assert checks.toolkit_problems(READY.toolkit, READY.interpreter) == []


def test_gpus_are_read_from_nvidia_smi(stand_in_machine: StandInMachine) -> None:
    stand_in_machine.gpus(H100, T4, driver="570.10")
    driver = facts.read_driver()
    assert driver.failure is None
    assert driver.version == "570.10"
    assert driver.gpus == (Gpu(0, "GPU-0ab", *H100[:2], (9, 0)), Gpu(1, "GPU-1ab", *T4[:2], (7, 5)))


def test_a_driver_that_does_not_answer_is_quoted(stand_in_machine: StandInMachine) -> None:
    assert facts.read_driver() == Driver(failure="nvidia-smi is not installed", installed=False)
    stand_in_machine.program("nvidia-smi", 'echo "NVIDIA-SMI has failed because it could not reach the driver"; exit 9')
    driver = facts.read_driver()
    assert "could not reach the driver" in told(checks.driver_problems(driver, None))
    stand_in_machine.program("nvidia-smi", "true")
    assert "sees no GPU" in told(checks.driver_problems(facts.read_driver(), None))
    stand_in_machine.program("nvidia-smi", "echo something else")
    assert "something else" in told(checks.driver_problems(facts.read_driver(), None))


@pytest.mark.parametrize(
    ("version", "refused"), [("579.99", True), ("550.54.15", True), ("580.65.06", False), ("610.1", False)]
)
def test_drivers_below_580_are_refused_with_the_driver_to_install(version: str, refused: bool) -> None:
    message = told(checks.driver_problems(replace(READY.driver, version=version), None))
    assert (f"driver {version} is too old" in message) == refused
    assert ("install driver 580 or newer" in message) == refused


def test_only_visible_gpus_must_be_new_enough() -> None:
    driver = with_gpus(H100, T4).driver
    assert "GPU 1 (Tesla T4)" in told(checks.driver_problems(driver, None))
    assert checks.driver_problems(driver, "0") == []


@pytest.mark.parametrize(
    ("chosen", "seen"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        ("0,7,1", [0]),
        ("GPU-1", [1]),
        ("MIG-1", []),
        (" 1 , 2", [1, 2]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_does(chosen: str | None, seen: list[int]) -> None:
    gpus = with_gpus(H100, H100, H100).driver.gpus
    assert [gpu.index for gpu in facts.visible(gpus, chosen)] == seen


def test_the_toolkit_is_found_where_the_kernels_look(stand_in_machine: StandInMachine, tmp_path: Path) -> None:
    stand_in_machine.toolkit("13.1")
    on_path = stand_in_machine.program("nvcc", "echo release 12.4, V12.4.99")
    in_home = stand_in_machine.cuda / "bin" / "nvcc"
    compiler = str(stand_in_machine.programs / "c++")
    assert facts.read_toolkit({}) == Toolkit(str(on_path), (12, 4), compiler)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        assert facts.read_toolkit({name: str(stand_in_machine.cuda)}) == Toolkit(str(in_home), (13, 1), compiler)
    assert facts.read_toolkit({"CUDA_HOME": str(tmp_path / "none")}).nvcc is None
    assert facts.read_toolkit({"CXX": "clang++"}).compiler is None
    in_home.write_text("#!/bin/sh\nexit 1\n")
    assert facts.read_toolkit({"CUDA_HOME": str(stand_in_machine.cuda)}).release is None


def test_what_compiling_needs_is_named_with_what_to_type() -> None:
    missing = told(checks.toolkit_problems(BARE.toolkit, Interpreter("python3.12", (3, 12, 1), True, False)))
    assert "no nvcc" in missing
    assert "cuda-toolkit-13-0" in missing
    assert "apt-get install g++" in missing
    assert "apt-get install python3.12-dev" in missing
    old = told(checks.toolkit_problems(replace(READY.toolkit, release=(12, 8)), READY.interpreter))
    assert "nvcc is CUDA 12.8, torch is built for CUDA 13" in old
    assert "names no release" in told(checks.toolkit_problems(replace(READY.toolkit, release=None), READY.interpreter))


def test_machines_the_locks_are_not_for_are_refused() -> None:
    assert "Linux on aarch64" in told(checks.base_problems(replace(READY, architecture="aarch64")))
    assert "Darwin" in told(checks.base_problems(replace(READY, system="Darwin")))
    assert "glibc 2.31" in told(checks.base_problems(replace(READY, glibc=(2, 31))))
    assert "no GNU C library" in told(checks.base_problems(replace(READY, glibc=None)))
    assert checks.base_problems(replace(READY, glibc=(2, 34))) == []


def test_pythons_that_cannot_hold_the_environment_are_refused() -> None:
    def problems(interpreter: Interpreter | None) -> str:
        return told(checks.base_problems(replace(READY, interpreter=interpreter)))

    assert "no Python 3.11 or 3.12" in problems(None)
    assert "Python 3.13.0 found" in problems(Interpreter("python3", (3, 13, 0), True, True))
    assert "apt-get install python3.12-venv" in problems(Interpreter("python3.12", (3, 12, 3), False, True))


def test_this_python_is_read(stand_in_machine: StandInMachine) -> None:
    interpreter = facts.read_interpreter(sys.executable)
    assert interpreter is not None
    assert interpreter.version == sys.version_info[:3]
    assert facts.read_interpreter("no-such-python") is None


def test_file_systems_are_added_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes = {"one": checks.ENVIRONMENT_GB + 2 * checks.WHEELS_GB, "env": checks.ENVIRONMENT_GB, "tmp": checks.WHEELS_GB}

    def disks(name: str) -> None:
        monkeypatch.setattr(checks, "free_gb", lambda path: (1, sizes["one"]) if name == "one" else split(path))

    def split(path: Path) -> tuple[int, float]:
        return (1, sizes["env"]) if "clone" in str(path) else (2, sizes["tmp"])

    environment = tmp_path / "clone" / ".venv"
    variables = {"HOME": "/home/me"}
    disks("one")
    assert checks.space_problems(environment, variables) == []
    sizes["one"] -= 0.1
    message = told(checks.space_problems(environment, variables))
    assert f"need {checks.ENVIRONMENT_GB + 2 * checks.WHEELS_GB:.1f} GB" in message
    assert "/home/me/.cache/pip" in message
    assert checks.space_problems(environment, {**variables, "PIP_NO_CACHE_DIR": "1"}) == []
    disks("two")
    message = told(checks.space_problems(environment, variables))
    assert "pip's cache" in message
    assert "the environment" not in message
    assert checks.space_problems(environment, {**variables, "PIP_NO_CACHE_DIR": "1"}) == []
    sizes["env"] -= 0.1
    assert "the environment" in told(checks.space_problems(environment, {**variables, "PIP_NO_CACHE_DIR": "1"}))


def test_the_space_of_a_path_that_is_not_there_yet_is_that_of_its_folder(tmp_path: Path) -> None:
    assert facts.free_gb(tmp_path / "a" / "b")[0] == os.stat(tmp_path).st_dev


def doctor(machine: Machine, repository: Path, environment: str = "gpu current", **variables: str) -> tuple[str, bool]:
    return report(machine, repository, environment, variables)


def fitting(text: str) -> set[str]:
    listed = text.partition("Launch scripts\n")[2].partition("To do\n")[0].splitlines()
    return {line.split()[0] for line in listed if not line.startswith("  not here")}


def test_eight_large_gpus_run_everything(repository: Path) -> None:
    text, runs = doctor(READY, repository)
    assert runs
    scripts = launch_scripts(repository)
    here = {str(script) for script in scripts if kind_of(script) is not SEVERAL and "run_tiny_cpu" not in script.name}
    assert fitting(text) == here, "the demos want the CPU environment"
    listed = [line.split()[0] for line in text.partition("Launch scripts\n")[2].splitlines()]
    assert listed[0] == "openclaw-combine/run_qwen3_4b_openclaw_combine.sh"
    assert "not here: 8 scripts for several machines of 8 GPUs" in text
    assert text.endswith("To do\n  - nothing")


def test_a_machine_without_gpus_runs_the_demo(repository: Path) -> None:
    text, runs = doctor(BARE, repository, "none")
    assert "scripts for 1 GPU of 24 GB, such as openclaw-combine/run_qwen3_1_7b_openclaw_combine_24gb.sh" in text
    assert runs
    methods = ("combine", "hybrid", "oel", "opd", "personal", "rl", "sdpo")
    demos = {f"openclaw-{method}/run_tiny_cpu.sh" for method in methods}
    agents = {f"openclaw-rl/run_tiny_cpu_{name}.sh" for name in ("mini_swe_agent", "openclaw_agent", "opencode_agent")}
    others = {"openclaw-combine/run_tiny_cpu_hybrid.sh", "openclaw-tinker/run_tiny_cpu.sh"} | agents
    agents = {f"{name}-rl/run_tiny_cpu.sh" for name in ("toolcall", "terminal", "gui", "swe")}
    assert fitting(text) == demos | others | agents
    assert "type: scripts/setup.sh cpu" in text
    assert "nvcc, " not in text.split("To do")[1]


def test_scripts_fit_by_number_and_memory_of_the_gpus(repository: Path) -> None:
    one, _ = doctor(with_gpus(RTX_4090), repository)
    of_one = {"1 GPU of 24 GB", "1 GPU of 16 GB, and a judge elsewhere"}
    assert {kind_of(Path(script)).words for script in fitting(one)} == of_one
    four, _ = doctor(with_gpus(*[A100_40] * 4), repository)
    assert "openclaw-combine/run_qwen3_4b_openclaw_combine_lora.sh" in fitting(four)
    assert "openclaw-combine/run_qwen3_4b_openclaw_combine.sh" not in fitting(four)
    eight, _ = doctor(with_gpus(*[A100_40] * 8), repository)
    assert "openclaw-combine/run_qwen3_4b_openclaw_combine.sh" in fitting(eight)
    assert "openclaw-combine/run_qwen3_8b_openclaw_combine.sh" not in fitting(eight)
    assert "openclaw-combine/run_qwen3_4b_openclaw_combine_fp8.sh" not in fitting(eight), "Ampere has no FP8"
    hidden, _ = doctor(with_gpus(*[A100_40] * 8), repository, CUDA_VISIBLE_DEVICES="0,1,2,3")
    assert fitting(hidden) == fitting(four)
    assert hidden.count("hidden by CUDA_VISIBLE_DEVICES") == 4


def test_gpus_with_an_old_driver_run_the_demo_only(repository: Path) -> None:
    machine = replace(READY, driver=replace(READY.driver, version="550.54"))
    text, runs = doctor(machine, repository, "none")
    assert runs
    assert all("tiny" in script for script in fitting(text))
    assert "install driver 580" in text
    assert "type: scripts/setup.sh cpu" in text


def test_the_environment_is_judged(repository: Path) -> None:
    assert "type: scripts/setup.sh gpu" in doctor(READY, repository, "gpu stale")[0]
    assert "type: scripts/setup.sh gpu" in doctor(READY, repository, "none")[0]
    assert "rm -r .venv && scripts/setup.sh gpu" in doctor(READY, repository, "cpu current")[0]


def test_a_machine_that_can_run_nothing_says_why(repository: Path) -> None:
    text, runs = doctor(replace(READY, architecture="aarch64"), repository)
    assert not runs
    assert "none fits" in text
    assert "use Linux on x86-64" in text


def test_every_launch_script_has_the_kind_its_first_lines_say(repository: Path) -> None:
    for script in launch_scripts(repository):
        words = (repository / script).read_text().splitlines()[1]
        kind = kind_of(script)
        for number, phrase in ((8, "8 GPUs:"), (4, "4 GPUs:"), (1, "one GPU with 24 GB"), (0, "on a CPU")):
            if phrase in words:
                assert kind.gpus == number, script
    assert {kind_of(script) for script in launch_scripts(repository)} == {*KINDS, *OF_AGENTS}


def test_the_versions_named_are_those_of_the_lock(repository: Path) -> None:
    import locks

    pins = locks.read_lock((repository / "requirements/gpu.txt").read_text(), "3.12")
    assert f"torch {pins['torch']}" in (checks.__doc__ or "")
    assert pins["cuda-toolkit"].split(".")[0] == str(checks.CUDA_MAJOR)
    assert "ninja" in pins, "toolkit_problems does not look for ninja because the lock brings it"


def test_a_cpu_environment_does_not_verify_as_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(command, "MODULES", ("torch", "json"))
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "is not a CUDA build" in command.failures(with_gpu=False)[0]
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert command.failures(with_gpu=False) == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(command, "read_driver", lambda: Driver("550.54", READY.driver.gpus))
    assert "finds no usable GPU with driver 550.54; it needs driver 580" in command.failures(with_gpu=True)[0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert command.failures(with_gpu=True) == []
    monkeypatch.setattr(command, "MODULES", ("torch", "no_such_package"))
    assert "cannot import no_such_package" in command.failures(with_gpu=True)[0]


def test_old_pythons_can_read_the_check(repository: Path) -> None:
    for path in sorted((repository / "scripts" / "machine_check").glob("*.py")):
        ast.parse(path.read_text(), feature_version=(3, 8))
        assert "from __future__ import annotations" in path.read_text() or path.name == "__init__.py", path


def test_the_doctor_names_what_agents_need(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    text, _ = doctor(BARE, repository, "none")
    assert "bubblewrap  none; agents need it: bash scripts/setup_bubblewrap.sh" in text
    assert "Chromium    none; gui-rl needs it: bash scripts/setup_chromium.sh" in text
    assert "Xvfb        none; a desktop of gui-rl needs it: bash scripts/setup_desktop.sh" in text
    for name in ("bwrap", "chromium"):
        (tmp_path / name).touch(mode=0o755)
    text, _ = doctor(BARE, repository, "none")
    assert f"bubblewrap  {tmp_path}/bwrap" in text
    assert "Chromium    none" in text, "chromedriver is missing"
    (tmp_path / "chromedriver").touch(mode=0o755)
    assert f"Chromium    {tmp_path}/chromium" in doctor(BARE, repository, "none")[0]


def test_the_scripts_of_agents_are_known(repository: Path) -> None:
    scripts = {str(script) for script in launch_scripts(repository)}
    assert {"toolcall-rl/retool_qwen3_4b_rl.sh", "swe-rl/scripts/run_swe_rl.sh", "gui-rl/run_gui_rl.sh"} <= scripts
    assert not {script for script in scripts if script.endswith("common.sh")}
