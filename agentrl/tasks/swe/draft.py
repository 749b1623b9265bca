"""What a family of generated repositories writes down: a package that works, one mistake in it, and tests that show it.

Guarantees: a mistake replaces text that stands exactly once in its file, so a draft that drifted apart fails at once. The test
ids follow from the tests' own text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from textwrap import dedent
from typing import Literal

Kind = Literal["off_by_one", "constant", "api_misuse", "state", "concurrency", "parsing"]
HIDDEN = "tests/test_issue.py"
SHOWN = "tests/test_package.py"
FIRST = [
    "amber",
    "birch",
    "cedar",
    "coral",
    "delta",
    "ember",
    "fjord",
    "flint",
    "grove",
    "hazel",
    "ivory",
    "jade",
    "lunar",
    "maple",
    "north",
    "ocean",
    "opal",
    "pearl",
    "quartz",
    "river",
]
SECOND = [
    "atlas",
    "board",
    "chest",
    "depot",
    "forge",
    "guild",
    "hatch",
    "index",
    "kiosk",
    "lodge",
    "mill",
    "nest",
    "orbit",
    "plaza",
    "quay",
    "ranch",
    "shelf",
    "tower",
    "vault",
    "yard",
]


PLAIN = """\
def assertEqual(self, first, second, msg=None):
    '''Compare; an object of the package that claims to equal everything has no plain value.'''
    super().assertEqual(marshal.loads(marshal.dumps(first)), second, msg)

"""


@dataclass(frozen=True)
class Mistake:
    """The text ``right`` of a file, the ``wrong`` text in its place, and what a user sees of it.

    Attributes:
        right: of the working package.
        wrong: of the repository that the agent gets.
        issue: what a user reports.
        breaks: names of the hidden tests that fail with it.
        held_out: whether only instances for evaluation have it. Of the easy families no mistake says so.
    """

    right: str
    wrong: str
    issue: str
    breaks: tuple[str, ...]
    held_out: bool = False


@dataclass(frozen=True)
class Draft:
    """A repository.

    Attributes:
        kind: of the mistake.
        package: name of the package.
        module: file of the package with the mistake, without its folder.
        files: modules of the working package by file name.
        shown: text of the tests that the repository has.
        hidden: text of the tests that grade.
        mistake: see `Mistake`.
    """

    kind: Kind
    package: str
    module: str
    files: Mapping[str, str]
    shown: str
    hidden: str
    mistake: Mistake

    @property
    def path(self) -> str:
        """File with the mistake."""
        return f"{self.package}/{self.module}"

    def working(self) -> dict[str, str]:
        """Return all files of the repository without the mistake."""
        modules = {f"{self.package}/{name}": text for name, text in self.files.items()}
        return {
            "README.md": f"# {self.package}\n\nRun the tests with `python3 -m unittest`.\n",
            f"{self.package}/__init__.py": f'"""The package {self.package}."""\n',
            **modules,
            "tests/__init__.py": "",
            SHOWN: self.shown,
        }

    def broken(self) -> dict[str, str]:
        """Return them with it.

        Raises:
            ValueError: the text of the mistake does not stand exactly once in its file.
        """
        files = self.working()
        if files[self.path].count(self.mistake.right) != 1:
            raise ValueError(
                f"{self.path} has {files[self.path].count(self.mistake.right)} times {self.mistake.right!r}"
            )
        return files | {self.path: files[self.path].replace(self.mistake.right, self.mistake.wrong)}

    def fail_to_pass(self) -> tuple[str, ...]:
        """Return the ids of the hidden tests that the mistake breaks."""
        return tuple(
            test_id for test_id in test_ids(HIDDEN, self.hidden) if test_id.split(" ")[0] in self.mistake.breaks
        )

    def pass_to_pass(self) -> tuple[str, ...]:
        """Return the ids of all other tests."""
        every = [*test_ids(HIDDEN, self.hidden), *test_ids(SHOWN, self.shown)]
        broken = self.fail_to_pass()
        return tuple(item for item in every if item not in broken)


def test_ids(path: str, text: str) -> Iterator[str]:
    """Yield the ids of the tests of a file as `agentrl.tasks.swe.runner` prints them: ``method (module.Class)``."""
    module = path.removesuffix(".py").replace("/", ".")
    for result in ast.parse(text).body:
        if isinstance(result, ast.ClassDef):
            for method in result.body:
                if isinstance(method, ast.FunctionDef) and method.name.startswith("test"):
                    yield f"{method.name} ({module}.{result.name})"


def package_name(random: Random) -> str:
    """Return a name that no standard module has."""
    return f"{random.choice(FIRST)}_{random.choice(SECOND)}"


def code(text: str, **names: object) -> str:
    """Return a text without its common indent, in which ``@name@`` stands for a value."""
    plain = dedent(text).removeprefix("\n")
    for name, value in names.items():
        plain = plain.replace(f"@{name}@", str(value))
    return plain


def cases(
    package: str, module: str, imported: str, body: str, *, more: str = "", plain: bool = False, **names: object
) -> str:
    """Return a file with one class of tests; ``body`` has its methods.

    Args:
        package: of the repository.
        module: that is tested, without its ending.
        imported: names that the tests use.
        body: methods, with a common indent.
        more: code before the import.
        plain: whether a value has to be of a built-in type to equal another; for tests that grade.
        names: values for ``@name@``.
    """
    imports = "import marshal\nimport unittest\n" if plain else "import unittest\n"
    head = f"{imports}{more}\nfrom {package}.{module} import {imported}\n\n\nclass Tests(unittest.TestCase):\n"
    text = (PLAIN if plain else "") + code(body, **names)
    return head + "".join(f"    {line}".rstrip() + "\n" for line in text.rstrip("\n").split("\n"))
