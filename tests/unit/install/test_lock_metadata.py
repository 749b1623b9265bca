"""Every pin of both locks against what the installed packages say they need. No network.

The metadata of an installed distribution speaks for a lock that pins the same version; ``scripts/lock.sh --check`` asks the
registry about the others.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import distribution, distributions
from pathlib import Path

import locks
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# What the CPU lock answers differently from what a package asks for, with the reason; cpu_excludes.txt lists what it leaves out.
DIFFERENT = {
    ("cpu", "sglang", "torch"): "no CUDA on a CPU: requirements/cpu_overrides.txt names the build that is tested"
}
ASKED_BY_CUDA_TORCH = "torch's CUDA build"
# Packages the engine imports on a CPU although it does not ask for them, and a module that does so.
UNDECLARED = {"dill": "sglang/srt/sampling/custom_logit_processor.py"}
# The packages whose word the locks were made for; they must be pinned at the version that is installed.
VOICES = {"cpu": ("sglang", "torch", "megatron-core"), "gpu": ("sglang", "megatron-core")}


def linux(python: str) -> dict[str, str]:
    return {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
    }


@cache
def installed() -> dict[str, tuple[str, list[Requirement]]]:
    """Version and requirements of every installed distribution."""
    return {
        str(canonicalize_name(each.metadata["Name"])): (
            each.version,
            [Requirement(text) for text in each.requires or []],
        )
        for each in distributions()
    }


def project_requirements(repository: Path) -> list[Requirement]:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    texts = project["dependencies"] + [
        text for extra in locks.EXTRAS for text in project["optional-dependencies"][extra]
    ]
    return [Requirement(text) for text in texts]


def excluded(repository: Path) -> dict[str, str]:
    """Packages the CPU lock leaves out, with the reason."""
    lines = [line for line in (repository / "requirements/cpu_excludes.txt").read_text().splitlines() if line[0] != "#"]
    return {line.split("#")[0].strip(): line.partition("#")[2].strip() for line in lines}


def speaking(pins: Mapping[str, str]) -> dict[str, list[Requirement]]:
    """Requirements of the installed distributions that the lock pins at the installed version."""
    return {name: needs for name, (version, needs) in installed().items() if pins.get(name) == version}


def violations(pins: Mapping[str, str], python: str, project: list[Requirement]) -> dict[tuple[str, str], str]:
    """Requirements that the pins do not meet, by who asks and what for."""
    asked = {"pyproject.toml": project, **speaking(pins)}
    extras: dict[str, set[str]] = {}
    found: dict[tuple[str, str], str] = {}
    size = -1
    while size != sum(map(len, extras.values())):  # an extra that one package asks for may bring the next
        size = sum(map(len, extras.values()))
        for who, needs in asked.items():
            wanted = ("", *extras.get(who, ()))
            for need in needs:
                if need.marker and not any(need.marker.evaluate({**linux(python), "extra": extra}) for extra in wanted):
                    continue
                name = str(canonicalize_name(need.name))
                extras.setdefault(name, set()).update(need.extras)
                if name not in pins or not need.specifier.contains(pins[name], prereleases=True):
                    found[who, name] = f"{who} needs {need}, the lock has {pins.get(name, 'none')}"
    return found


def unexplained(kind: str, text: str, repository: Path) -> list[str]:
    """Violations of a lock's text that neither table allows."""
    left_out = excluded(repository) if kind == "cpu" else {}
    return [
        message
        for python in locks.PYTHONS
        for (who, name), message in violations(
            locks.read_lock(text, python), python, project_requirements(repository)
        ).items()
        if (kind, who, name) not in DIFFERENT and name not in left_out
    ]


def lock_text(repository: Path, kind: str) -> str:
    return (repository / "requirements" / f"{kind}.txt").read_text()


@pytest.mark.parametrize("kind", locks.LOCKS)
def test_every_pin_meets_what_the_installed_packages_ask_for(repository: Path, kind: str) -> None:
    text = lock_text(repository, kind)
    heard = speaking(locks.read_lock(text, "3.11"))
    assert set(VOICES[kind]) <= set(heard), (
        "the lock pins another version than the environment has; run scripts/setup.sh"
    )
    assert unexplained(kind, text, repository) == []


@pytest.mark.parametrize(
    ("kind", "name", "version"),
    [
        ("gpu", "torch", "2.13.0"),
        ("gpu", "sglang-kernel", "0.4.9"),
        ("gpu", "flashinfer-python", None),
        ("gpu", "numba", "0.65.2"),
        ("gpu", "opencensus", None),
        ("cpu", "tokenizers", "0.23.1"),
        ("cpu", "python-dateutil", "4.0.0"),
        ("cpu", "soundfile", "0.14.0"),
        ("cpu", "sympy", None),
        ("cpu", "uvicorn", "0.50.0"),
    ],
)
def test_a_wrong_or_missing_pin_is_found(repository: Path, kind: str, name: str, version: str | None) -> None:
    text = lock_text(repository, kind)
    right = next(line for line in text.splitlines() if line.startswith(f"{name}=="))
    wrong = text.replace(right + "\n", f"{name}=={version}\n" if version else "")
    assert wrong != text
    assert any(f" {name}" in message.replace("_", "-") for message in unexplained(kind, wrong, repository))


def test_the_cpu_lock_leaves_out_only_what_something_asks_for_and_says_why(repository: Path) -> None:
    left_out = excluded(repository)
    for python in locks.PYTHONS:
        pins = locks.read_lock(lock_text(repository, "cpu"), python)
        asked = {name for _, name in violations(pins, python, project_requirements(repository))}
        assert not set(left_out) & set(pins)
        idle = [name for name, reason in left_out.items() if name not in asked and reason != ASKED_BY_CUDA_TORCH]
        assert not idle, f"nothing asks for {idle}; remove the lines from requirements/cpu_excludes.txt"
    assert all(left_out.values()), "a line of requirements/cpu_excludes.txt has no reason"


def test_the_cpu_lock_has_no_cuda_package_and_a_cpu_build_of_torch(repository: Path) -> None:
    for python in locks.PYTHONS:
        pins = locks.read_lock(lock_text(repository, "cpu"), python)
        assert not [name for name in pins if name.startswith(("nvidia-", "cuda-")) or name.endswith(("-cu12", "-cu13"))]
        assert pins["torch"].endswith("+cpu")


def test_both_locks_agree_where_their_packages_allow(repository: Path) -> None:
    for python in locks.PYTHONS:
        cpu, gpu = (locks.read_lock(lock_text(repository, kind), python) for kind in locks.LOCKS)
        different = {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]}
        assert different == {"torch", "numpy"}  # CUDA build; mistral-common asks for numpy below 2.4
        assert not cpu.keys() - gpu.keys()


def test_every_pin_has_well_formed_hashes(repository: Path) -> None:
    digest = r"( \\\n    --hash=sha256:[0-9a-f]{64})+"
    entry = re.compile(rf'(#.*|[\w.-]+==[\w.+]+( ; python_version == "3\.1[12]")?{digest})\n')
    for path in (repository / "requirements").glob("*.txt"):
        if path.stem != "cpu_excludes":
            rest = entry.sub("", path.read_text())
            assert rest == "", f"{path.name}: {rest[:200]}"


def test_the_cpu_build_of_torch_has_the_hashes_of_its_override(repository: Path) -> None:
    # No registry lists the wheels: for Python 3.11 and 3.12, on x86-64 and arm64.
    cpu, overrides = (locks.read_hashes(lock_text(repository, name)) for name in ("cpu", "cpu_overrides"))
    assert {(name, version): own for (name, version), own in cpu.items() if "+" in version} == overrides
    assert all(len(own) == 4 for own in overrides.values())


def test_every_lock_is_installed_with_its_hashes(repository: Path) -> None:
    scripts = [repository / "Dockerfile", *sorted((repository / "scripts").glob("*.sh"))]
    commands = [
        command
        for path in scripts
        for command in re.findall(
            r"^[^#\n]*(?<!locked_)pip\b.* (?:install|download|\"\$verb\") --.*",
            path.read_text().replace("\\\n", ""),
            re.MULTILINE,
        )
    ]
    # lock.sh, setup.sh (one array for all its calls), and installing.sh for the other scripts
    assert len(commands) == 3
    assert [command for command in commands if not {"--no-deps", "--require-hashes"} <= set(command.split())] == []


def test_no_lock_names_a_package_index(repository: Path) -> None:
    for path in (repository / "requirements").glob("*.txt"):
        assert "://" not in path.read_text(), path
        assert "index-url" not in path.read_text(), path


def test_the_cpu_lock_has_what_the_engine_imports_without_asking(repository: Path) -> None:
    for name, module in UNDECLARED.items():
        sources = Path(str(distribution("sglang").locate_file(module))).read_text()
        assert re.search(rf"^import {name}$", sources, re.MULTILINE), f"{module} no longer imports {name}"
        for python in locks.PYTHONS:
            assert name in locks.read_lock(lock_text(repository, "cpu"), python)
