"""Finds a launch's method and its folder's declaration (`openclaw.config.method_config.MethodConfig`).

Guarantees: this file knows no method by name. The repository's methods are the folders ``openclaw-*`` whose module
``openclaw_*_method.py`` has a ``Config``. Any other folder is given by path, ``--method ../openclaw-mymethod``. A folder
without a declaration runs with its script's flags. An invalid declaration is a `ConfigError`.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlparse

from groundwork.command_line import nearest, nearest_path
from groundwork.exceptions import ConfigError
from groundwork.variables import Value
from openclaw.config.method_config import MethodConfig, declared_configs
from openclaw.config.runtime_variables import VARIABLES
from openclaw.launch.profiles import PROFILES
from openclaw.launch.variables import LAUNCH_VARIABLES
from openclaw.method.loading import raised
from slime.arguments.checkpoint import in_rays_copy

logger = logging.getLogger(__name__)

REPOSITORY = Path(__file__).resolve().parents[2]
EDITABLE = ("openclaw-rl", "slime")
"""Distributions of this repository, whose folders are it or in it."""


def home_of(repository: Path) -> Path:
    """Return the folder with the ``models/`` and ``runs/`` of launches: the repository.

    ``ray job submit --working-dir .`` makes a copy of it, without models, and deletes that after the job. There it is the
    repository of the environment: the one around ``.venv``, or the one that pip installed with ``-e``.
    """
    if not in_rays_copy(repository):
        return repository
    urls = [url for name in EDITABLE if (url := _installed_from(name))]
    places = [Path(sys.prefix).parent, *urls, *(url.parent for url in urls)]
    return next((place for place in places if (place / "openclaw" / "launch").is_dir()), repository)


def _installed_from(name: str) -> Path | None:
    """Return the folder that pip installed a distribution from; None if it was no folder."""
    try:
        text = metadata.distribution(name).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    url = urlparse(json.loads(text)["url"]) if text else None
    return Path(unquote(url.path)) if url and url.scheme == "file" else None


HOME = home_of(REPOSITORY)
LAUNCH_NAMES = frozenset(item.name for item in LAUNCH_VARIABLES)


class Undeclared(MethodConfig):
    """The configuration of a folder that declares nothing; its script gives the flags."""

    name = ""
    defaults = {"PRM_M": 1}
    profile_defaults = {}
    has_environments = True

    def launch_flags(self) -> Sequence[str]:
        """Return nothing."""
        return ()


@dataclass(frozen=True)
class FoundMethod:
    """A method and its folder; the folder's main method is ``Config``, others are variants of it."""

    folder: Path
    config: type[MethodConfig]
    variant: bool = False

    @property
    def declared(self) -> bool:
        """Whether the folder declares the method."""
        return self.config is not Undeclared

    def runtime_defaults(self, profile: str, environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return defaults of the runtime process's variables: for all profiles, and for this profile.

        Variables that ``environment`` sets under any of their names are left out.
        """
        given = {item.name for item in (*VARIABLES, *self.config.variables()) if item.is_set(environment)}
        of_profile = self.config.profile_defaults.get(profile, {})
        return _for_runtime(self.config.defaults, given), _for_runtime(of_profile, given)


def _for_runtime(defaults: Mapping[str, Value], given: Collection[str]) -> dict[str, str]:
    """Return the defaults, as text, of variables that are neither the launcher's nor ``given``."""
    left_out = {*LAUNCH_NAMES, *given}
    return {name: str(value) for name, value in defaults.items() if name not in left_out and value is not None}


def method_file(folder: Path) -> Path:
    """Return the path of a folder's declaration: ``openclaw-mymethod/openclaw_mymethod_method.py``."""
    return folder / f"{folder.name.replace('-', '_')}_method.py"


def declared_in(folder: Path) -> list[FoundMethod]:
    """Return the methods that a folder declares, the main one first; empty if none.

    Raises:
        ConfigError: if its module cannot be imported, or a declaration is invalid.
    """
    file = method_file(folder)
    if not file.is_file():
        return []
    configs = declared_configs(imported(file))
    if problems := [problem for config in configs for problem in declaration_problems(file, config)]:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return [FoundMethod(folder, config, variant=number > 0) for number, config in enumerate(configs)]


def imported(file: Path) -> ModuleType:
    """Import a module by file, under the name that it has with its folder on the import path.

    Raises:
        ConfigError: if it cannot be imported.
    """
    known = sys.modules.get(file.stem)
    if known is not None and known.__file__ and Path(known.__file__).resolve() == file.resolve():
        return known
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} cannot be imported")
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[file.stem]
        if isinstance(error, ConfigError) or not isinstance(error, Exception):
            raise
        raise ConfigError(f"{file} cannot be imported: {raised(error)}") from error
    finally:
        sys.path.remove(str(file.parent))
    return module


@contextmanager
def import_paths(folders: Sequence[str]) -> Iterator[None]:
    """Import from ``folders`` first, during the block."""
    before = list(sys.path)
    sys.path[:0] = folders
    try:
        yield
    finally:
        sys.path[:] = before


def declaration_problems(file: Path, config: type[MethodConfig]) -> Iterator[str]:
    """Yield duplicate variables, unknown profiles, and defaults of unknown variables or bad values."""
    taken = {name for item in (*LAUNCH_VARIABLES, *VARIABLES) for name in item.names}
    for variable in config.variables():
        if again := taken.intersection(variable.names):
            yield f"{file}: {', '.join(sorted(again))} is already declared; choose another name"
        taken.update(variable.names)
    known = {item.name: item for item in (*LAUNCH_VARIABLES, *VARIABLES, *config.variables())}
    if unknown := config.profile_defaults.keys() - PROFILES.keys():
        yield f"{file}: unknown profile {', '.join(sorted(unknown))}; use {', '.join(sorted(PROFILES))}"
    for defaults in (config.defaults, *config.profile_defaults.values()):
        for name, value in defaults.items():
            if name not in known:
                yield f"{file}: default for the unknown variable {name}; declare it in Config"
            elif value is not None:
                try:
                    known[name].parse(str(value), f"{file}: {name}")
                except ConfigError as error:
                    yield str(error)


@cache
def methods_of(repository: Path = REPOSITORY) -> tuple[FoundMethod, ...]:
    """Return the repository's methods in order of their folders; skip a broken folder with a warning."""
    found_methods: list[FoundMethod] = []
    for folder in sorted(repository.glob("openclaw-*")):
        try:
            found_methods += declared_in(folder)
        except ConfigError as error:
            logger.warning("skipped a method: %s", error)
    return tuple(found_methods)


def recommended(repository: Path = REPOSITORY) -> FoundMethod:
    """Return the default method of a command."""
    methods = methods_of(repository)
    return next((method for method in methods if method.config.recommended and not method.variant), methods[0])


def demo_command(*words: str, repository: Path = REPOSITORY) -> str:
    """Return the command that starts the tiny model on a CPU, with further words; without a clone, the one that gets there."""
    if not methods_of(repository):
        return "openclaw-rl init"
    return " ".join(["bash", f"{recommended(repository).folder.name}/run_tiny_cpu.sh", *words])


def find_method(name: str, repository: Path = REPOSITORY) -> FoundMethod:
    """Return a method of the repository by name, or another folder's method by path.

    Raises:
        ConfigError: if there is neither, or the folder's declaration is unusable.
    """
    for method in methods_of(repository):
        if method.config.name == name:
            return method
    folder = find_folder(name, repository)
    declared = declared_in(folder)
    return declared[0] if declared else FoundMethod(folder, Undeclared)


def find_folder(name: str, repository: Path = REPOSITORY) -> Path:
    """Return the folder of a method of the repository by name, or a folder by path.

    Raises:
        ConfigError: if there is neither.
    """
    by_name = repository / f"openclaw-{name}"
    folders = [method.folder for method in methods_of(repository) if method.config.name == name]
    for folder in (*folders, Path(name), repository / name, *([by_name] if method_file(by_name).is_file() else [])):
        if folder.is_dir():
            return folder.resolve()
    names = sorted(item.config.name for item in methods_of(repository))
    near = nearest(name, names) or nearest_path(name)
    raise ConfigError(f"--method {name}: use {', '.join(names)}, or the path of a method folder{near}")
