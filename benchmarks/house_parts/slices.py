"""Objects that are continued in other files by inheritance.

An object in slices is a class whose own code is spread over `MIN_FILES` files or more and has `MIN_METHODS` methods or
more, each name once: its own and those of its bases, as far as these are classes of the product. So a small family of
classes (an environment, a transport, a config) does not count, and neither does one large class in one file. Bases
without code add no file and no method: protocols, and classes whose methods are all ``...``, ``pass``, a docstring or
``raise NotImplementedError``. Exceptions, enums and protocols themselves do not count.

Objects that share a base with code are one. `FSDPTrainActor` and `MegatronTrainActor` both derive from `TrainActor`, so
they are one object with two endings. An ending is a class that no class derives from. A base is found by its name in
the file or through the file's ``from`` imports; one that is written as ``package.Name`` is not followed.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

from benchmarks.house_parts.imports import Imports
from benchmarks.house_parts.tree import Tree

MIN_FILES = 3
MIN_METHODS = 30
_OTHER_KINDS = {"BaseException", "Exception", "Enum", "IntEnum", "StrEnum", "Protocol", "NamedTuple", "TypedDict"}

Key = tuple[str, str]
"""Path of the file and name of the class."""


@dataclass
class SlicedObject:
    """One object: the classes with code behind each of its endings, from the ending down to its first base."""

    endings: dict[str, list[Key]]

    @property
    def classes(self) -> set[Key]:
        """All classes with code that the object consists of."""
        return {key for line in self.endings.values() for key in line}

    def described(self) -> str:
        """Return ``Run (4 classes): RunStart < RunWeights < RunCore``, several endings with `` / `` between them."""
        bases = [" < ".join(name for _, name in line if name != ending) for ending, line in self.endings.items()]
        return f"{' / '.join(self.endings)} ({len(self.classes)} classes): {' / '.join(bases)}"


class Slices:
    """The classes of ``tree`` and their bases; ``imports`` tells where a base comes from."""

    def __init__(self, tree: Tree, imports: Imports) -> None:
        self._classes: dict[Key, ast.ClassDef] = {
            (path, node.name): node
            for path, module in tree.modules.items()
            for node in module.tree.body
            if isinstance(node, ast.ClassDef)
        }
        self._tree, self._imports = tree, imports

    @cached_property
    def bases(self) -> dict[Key, list[Key]]:
        """The bases of each class that are classes of the product, in their order."""
        return {key: [base for base in self._bases(key) if base in self._classes] for key in self._classes}

    def objects(self) -> list[SlicedObject]:
        """Return the objects in slices, sorted by the name of their first ending."""
        derived_from = {base for bases in self.bases.values() for base in bases}
        objects: list[SlicedObject] = []
        for key in sorted(self._classes.keys() - derived_from, key=lambda key: (key[1], key[0])):
            line = [each for each in self._line(key) if self._has_code(each)]
            if self._is_in_slices(key, line):
                one = SlicedObject({key[1]: line})
                related = [other for other in objects if other.classes & one.classes]
                for other in reversed(related):
                    one = SlicedObject(other.endings | one.endings)
                objects = [other for other in objects if other not in related] + [one]
        return sorted(objects, key=lambda one: next(iter(one.endings)))

    def _is_in_slices(self, key: Key, line: list[Key]) -> bool:
        methods = {function.name for each in line for function in _methods(self._classes[each])}
        files = {path for path, _ in line}
        return len(files) >= MIN_FILES and len(methods) >= MIN_METHODS and not self._is_other_kind(key)

    def _line(self, key: Key) -> list[Key]:
        """Return a class and all its bases of the product, each once."""
        line = [key]
        for each in line:  # the list grows while it is walked
            line += [base for base in self.bases[each] if base not in line]
        return line

    def _bases(self, key: Key) -> list[Key]:
        path, _ = key
        names = [_plain_name(base) for base in self._classes[key].bases]
        module = self._tree.modules[path]
        return [
            (path, name) if (path, name) in self._classes else source
            for name in names
            if name and (source := self._imports.definition(module, name) or (path, name))
        ]

    def _is_other_kind(self, key: Key) -> bool:
        return any(_plain_name(base) in _OTHER_KINDS for each in self._line(key) for base in self._classes[each].bases)

    def _has_code(self, key: Key) -> bool:
        node = self._classes[key]
        if any(_plain_name(base) == "Protocol" for base in node.bases):
            return False
        return any(not _is_empty(statement) for function in _methods(node) for statement in function.body)


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def _plain_name(base: ast.expr) -> str | None:
    """Return the name in ``Name``, ``Name[parameter]`` or ``package.Name``'s last part for a library's class."""
    if isinstance(base, ast.Subscript):
        return _plain_name(base.value)
    if isinstance(base, ast.Attribute):
        return base.attr if base.attr in _OTHER_KINDS else None
    return base.id if isinstance(base, ast.Name) else None


def _is_empty(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Raise) and statement.exc is not None:
        return "NotImplementedError" in ast.unparse(statement.exc)
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )
