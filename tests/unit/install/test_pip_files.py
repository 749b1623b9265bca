"""``pip install -r requirements.txt`` and ``pip install -e .``, as guides type them: the files lead to one lock and one declaration.

Nothing is installed here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import locks
import pytest
from packaging.requirements import Requirement

from openclaw.launch.methods import methods_of
from openclaw.launch.task import task_folders

GUARDS = "this-project-needs-"
LINUX = {"sys_platform": "linux", "platform_machine": "x86_64", "python_version": "3.11"}


def lines_of(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if line and not line.startswith("#")]


def guards(repository: Path) -> list[Requirement]:
    return [Requirement(line) for line in lines_of(repository / "requirements.txt") if line.startswith(GUARDS)]


def test_the_file_has_the_lock_of_gpus_and_no_version_of_its_own(repository: Path) -> None:
    lines = lines_of(repository / "requirements.txt")
    others = [line for line in lines if not line.startswith(GUARDS)]
    assert others == ["--only-binary :all:", "-c requirements/gpu.txt", "-r requirements/gpu.txt"]
    assert lines.index("-r requirements/gpu.txt") == len(lines) - 1, (
        "pip takes the lines in order: the guards come first"
    )
    assert not any(requirement.specifier for requirement in guards(repository))


@pytest.mark.parametrize("folder", ["slime", "openclaw-test"])
def test_a_folder_of_the_project_has_the_same(repository: Path, folder: str) -> None:
    assert lines_of(repository / folder / "requirements.txt") == ["-r ../requirements.txt"]


def test_every_method_and_agent_folder_has_the_same(repository: Path) -> None:
    folders = {method.folder for method in methods_of()} | set(task_folders())
    assert len(folders) >= 10
    for folder in folders:
        assert lines_of(folder / "requirements.txt") == ["-r ../requirements.txt"], folder


@pytest.mark.parametrize("python", locks.PYTHONS)
def test_pip_goes_on_where_the_lock_fits(repository: Path, python: str) -> None:
    fits = {**LINUX, "python_version": python}
    assert [str(item) for item in guards(repository) if item.marker is None or item.marker.evaluate(fits)] == []


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"python_version": "3.8"}, "python-3.11-or-3.12"),
        ({"python_version": "3.10"}, "python-3.11-or-3.12"),
        ({"python_version": "3.13"}, "python-3.11-or-3.12"),
        ({"sys_platform": "darwin"}, "linux-on-x86-64"),
        ({"platform_machine": "aarch64"}, "linux-on-x86-64"),
    ],
)
def test_pip_stops_elsewhere_at_a_name_that_says_why_and_asks_no_registry_for_it(
    repository: Path, other: dict[str, str], named: str
) -> None:
    [stops] = [item for item in guards(repository) if item.marker and item.marker.evaluate({**LINUX, **other})]
    assert stops.name == GUARDS + named
    assert stops.url == f"file:///{stops.name}"
    assert not Path(f"/{stops.name}").exists()


@cache
def declared(folder: Path) -> dict[str, Any]:
    """Return what the ``setup.py`` of a folder gives its package."""
    code = (
        "import json, setuptools, distutils.core as core\n"
        "made = core.run_setup('setup.py', stop_after='commandline')\n"
        "given = made.metadata.version, str(made.python_requires), made.install_requires, made.extras_require\n"
        "print(json.dumps([made.metadata.name, sorted(made.packages or []), *given]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    keys = ("name", "packages", "version", "python", "requirements", "extras")
    return dict(zip(keys, json.loads(done.stdout.splitlines()[-1]), strict=True))


def test_the_core_is_a_package_with_the_requirements_of_the_project(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    made = declared(repository / "slime")
    assert made["name"] == "slime"
    assert {name.split(".")[0] for name in made["packages"]} == {"slime", "groundwork", "chat_codec"}
    assert (made["version"], made["python"]) == (project["version"], project["requires-python"])
    assert set(made["requirements"]) == {*project["dependencies"], *extras["train"]}
    assert set(made["extras"]) == {"serve", "megatron", "tracking"}
    for name, requirements in made["extras"].items():
        assert set(requirements) == set(extras[name])


@pytest.fixture(scope="module")
def installed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the folders' names, and `site-packages` in it, where ``pip install -e slime`` put its files."""
    tmp_path = tmp_path_factory.mktemp("repository")
    shutil.copy(repository / "pyproject.toml", tmp_path)
    (tmp_path / "slime" / "scripts").mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "scripts/openclaw-rl"):
        shutil.copy(repository / "slime" / name, tmp_path / "slime" / name)
    (tmp_path / "openclaw").mkdir()
    (tmp_path / "openclaw" / "__main__.py").write_text("import sys\ndef main(): return ' '.join(sys.argv[1:])\n")
    for name in ("slime", "groundwork", "chat_codec"):
        (tmp_path / "slime" / name).mkdir()
        (tmp_path / "slime" / name / "__init__.py").touch()
    build = "import sys; from setuptools.build_meta import build_editable; build_editable(sys.argv[1])"
    command = [sys.executable, "-c", build, str(tmp_path)]
    subprocess.run(command, cwd=tmp_path / "slime", capture_output=True, text=True, check=True)
    [wheel] = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site-packages")
    return tmp_path


def in_environment(installed: Path, code: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run code in an environment that has nothing but the installed files."""
    start = "import site, sys; site.addsitedir(sys.argv.pop(1)); "
    command = [sys.executable, "-S", "-c", start + code, str(installed / "site-packages"), *words]
    return subprocess.run(command, cwd=cwd, env={}, capture_output=True, text=True, check=False)


def test_the_core_is_found_from_the_repository_whose_folder_has_its_name(installed: Path) -> None:
    """Python looks in the working directory first, and there `slime` is a folder without code of the package."""
    done = in_environment(installed, "import slime, groundwork, chat_codec; print(slime.__file__)", cwd=installed)
    assert Path(done.stdout.strip()) == installed / "slime" / "slime" / "__init__.py"


def test_the_command_of_the_project_works_in_every_folder(installed: Path, tmp_path: Path) -> None:
    [script] = (installed / "site-packages").glob("*.data/scripts/openclaw-rl")
    assert script.read_text().startswith("#!python"), "for which pip writes the environment's own"
    done = in_environment(installed, "import runpy; runpy.run_path(sys.argv[1])", str(script), cwd=tmp_path)
    assert done.stderr == str(script) + "\n", "sys.exit prints what main returned"


def test_the_core_requires_nothing_that_the_cpu_environment_lacks(repository: Path) -> None:
    """Else ``pip install -e .`` would bring CUDA into it: the engine asks for another build of torch."""
    for python in locks.PYTHONS:
        pins = locks.read_lock((repository / "requirements" / "cpu.txt").read_text(), python)
        for requirement in map(Requirement, declared(repository / "slime")["requirements"]):
            assert requirement.name != "sglang"
            assert requirement.specifier.contains(pins[locks.canonical(requirement.name)].split("+")[0]), requirement


def test_megatron_is_the_release_of_the_project(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    made = declared(repository / "Megatron-LM")
    assert (made["packages"], made["requirements"]) == ([], project["optional-dependencies"]["megatron"])
