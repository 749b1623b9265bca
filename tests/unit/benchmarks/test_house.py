"""Each counter of `benchmarks.house` counts what its docstring says, on small made-up trees."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import house
from benchmarks.house_parts import kinds, sizes
from benchmarks.house_parts.imports import Imports
from benchmarks.house_parts.remote_calls import calls_by_string
from benchmarks.house_parts.slices import MIN_METHODS, Slices
from benchmarks.house_parts.tree import Tree


def checkout(root: Path, files: dict[str, str]) -> Tree:
    """Write ``files`` and return the tree that they are."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(root)


# Tree


def test_files_below_a_folder_tests_are_tests_and_all_other_python_is_the_product(tmp_path: Path) -> None:
    tree = checkout(
        tmp_path,
        {
            "tests/unit/test_a.py": "1\n2\n",
            "package/tests/helpers.py": "3\n",
            "package/tests.py": "4\n5\n6\n7\n",
            "package/notes.md": "no Python\n",
            ".venv/library.py": "8\n",
        },
    )
    assert list(tree.modules) == ["package/tests.py"]
    assert tree.modules["package/tests.py"].lines == 4
    assert tree.test_lines == 3


def test_with_git_an_ignored_file_does_not_count_and_a_new_one_does(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    tree = checkout(tmp_path, {".gitignore": "built.py\n", "built.py": "", "new.py": "", ".ci/check.py": ""})
    assert list(tree.modules) == [".ci/check.py", "new.py"]


def test_a_link_does_not_count(tmp_path: Path) -> None:
    tree = checkout(tmp_path, {"a.py": ""})
    (tmp_path / "again.py").symlink_to("a.py")
    assert list(tree.modules) == ["a.py"]


# Imports


@pytest.mark.parametrize(
    "text",
    [
        "import package.target",
        "import package.target as other",
        "from package import target",
        "from package.target import name",
        "from package.target import *",
        "from . import target",
        "from .target import name",
        "from ..package.target import name",
        "def late():\n    from .target import name",
        "if condition:\n    import package.target",
        "try:\n    import package.target\nexcept ImportError:\n    pass",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.target import name",
    ],
)
def test_every_import_statement_makes_an_importer(tmp_path: Path, text: str) -> None:
    files = {"package/__init__.py": "", "package/target.py": "name = 1", "package/user.py": text}
    assert Imports(checkout(tmp_path, files)).edges == {("package/user.py", "package/target.py")}


@pytest.mark.parametrize(
    "text",
    [
        "importlib.import_module('package.target')",
        "load_function('package.target.name')",
        "import target",
        "from elsewhere import target",
        "from .. import target",
    ],
)
def test_a_name_in_a_string_and_a_module_of_the_same_name_elsewhere_are_no_import(tmp_path: Path, text: str) -> None:
    files = {"package/__init__.py": "", "package/target.py": "", "package/user.py": text}
    assert Imports(checkout(tmp_path, files)).edges == set()


def test_a_name_that_a_package_passes_on_leads_to_the_module_that_defines_it(tmp_path: Path) -> None:
    tree = checkout(
        tmp_path,
        {
            "package/__init__.py": "from package.inner import Thing as Face\nOWN = 1\n__all__ = ['Face']",
            "package/inner/__init__.py": "from .thing import Thing",
            "package/inner/thing.py": "class Thing: ...",
            "user.py": "from package import OWN, Face",
        },
    )
    imports = Imports(tree)
    assert imports.edges == {("user.py", "package/inner/thing.py"), ("user.py", "package/__init__.py")}
    assert imports.with_one_importer() == ["package/inner/thing.py"]


def test_a_package_file_that_uses_a_name_is_an_importer_and_a_face_of_the_module(tmp_path: Path) -> None:
    tree = checkout(
        tmp_path,
        {"package/__init__.py": "from .inner import make\nTHING = make()", "package/inner.py": "def make(): ..."},
    )
    assert Imports(tree).with_one_importer() == ["package/inner.py"]
    assert Imports(tree).with_one_importer_in_package() == []


def test_two_packages_that_import_each_other_end(tmp_path: Path) -> None:
    tree = checkout(
        tmp_path, {"a/__init__.py": "from b import x", "b/__init__.py": "from a import x", "c.py": "from a import x"}
    )
    assert {importer for importer, _ in Imports(tree).edges} == {"c.py"}


def test_modules_with_one_importer(tmp_path: Path) -> None:
    tree = checkout(
        tmp_path,
        {
            "package/alone.py": "",
            "package/alone_user.py": "import package.alone\ndef f():\n    from package import alone",
            "package/two.py": "import package.two",
            "package/two_user.py": "import package.two",
            "other/user.py": "import package.two, package.away",
            "package/away.py": "",
            "package/tested.py": "",
            "tests/test_tested.py": "import package.tested",
        },
    )
    assert Imports(tree).with_one_importer() == ["package/alone.py", "package/away.py"]
    assert Imports(tree).with_one_importer_in_package() == ["package/alone.py"]


def test_the_import_path_is_that_of_pytest_and_the_deeper_folder_wins(tmp_path: Path) -> None:
    tree = checkout(
        tmp_path,
        {
            "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["agent-rl", "agent-rl/data"]',
            "agent-rl/task.py": "",
            "agent-rl/data/rows.py": "",
            "agent-rl/rows.py": "",
            "user.py": "import task, rows",
        },
    )
    assert Imports(tree).edges == {("user.py", "agent-rl/task.py"), ("user.py", "agent-rl/data/rows.py")}


# Remote calls by string

MANAGER = """
class Manager:
    def save(self): ...
    def load(self): ...
"""
RUN = """
class Run:
    def _ask(self, method: str, *arguments):
        return getattr(self.manager, method).remote(*arguments)

    def _patiently(self, *, seconds, method: str):
        return self._ask(method)
"""


def remote_calls(root: Path, caller: str, *, folder: str = "core") -> list[str]:
    """Return the calls by string in ``caller``, beside a manager and a run in ``core``; without path and line."""
    files = {"core/manager.py": MANAGER, "core/run.py": RUN, f"{folder}/caller.py": caller}
    return [place.split(" ", 1)[1] for place in calls_by_string(checkout(root, files).modules.values())]


@pytest.mark.parametrize(
    ("call", "counted"),
    [
        ("getattr(handle, 'save').remote(1)", ["save"]),
        ("getattr(handle, told[0]).remote(1)", ["told[0]"]),
        ("run._ask('save')", ["save"]),
        ("run._ask(method='save')", ["save"]),
        ("run._ask('save' if here else 'load')", ["load|save"]),
        ("run._patiently(seconds=1, method='load')", ["load"]),
        ("[run._ask('save') for run in runs]", ["save"]),
        ("later(lambda: run._ask('save'))", ["save"]),
        ("run._ask('save'), run._ask('save')", ["save", "save"]),
        ("handle.save.remote()", []),
        ("getattr(handle, 'save')()", []),
        ("run._ask('How are you?')", []),
        ("run._ask('unknown_method')", []),
        ("run._ask(found)", []),
        ("run.gather('save', references)", []),
        ("'run._ask(save)'", []),
    ],
)
def test_a_call_by_string_counts_once_per_place(tmp_path: Path, call: str, counted: list[str]) -> None:
    assert remote_calls(tmp_path, f"def caller():\n    {call}\n") == counted


def test_a_function_of_the_same_name_in_another_top_folder_is_no_relay(tmp_path: Path) -> None:
    caller = MANAGER + "def caller(talk):\n    talk._ask('save')\n"
    assert remote_calls(tmp_path, caller, folder="talks") == []


def test_a_class_is_a_relay_through_its_init_and_counts_variables_too(tmp_path: Path) -> None:
    caller = """
class Calls:
    def __init__(self, handles: list, method: str):
        self.futures = [getattr(handle, method).remote() for handle in handles]

def caller(handles, farewell):
    Calls(handles, "save")
    Calls(handles, method="load")
    for method, arguments in farewell:
        Calls(handles, method)
"""
    assert remote_calls(tmp_path, caller) == ["save", "load", "method"]


def test_a_parameter_that_holds_no_text_makes_no_relay(tmp_path: Path) -> None:
    caller = "def hand_over(request: Request):\n    run._ask(request)\ndef caller():\n    hand_over('save')\n"
    assert remote_calls(tmp_path, caller) == []


def test_a_call_by_string_is_reported_with_its_place(tmp_path: Path) -> None:
    tree = checkout(tmp_path, {"core/a.py": "def f(h):\n    getattr(h, 'save').remote()\n", "core/b.py": MANAGER})
    assert calls_by_string(tree.modules.values()) == ["core/a.py:2 save"]


# Objects in slices


def class_of(name: str, bases: str = "", *, methods: int = MIN_METHODS // 3, body: str = "return 1") -> str:
    """Return a class with ``methods`` methods of its own names."""
    lines = [f"    def {name.lower()}_{number}(self):\n        {body}" for number in range(methods)]
    return "\n".join([f"class {name}({bases}):", *lines, "    pass\n"])


def objects(root: Path, files: dict[str, str]) -> list[str]:
    """Return the objects in slices of ``files``."""
    tree = checkout(root, files)
    return [one.described() for one in Slices(tree, Imports(tree)).objects()]


def test_a_large_class_over_three_files_is_one_object_whether_in_a_line_or_of_several_bases(tmp_path: Path) -> None:
    files = {
        "a.py": class_of("Core"),
        "b.py": "from a import Core\n" + class_of("Start", "Core"),
        "c.py": "from b import Start\n" + class_of("Run", "Start"),
        "ledger/turns.py": class_of("Turns", methods=MIN_METHODS),
        "ledger/samples.py": class_of("Samples"),
        "ledger/views.py": class_of("Views"),
        "ledger/store.py": (
            "from .samples import Samples\nfrom .turns import Turns\nfrom .views import Views\n"
            "class Ledger(Turns, Samples, Views): ...\n"
        ),
    }
    assert objects(tmp_path, files) == ["Ledger (3 classes): Turns < Samples < Views", "Run (3 classes): Start < Core"]


def test_endings_with_a_common_base_are_one_object(tmp_path: Path) -> None:
    files = {
        "rank.py": class_of("Rank"),
        "actor.py": "from rank import Rank\n" + class_of("Actor", "Rank"),
        "one.py": "from actor import Actor\n" + class_of("One", "Actor"),
        "two.py": "from actor import Actor\n" + class_of("Two", "Actor"),
    }
    assert objects(tmp_path, files) == ["One / Two (4 classes): Actor < Rank / Actor < Rank"]


@pytest.mark.parametrize(
    ("core", "start"),
    [
        (class_of("Core", methods=1), class_of("Start", "Core", methods=1)),
        (class_of("Core", "Protocol"), class_of("Start", "Core")),
        (class_of("Core", body="..."), class_of("Start", "Core", methods=MIN_METHODS)),
        (class_of("Core", body="raise NotImplementedError"), class_of("Start", "Core", methods=MIN_METHODS)),
        (class_of("Core", "Exception"), class_of("Start", "Core")),
        (class_of("Core"), class_of("Start", "library.Core", methods=MIN_METHODS)),
    ],
    ids=["few methods", "protocol", "empty methods", "not implemented", "exception", "base of a library"],
)
def test_these_are_no_slices(tmp_path: Path, core: str, start: str) -> None:
    files = {
        "a.py": core,
        "b.py": "from a import Core\n" + start,
        "c.py": "from b import Start\n" + class_of("Run", "Start"),
    }
    assert objects(tmp_path, files) == []


def test_a_class_over_two_files_is_no_object_in_slices(tmp_path: Path) -> None:
    core = class_of("Core", methods=MIN_METHODS) + class_of("Start", "Core")
    assert objects(tmp_path, {"a.py": core, "b.py": "from a import Start\n" + class_of("Run", "Start")}) == []


# Sizes


def test_exceptions_of_all_contracts_count_and_comments_do_not(tmp_path: Path) -> None:
    text = """
[[tool.importlinter.contracts]]
name = "one"
ignore_imports = [
    # Why.
    "a -> b",
    "a.* -> c.**",
]
[[tool.importlinter.contracts]]
name = "without exceptions"
[[tool.importlinter.contracts]]
name = "two"
ignore_imports = ["d -> e"]
"""
    assert sizes.contract_exceptions(checkout(tmp_path, {"pyproject.toml": text}).project) == 3
    assert sizes.contract_exceptions({}) == 0


def test_a_definition_is_a_class_or_a_type_and_not_another_name_for_one(tmp_path: Path) -> None:
    tree = checkout(
        tmp_path,
        {
            "a.py": "Message = dict[str, Any]",
            "b.py": "class Message(TypedDict): ...",
            "c.py": "\nMessage: TypeAlias = dict[str, Any]",
            "d.py": "from a import Message",
            "e.py": "import a\nMessage = a.Message",
            "f.py": "def f():\n    Message = dict()\nmessage = 1\nMessages = list[Message]",
            "tests/g.py": "Message = dict[str, Any]",
        },
    )
    assert sizes.definitions(tree.modules.values(), ["Message"]) == ["a.py:1", "b.py:1", "c.py:2"]


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("openclaw/launch/plan.py", True),
        ("slime/slime/arguments/memory/parts.py", True),
        ("some-rl/some_launch.py", True),
        ("some-rl/some_config.py", True),
        ("slime/groundwork/variables.py", True),
        ("openclaw/relaunch.py", False),
        ("openclaw/launches.py", False),
        ("openclaw/gateway/server.py", False),
        ("benchmarks/config/sides.py", False),
        ("openclaw-test/launch/demo.py", False),
    ],
)
def test_launch_code_is_told_by_folder_and_name(path: str, counts: bool) -> None:
    assert sizes.is_launch_code(path) is counts


def test_pages_are_markdown_in_instructions_without_the_reference(tmp_path: Path) -> None:
    tree = checkout(
        tmp_path,
        {
            "README.md": "not this",
            "instructions/README.md": "# Two words",
            "instructions/deep/page.md": "one",
            "instructions/picture.svg": "no",
            "instructions/reference/flags.md": "generated",
        },
    )
    assert sizes.pages(tree) == ["instructions/README.md", "instructions/deep/page.md"]
    assert sizes.words(tree, sizes.pages(tree)) == 4


# Kinds of lines


def test_each_line_has_one_kind(tmp_path: Path) -> None:
    text = '''"""Explained.

In two paragraphs.
"""

import a
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import b

# noted
TABLE = {
    "a": 1,
}


class Thing:
    field: int = 0

    def act(self, parser):
        """Act."""
        parser.add_argument(
            "--flag",
        )
        import c

        return a.b(c)
'''
    module = checkout(tmp_path, {"a.py": text}).modules["a.py"]
    assert kinds.kinds_of(module) == {"docs": 6, "imports": 5, "data": 7, "code": 3, "blank": 7}


def test_lines_add_up_to_parts_and_launch_code_is_one_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"a/b/c.py": "f()\n", "a/d.py": "X = 1\n\n", "a/launch/e.py": "import a\n", "g.py": ""}
    parts = kinds.by_part(checkout(tmp_path, files).modules.values(), 1)
    assert parts == {
        "a": {"modules": 2, "code": 1, "data": 1, "blank": 1},
        kinds.LAUNCH: {"modules": 1, "imports": 1},
        ".": {"modules": 1},
    }
    assert house.main(["--root", str(tmp_path), "--lines", "2"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["modules", "lines", *kinds.KINDS]
    assert rows[-1].split() == ["all", "4", "4", "1", "1", "0", "1", "1"]


# The command


def test_the_command_counts_another_checkout_and_takes_the_ways_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, ways, out = tmp_path / "old", tmp_path / "paths.json", tmp_path / "r.json"
    checkout(root, {"a.py": "import b\n", "b.py": "1\n2\n3\n", "tests/test_a.py": "1\n"})
    ways.write_text(json.dumps({"request": {"modules": 59, "functions": 9, "hops": []}}))
    assert house.main(["--root", str(root), "--paths", str(ways), "--json", str(out)]) == 0
    written = json.loads(out.read_text())
    figures = written["figures"]
    assert (figures["product_lines"], figures["test_lines"], figures["modules"]) == (4, 1, 2)
    assert (figures["median_lines"], figures["longest_lines"], figures["request_modules"]) == (2, 3, 59)
    assert written["places"]["one_importer_in_package"] == ["b.py"]
    assert written["commit"] is None
    printed = capsys.readouterr().out
    assert all(name in printed for name in figures)


def test_the_command_lists_the_places_behind_a_counter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkout(tmp_path, {"a.py": "import b\n", "b.py": ""})
    assert house.main(["--root", str(tmp_path), "--list", "one_importer"]) == 0
    assert capsys.readouterr().out == "b.py\n"


@pytest.mark.parametrize(
    ("files", "arguments", "message"),
    [
        ({"a.txt": ""}, [], "holds no Python file outside tests"),
        ({"a.py": "def"}, [], "invalid syntax"),
        ({"a.py": ""}, ["--list", "modules"], "modules has no places"),
        ({"a.py": "", "r.json": "[]"}, ["--paths", "r.json"], "write it with benchmarks.paths --json"),
        ({"a.py": "", "r.json": "{"}, ["--paths", "r.json"], "write it with benchmarks.paths --json"),
        ({"a.py": ""}, ["--paths", "none.json"], "cannot read none.json"),
    ],
)
def test_what_cannot_be_counted_is_refused_with_a_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    files: dict[str, str],
    arguments: list[str],
    message: str,
) -> None:
    checkout(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        house.main(["--root", str(tmp_path), *arguments])
    assert message in capsys.readouterr().err


def test_the_commit_tells_whether_files_differ_from_it(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.com"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    checkout(tmp_path, {"a.py": ""})
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    commit = house.commit_of(tmp_path)
    assert commit is not None
    assert not commit.endswith("+")
    checkout(tmp_path, {"a.py": "1\n"})
    assert house.commit_of(tmp_path) == commit + "+"
