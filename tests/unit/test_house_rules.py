"""Rules of the house that a machine can check over the whole tree."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.syntax import parsed

METHOD_FOLDERS = sorted(path.parent.name for path in Path(__file__).parents[2].glob("openclaw-*/openclaw_*_method.py"))
SMALL_FOLDERS = ("openclaw-sdpo", "openclaw-oel")
"""Methods whose whole folder is as short as a plugin may be."""
MAX_PLUGIN_LENGTH = 150
Function = ast.FunctionDef | ast.AsyncFunctionDef
# Names are assembled so that this file does not match itself.
ENDS_BY_NAME = re.compile("|".join([r"\bp" + r"kill\b", r"\bkill" + r"all\b", r"\bray " + r"stop\b"]))


def tracked(repository: Path, *patterns: str) -> list[Path]:
    command = ["git", "-C", str(repository), "ls-files", "-co", "--exclude-standard", "--", *patterns]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [path for line in output.splitlines() if (path := repository / line).is_file()]


def functions_of(tree: ast.AST) -> Iterator[Function]:
    """Yield every function of a tree, nested ones too; expressions, which hold none, are not visited."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, Function):
            yield node
        yield from functions_of(node)


def test_no_process_is_ended_by_name(repository: Path) -> None:
    for path in tracked(repository, "*.py", "*.sh", ".ci/run"):
        match = ENDS_BY_NAME.search(path.read_text())
        assert match is None, f"{path}: {match.group(0)!r} ends processes this run did not start"


def test_no_function_stands_in_two_files(repository: Path) -> None:
    # Equal bodies have the same kinds of statements and the same last one; only such bodies are compared in full.
    alike: dict[str, list[tuple[str, Function]]] = defaultdict(list)
    for path in tracked(repository, "*.py"):
        for node in functions_of(parsed(path)):
            if (node.end_lineno or node.lineno) - node.lineno + 1 >= 5:
                kinds = " ".join(type(statement).__name__ for statement in node.body)
                alike[kinds + ast.dump(node.body[-1])].append((str(path.relative_to(repository)), node))
    places: dict[str, list[str]] = defaultdict(list)
    for functions in alike.values():
        if len({path for path, _ in functions}) > 1:
            for path, node in functions:
                body = ast.unparse(ast.Module(body=node.body, type_ignores=[]))
                places[body].append(f"{path}:{node.lineno} {node.name}")
    twins = [where for where in places.values() if len({place.split(":")[0] for place in where}) > 1]
    assert not twins, f"the same function in several files: {twins}"


def test_method_plugins_are_thin(repository: Path) -> None:
    for folder in METHOD_FOLDERS:
        for path in tracked(repository, f"{folder}/*.py"):
            lines = path.read_text().count("\n")
            assert lines <= MAX_PLUGIN_LENGTH, f"{path} has {lines} lines; move what is not the method to openclaw/"


def test_a_method_can_be_a_folder_as_short_as_a_plugin(repository: Path) -> None:
    """Counted with docstrings and blank lines; `test_no_room_names_a_method` holds that nothing outside knows them."""
    for folder in SMALL_FOLDERS:
        lines = sum(path.read_text().count("\n") for path in tracked(repository, f"{folder}/*.py"))
        assert 0 < lines < MAX_PLUGIN_LENGTH, f"{folder} has {lines} lines of Python"


CORE = ("slime", "openclaw", "agentrl")
BESIDE_THE_CORE = ("lab", "benchmarks", "tests")


def imported_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of each module that a file imports, wherever the statement is."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module


def test_the_core_imports_no_method_or_agent_folder(repository: Path) -> None:
    """`lint-imports` cannot know these folders: one with a dash in its name is not a package, and a new one needs no line."""
    dropped_in = tracked(repository, ":(glob)*-*/*.py", ":(glob)*-*/*/__init__.py")
    names = {path.parent.name if path.stem == "__init__" else path.stem for path in dropped_in} | {*BESIDE_THE_CORE}
    assert {"combine_loss", "openclaw_opd_method", "terminal_agent", "evaluation"} <= names
    for path in tracked(repository, *(f"{folder}/*.py" for folder in CORE)):
        for line, name in imported_names(path):
            assert name.split(".")[0] not in names, (
                f"{path}:{line} imports {name}; the core knows no method and no agent"
            )


def test_programs_beside_the_core_import_no_room_above_it(repository: Path) -> None:
    """`lint-imports` reads the packages only, not `slime/train.py` and `slime/tools/`."""
    for path in tracked(repository, "slime/*.py"):
        for line, name in imported_names(path):
            above = name.split(".")[0] in ("openclaw", "openclaw_combine", "agentrl")
            assert not above, f"{path}:{line} imports {name}; the core must not know the runtime"


@pytest.mark.parametrize("package", ["agentrl", "openclaw"])
def test_the_list_of_rooms_is_the_contract_of_layers(repository: Path, package: str) -> None:
    listed = re.findall(r"^\* (.*?): ", (repository / package / "__init__.py").read_text(), re.MULTILINE)
    settings = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = [contract["layers"] for contract in settings["contracts"] if contract.get("containers") == [package]]
    assert [line.replace("`", "").replace(", ", " | ") for line in listed] == layers


def rooms_of(layer: str, container: str) -> set[str]:
    """Return the folders and files of one layer, as a page writes them."""
    root = "slime/slime" if container == "slime" else container
    return {f"{root}/{room.strip().replace('.', '/')}" for room in layer.split("|")}


def test_the_page_of_rooms_is_the_contract_of_layers(repository: Path) -> None:
    """Each row of the page is one layer, in the contract's order; the ground follows, then other folders."""
    page = (repository / "instructions" / "architecture.md").read_text()
    table = page.partition("<!-- rooms:begin -->")[2].partition("<!-- rooms:end -->")[0]
    rows = [set(re.findall(r"`([a-z_/]+?)(?:\.py|/)?`", row.split("|")[1])) for row in table.strip().splitlines()[2:]]
    settings = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [
        rooms_of(layer, contract["containers"][0])
        for container in ("openclaw", "slime")
        for contract in settings["contracts"]
        if contract.get("containers") == [container]
        for layer in contract["layers"]
    ]
    assert rows[: len(layers) + 2] == [*layers, {"slime/chat_codec"}, {"slime/groundwork"}]


UNTYPED = {"Any", "Namespace", "argparse.Namespace"}
ARGS = {"args", "self.args", "self._args", "run.args"}
# Their ``args`` are of a program of their own, or of whoever wrote a plugin.
OTHER_ARGUMENTS = (
    "extensions/",
    "lab/",
    "openclaw-test/",
    "tests/helpers/good_plugins.py",
    "tests/helpers/bad_plugins.py",
    "tests/helpers/recording_plugins.py",
)


def called(call: ast.Call) -> str | None:
    """Return the last part of the called name."""
    return getattr(call.func, "id", None) or getattr(call.func, "attr", None)


def second_defaults(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that give an argument of the run another default than its declaration."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or called(node) not in (
            "getattr",
            "hasattr",
            "get",
            "setdefault",
            "__dict__",
        ):
            continue
        name, values = ast.unparse(node.func), [ast.unparse(value) for value in node.args]
        if (
            (name in ("getattr", "hasattr") and values[0] in ARGS and (name == "hasattr" or len(values) == 3))
            or (name.startswith("vars(") and name.endswith((".get", ".setdefault")) and name[5:].split(")")[0] in ARGS)
            or name.removesuffix(".get") in {f"{args}.__dict__" for args in ARGS}
        ):
            yield node.lineno


def untyped_arguments(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of functions whose ``args`` have no type."""
    for node in functions_of(tree):
        for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            if one.arg == "args" and (one.annotation is None or ast.unparse(one.annotation) in UNTYPED):
                yield node.lineno


def test_args_are_typed_and_have_one_default(repository: Path) -> None:
    found = []
    for path in tracked(repository, "*.py"):
        where = path.relative_to(repository).as_posix()
        if where.startswith(OTHER_ARGUMENTS):
            continue
        tree, text = parsed(path), path.read_text()
        if any(word in text for word in ("getattr", "hasattr", "vars", "__dict__")):
            found += [f"{where}:{line}: a second default" for line in second_defaults(tree)]
        if not where.startswith("tests/"):
            found += [f"{where}:{line}: args without a type" for line in untyped_arguments(tree)]
        elif "Namespace(" in text or "Any(" in text:
            made = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) in UNTYPED]
            found += [f"{where}:{node.lineno}: a Namespace made by hand" for node in made]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["getattr(args, 'lr', 1)", "hasattr(self.args, 'lr')", "vars(args).get('lr')"])
def test_a_second_default_is_found(text: str) -> None:
    assert list(second_defaults(ast.parse(text))) == [1]


@pytest.mark.parametrize("pattern", [r"/data_" + "storage", r"/absolute" + "/path", r"\b(TO" + r"DO|FIX" + r"ME)\b"])
def test_no_path_of_somebody_else_and_nothing_unfinished(repository: Path, pattern: str) -> None:
    for path in tracked(repository, "*.py", "*.sh", "*.md"):
        assert not re.search(pattern, path.read_text()), f"{path} has {pattern}"


def test_every_module_says_what_it_guarantees(repository: Path) -> None:
    silent = [
        str(path.relative_to(repository))
        for path in tracked(
            repository, "agentrl/*.py", "slime/*.py", "openclaw/*.py", "openclaw-*/*.py", "benchmarks/*.py"
        )
        if path.read_text().count("\n") > 15 and not ast.get_docstring(parsed(path))
    ]
    assert not silent, f"modules without a docstring: {silent}"


def only_imports(path: Path) -> bool:
    """Whether a module has nothing but imports, beside its docstring, ``__all__`` and the call of a command."""
    rest = [
        node
        for node in parsed(path).body
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr | ast.If)
        and not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    ]
    return not rest and "__all__" in path.read_text()


def test_every_re_export_is_on_the_page(repository: Path) -> None:
    places = [repository / folder for folder in ("slime", "agentrl", "openclaw", "openclaw_combine")]
    files = [path for place in places for path in place.rglob("*.py") if path.name != "__init__.py"]
    ours = [path for path in files if "cpu_standins" not in path.parts]  # those stand in for other packages
    found = {str(path.relative_to(repository)) for path in ours if only_imports(path)}
    page = (repository / "instructions" / "architecture.md").read_text()
    listed = dict(re.findall(r"^\| `([\w/]+\.py)` \| `([\w/]+\.py)` \|$", page, re.MULTILINE))
    assert found == set(listed)
    for path, code in listed.items():
        module = code.removesuffix(".py").removeprefix("slime/").replace("/", ".")
        assert f"from {module} import" in (repository / path).read_text()


SPLITS_A_LOG = {"agentrl/tasks/swe/judge.py"}
"""Files that split a test's log as Python does, and read JSON that is not in it."""
SPLITTERS = {"splitlines", "iter_lines", "aiter_lines"}


def splits_json(tree: ast.AST) -> list[int]:
    """Return the lines of functions that split a text as Python does and read JSON."""
    found = []
    for function in functions_of(tree):
        called = {
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for node in ast.walk(function)
            if isinstance(node, ast.Call)
        } | {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
        if called & SPLITTERS and "loads" in called:
            found.append(function.lineno)
    return found


def test_slow_is_said_of_whole_files(repository: Path) -> None:
    """`tests/run.sh` finds slow files by one line; a slow test of another file would run in no part."""
    mark = "pytest.mark." + "slow"
    for path in tracked(repository, "tests/unit/*.py", "tests/contract/*.py"):
        lines = [line for line in path.read_text().splitlines() if mark in line]
        assert lines in ([], [f"pytestmark = {mark}"]), f"{path}: write `pytestmark = {mark}`, and nothing else of it"


def test_json_lines_end_at_line_feeds_only(repository: Path) -> None:
    # A text in JSON may hold U+2028 and seven other characters at which splitlines() cuts: groundwork.data_rows reads lines.
    for path in tracked(repository, "*.py"):
        name = path.relative_to(repository).as_posix()
        if name.startswith("tests/") or name in SPLITS_A_LOG:
            continue
        text = path.read_text()
        if "loads" in text and any(each in text for each in SPLITTERS):
            assert splits_json(parsed(path)) == [], (
                f"{path}: use groundwork.data_rows.json_objects, or split at newlines"
            )
    assert splits_json(ast.parse("def f(t):\n    return [json.loads(each) for each in t.splitlines()]")) == [1]
    assert splits_json(ast.parse("def f(t):\n    return list(map(json.loads, t.splitlines()))")) == [1]
    assert splits_json(ast.parse("def f(t):\n    return [each.strip() for each in t.splitlines()]")) == []
