"""Rules of the house that a machine can check over the whole tree."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

METHOD_FOLDERS = ("openclaw-rl", "openclaw-opd", "openclaw-combine")
LONGEST_PLUGIN = 150
# Names are assembled so that this file does not match itself.
ENDS_BY_NAME = re.compile("|".join([r"\bp" + r"kill\b", r"\bkill" + r"all\b", r"\bray " + r"stop\b"]))


def tracked(repository: Path, *patterns: str) -> list[Path]:
    command = ["git", "-C", str(repository), "ls-files", "-co", "--exclude-standard", "--", *patterns]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [path for line in output.splitlines() if (path := repository / line).is_file()]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_no_process_is_ended_by_name(repository: Path) -> None:
    for path in tracked(repository, "*.py", "*.sh", ".ci/run"):
        match = ENDS_BY_NAME.search(path.read_text())
        assert match is None, f"{path}: {match.group(0)!r} ends processes this run did not start"


def test_no_function_stands_in_two_files(repository: Path) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in tracked(repository, "*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines >= 5:
                    body = ast.unparse(ast.Module(body=node.body, type_ignores=[]))
                    digest = hashlib.sha256(body.encode()).hexdigest()
                    places[digest].append(f"{path.relative_to(repository)}:{node.lineno} {node.name}")
    twins = [where for where in places.values() if len({place.split(":")[0] for place in where}) > 1]
    assert not twins, f"the same function in several files: {twins}"


def test_method_plugins_are_thin(repository: Path) -> None:
    for folder in METHOD_FOLDERS:
        for path in tracked(repository, f"{folder}/*.py"):
            lines = path.read_text().count("\n")
            assert lines <= LONGEST_PLUGIN, f"{path} has {lines} lines; move what is not the method to openclaw/"


def test_core_imports_no_room_above_it(repository: Path) -> None:
    for path in tracked(repository, "slime/*.py"):
        for node in ast.walk(parsed(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            above = [name for name in names if name.split(".")[0] == "openclaw" or name.startswith("openclaw_")]
            assert not above, f"{path}:{node.lineno} imports {above}; the core must not know the runtime"


def test_import_contracts_name_every_plugin_file(repository: Path) -> None:
    """`lint-imports` knows plugin files by name only, because a folder with a dash is no package."""
    plugins = {path.stem for folder in METHOD_FOLDERS for path in tracked(repository, f"{folder}/openclaw_*.py")}
    plugins |= {path.stem for folder in METHOD_FOLDERS for path in tracked(repository, f"{folder}/*_loss.py")}
    settings = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]
    bans = [set(contract.get("forbidden_modules", ())) for contract in settings["contracts"]]
    naming = [ban for ban in bans if "openclaw_combine" in ban]
    assert len(naming) == 2
    for ban in naming:
        assert plugins == ban - {"openclaw", "openclaw_combine"}


def test_the_list_of_rooms_is_the_contract_of_layers(repository: Path) -> None:
    listed = re.findall(r"^\* (.*?): ", (repository / "openclaw" / "__init__.py").read_text(), re.MULTILINE)
    settings = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = [contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers"]
    assert [line.replace("`", "").replace(", ", " | ") for line in listed] == layers


def test_request_path_imports_no_torch(repository: Path) -> None:
    for path in tracked(repository, "openclaw/gateway/*.py", "openclaw/sessions/*.py", "openclaw/engine/*.py"):
        for node in ast.walk(parsed(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            assert not [name for name in names if name.split(".")[0] in ("torch", "ray", "sglang")], path


@pytest.mark.parametrize("pattern", [r"/data_storage", r"/absolute/path", r"\b(TODO|FIX" + r"ME)\b"])
def test_no_path_of_somebody_else_and_nothing_unfinished(repository: Path, pattern: str) -> None:
    for path in tracked(repository, "*.py", "*.sh", "*.md"):
        if path == Path(__file__):
            continue
        assert not re.search(pattern, path.read_text()), f"{path} has {pattern}"


def test_every_module_says_what_it_guarantees(repository: Path) -> None:
    silent = [
        str(path.relative_to(repository))
        for path in tracked(repository, "slime/*.py", "openclaw/*.py", "openclaw-*/*.py", "benchmarks/*.py")
        if path.read_text().count("\n") > 15 and not ast.get_docstring(parsed(path))
    ]
    assert not silent, f"modules without a docstring: {silent}"
