"""Task folders in the Harbor layout: read, check and write them.

A folder has ``instruction.md``, ``task.toml``, ``environment/``, ``tests/test.sh`` and, for an oracle,
``solution/solve.sh``. Without an image, ``environment/`` holds the files that the agent finds in its working directory. A
task with an image needs a container provider. Guarantee: a `HarborTask` from `read_task` can run; a folder that cannot
raises an error that says what to mend.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentrl.sandbox.interface import Limits
from agentrl.tasks.links import unlinked
from groundwork.exceptions import ConfigError

if TYPE_CHECKING:
    from agentrl.protocol import Verdict
    from agentrl.tasks.shell.verify import Control, Ran

TEST = "test.sh"
SOLUTION = "solve.sh"
TASK_TOML = "task.toml"
INSTRUCTION = "instruction.md"
OF_AN_IMAGE = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
"""Files that say what an image, or several machines, are made of."""
OF_HARBOR = re.compile(rb"/logs(?![\w.-])|\blogs/verifier\b|\breward\.(txt|json)\b")
"""Where a verifier leaves its reward in Harbor's containers."""
CODE = re.compile(rb"(?:[^\s#'\"]#*|'[^']*'?|\"(?:\\.|[^\"\\])*\"?|\s+(?!#))*")
"""A line up to its comment: a ``#`` at its beginning or behind white space, outside of quotes."""
MOST_MIB, MOST_CPUS = 1 << 24, 1024.0
MAX_BYTES = 8 << 20
"""Most bytes of all files of a task together."""
Files = Mapping[str, "File"]
M = TypeVar("M", bound=BaseModel)
Seconds = Annotated[float, Field(gt=0, le=7200)]
OURS = ("PATH", "HOME", "LANG", "TASK_HOME", "REWARD_FILE", "TRIED")
"""Variables that no task sets: each sandbox, or its verifier, has its own."""


def _checked(variables: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in variables.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ValueError(f"{name!r} is not a name of a variable")
        if name in OURS:
            raise ValueError(f"{name} is set by the sandbox; leave it out")
        if "${" in value:
            raise ValueError(f"{name} asks for a variable of the host, which no sandbox gets; write the value itself")
    return variables


def _image(name: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}", name) is None:
        raise ValueError(f"{name!r} is not a name of an image")
    return name


ImageName = Annotated[str, AfterValidator(_image)]
Variables = Annotated[Mapping[str, str], AfterValidator(_checked)]


@dataclass(frozen=True, slots=True)
class File:
    """Content and mode of a file; its path is the key that leads to it."""

    data: bytes
    mode: int = 0o644


class Stage(BaseModel):
    """The ``[agent]`` or ``[verifier]`` table: how long it may take."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    timeout_sec: Seconds = 600.0


class VerifierStage(Stage):
    """The ``[verifier]`` table: also the variables of its programs, which the agent's do not have."""

    env: Variables = Field(default_factory=dict[str, str])
    environment_mode: str = "shared"

    @field_validator("environment_mode")
    @classmethod
    def _shared(cls, mode: str) -> str:
        if mode != "shared":
            raise ValueError(f"{mode!r} needs a second image, and verifiers run in the agent's; leave the task out")
        return mode


SIZES = {"K": 2**-10, "M": 1, "G": 2**10, "T": 2**20}
"""MiB of the units of older sizes, such as ``memory = "2G"``."""


class Machine(BaseModel):
    """The ``[environment]`` table: image, resources, and the variables of all programs.

    ``memory`` and ``storage`` are older names of sizes. No sandbox has a network, so ``allow_internet`` changes nothing.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)
    docker_image: ImageName | None = None
    cpus: Annotated[float, Field(gt=0, le=MOST_CPUS)] = 1.0
    memory_mb: Annotated[int, Field(gt=0, le=MOST_MIB)] = 512
    storage_mb: Annotated[int, Field(gt=0, le=MOST_MIB)] = 256
    gpus: Annotated[int, Field(ge=0)] = 0
    env: Variables = Field(default_factory=dict[str, str])

    @model_validator(mode="before")
    @classmethod
    def _older_sizes(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        found: dict[str, Any] = {**given}
        for older in ("memory", "storage"):
            if (size := found.pop(older, None)) is not None:
                found.setdefault(f"{older}_mb", _mib(older, size))
        return found

    @field_validator("gpus")
    @classmethod
    def _none(cls, gpus: int) -> int:
        if gpus:
            raise ValueError(f"the task needs {gpus} GPUs, and no sandbox has one; leave the task out")
        return gpus

    @property
    def limits(self) -> Limits:
        """The bounds of a sandbox for this task."""
        return Limits(memory_mib=self.memory_mb, cpus=self.cpus, disk_mib=self.storage_mb)


def _mib(name: str, size: Any) -> int:
    """Return the MiB of a size such as ``2G``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B?", str(size).strip().upper().replace("I", "i"))
    if found is None:
        raise ValueError(f"{name} = {size!r} is not a size; write {name}_mb with a number of MiB")
    return max(1, round(min(float(found[1]), 1e30) * SIZES[found[2]]))


class Settings(BaseModel):
    """What ``task.toml`` says; keys of other programs are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    agent: Stage = Stage()
    verifier: VerifierStage = VerifierStage()
    environment: Machine = Machine()
    steps: Any = None

    @field_validator("steps")
    @classmethod
    def _one(cls, steps: Any) -> Any:
        if steps:
            raise ValueError(f"the task has {len(steps)} steps with a verifier each; write a folder for each")
        return None


Judge: TypeAlias = "Callable[[Files, Ran, Control | None], Verdict]"
"""Gives the verdict on a run of a verifier's files, and of the decoys among them."""


@dataclass(frozen=True, slots=True)
class HarborTask:
    """A task, in memory.

    Attributes:
        name: of the folder.
        instruction: what the agent is told.
        environment: files of the agent's working directory, by path.
        tests: the verifier's files, by path; ``script`` is among them.
        solution: the oracle's files, by path; empty if there is none.
        script: which of the tests is the verifier's program.
        judge: gives the verdict on what the program printed; None if the program writes the reward to a file.
    """

    name: str
    instruction: str
    environment: Files
    tests: Files
    solution: Files = field(default_factory=lambda: MappingProxyType[str, File]({}))
    settings: Settings = field(default_factory=Settings)
    script: str = TEST
    judge: Judge | None = None


def read_task(folder: Path) -> HarborTask:
    """Return the task in a folder.

    Raises:
        ConfigError: something is missing, unreadable or unusable.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; name one with {INSTRUCTION} and {TASK_TOML}")
    instruction = text_of(folder, INSTRUCTION)
    if not instruction.strip():
        raise ConfigError(f"{folder / INSTRUCTION} is empty; say there what the agent has to do")
    settings = read_settings(folder, TASK_TOML, Settings, tomllib.loads, tomllib.TOMLDecodeError, "TOML")
    parts = [files_below(folder, name) for name in ("environment", "tests", "solution")]
    if (size := sum(len(file.data) for part in parts for file in part.values())) > MAX_BYTES:
        raise ConfigError(f"{folder} has {size} bytes of files; at most {MAX_BYTES} are possible, put more in an image")
    environment, tests, solution = parts
    if TEST not in tests:
        raise ConfigError(f"{folder / 'tests' / TEST} is missing; add a verifier that writes the reward")
    if (writer := _writes_elsewhere(tests)) is not None:
        raise ConfigError(
            f"{folder / 'tests' / writer} writes below /logs, which no sandbox has; write the reward to "
            f'"${{REWARD_FILE:-/logs/verifier/reward.txt}}", which Harbor runs as well'
        )
    if solution and SOLUTION not in solution:
        raise ConfigError(f"{folder / 'solution'} has no {SOLUTION}; add it, or remove the folder")
    _check_images(folder, environment, settings)
    return HarborTask(folder.name, instruction, environment, tests, solution, settings)


def _check_images(folder: Path, environment: Files, settings: Settings) -> None:
    """Refuse a task that needs several machines, or an image that has no name.

    Raises:
        ConfigError: says what to do.
    """
    place, needs = folder / "environment", [name for name in OF_AN_IMAGE if name in environment]
    for name in needs:
        if name != "Dockerfile" and (number := len(services_of(folder, f"environment/{name}"))) > 1:
            raise ConfigError(f"{place / name} has {number} services; a sandbox is one machine, so leave the task out")
    if needs and settings.environment.docker_image is None:
        raise ConfigError(
            f"{place} has a {needs[0]}; build it, write the image's name to docker_image in "
            f"[environment] of {TASK_TOML}, and use a container provider"
        )


def services_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the services of a compose file.

    Raises:
        ConfigError: it has none.
    """
    try:
        services = yaml.safe_load(text_of(folder, name))["services"]
        return [dict(service) for service in services.values()]
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{folder / name} has no services: {error}; correct it") from error


def _writes_elsewhere(tests: Files) -> str | None:
    """Return a verifier's file that names Harbor's place of the reward; None if some file asks for ours.

    What a file says in a comment does not count. Of a file that names neither nothing is known, so it may be right.
    """
    said = {path: _without_comments(file.data) for path, file in tests.items()}
    if any(b"REWARD_FILE" in text for text in said.values()):
        return None
    return next((path for path, text in said.items() if OF_HARBOR.search(text)), None)


def _without_comments(text: bytes) -> bytes:
    """Return the text of a program in the shell's language or Python without what stands behind a ``#``."""
    return b"\n".join(CODE.match(line)[0] for line in text.split(b"\n"))  # pyright: ignore[reportOptionalSubscript]


def write_task(task: HarborTask, task_toml: str, folder: Path) -> None:
    """Write a task's folder; `read_task` returns the same task.

    Args:
        task: what to write.
        task_toml: the text of its settings, which a parsed `Settings` no longer has.
        folder: that does not exist yet.

    Raises:
        ConfigError: the folder exists.
    """
    if folder.exists():
        raise ConfigError(f"{folder} exists; remove it or export to another folder")
    folder.mkdir(parents=True)
    (folder / INSTRUCTION).write_text(task.instruction)
    (folder / TASK_TOML).write_text(task_toml)
    for part, files in (("environment", task.environment), ("tests", task.tests), ("solution", task.solution)):
        for name, file in files.items():
            path = folder / part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
            path.chmod(file.mode)


def read_settings(
    folder: Path, name: str, model: type[M], parse: Callable[[str], Any], broken: type[Exception], language: str
) -> M:
    """Return the settings in a task's file.

    Args:
        folder: of the task.
        name: of the file in it.
        model: of the settings.
        parse: reads the file's text; raises ``broken``.
        broken: the text is not in the language.
        language: its name.

    Raises:
        ConfigError: it cannot be read, or a value is wrong.
    """
    path = folder / name
    try:
        return model.model_validate(parse(text_of(folder, name)))
    except broken as error:
        raise ConfigError(f"{path} is not {language}: {error}; correct that place") from error
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise ConfigError(f"{path}: {problems}; correct these values") from error


def text_of(folder: Path, name: str) -> str:
    """Return the text of a task's file, without a byte order mark.

    Raises:
        ConfigError: there is none, it is not text, or a symbolic link leads to it.
    """
    path = folder / name
    try:
        return unlinked(folder, path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing; a task folder needs it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; it has to be a file with UTF-8 text") from error


def files_below(folder: Path, name: str = ".") -> Files:
    """Return the files below a folder of a task; none if there is no such folder.

    Raises:
        ConfigError: something in it is not a plain file, or unreadable.
    """
    found: dict[str, File] = {}
    below = unlinked(folder, folder / name)
    for path in sorted(below.rglob("*")):
        if unlinked(below, path).is_dir():
            continue
        if not path.is_file():
            raise ConfigError(f"{path} is not a plain file; remove it")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}; mend its permissions") from error
        found[path.relative_to(below).as_posix()] = File(data, path.stat().st_mode & 0o777)
    return MappingProxyType(found)
