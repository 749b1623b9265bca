"""Calls of a remote object's method that name the method in a string.

No checker can follow such a call, nor can "go to definition". What counts, once per place in the source:

* ``getattr(handle, name).remote(...)`` where ``name`` is a string literal or an expression such as ``told[0]``;
* a string literal, or an expression that chooses between literals, that is passed to a relay as the method's name;
* any other expression that is passed as the method's name to a relay that is a class: ``EngineCalls(engines, name)``.

A relay is a function with a parameter, annotated ``str``, ``Literal`` or not at all, that it uses as ``name`` in
``getattr(handle, name).remote`` or passes on to another relay. Relays are found in the tree and have no fixed names. A
call belongs to a relay if it calls a function of the relay's name (``self._ask``, ``group.ask``), or the class if the
relay is its ``__init__``; if both are in the same top folder; and if the string is the name of a method in that folder.
So other functions of that name do not count: ``talk.ask("hello")``. What a call should look like does not count either:
``handle.method.remote()``. A string that only names a call in messages, as in ``gather("init", references)``, is not a call.
Not seen: a call outside any function, and a relay that is called through ``partial`` or another variable.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.house_parts.tree import Module

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Relay:
    """A callable whose parameter is a remote method's name; ``position`` does not count ``self``."""

    name: str
    parameter: str
    position: int


class Scope(NamedTuple):
    """A function, the class that it is a method of, and the calls in it."""

    path: str
    function: Function
    owner: str | None
    calls: list[ast.Call]


class Argument(NamedTuple):
    """An argument that names a remote method, and whether that is certain whatever the argument is."""

    value: ast.expr
    certain: bool


def calls_by_string(modules: Iterable[Module]) -> list[str]:
    """Return the places, sorted, as ``path:line name``; the name is the method, or the expression that holds it."""
    folders: dict[str, list[Scope]] = defaultdict(list)
    for module in modules:
        for function, owner in _functions(module.tree):
            folders[module.path.split("/")[0]].append(Scope(module.path, function, owner, list(_calls(function))))
    return [place for folder in sorted(folders) for place in _calls_in_folder(folders[folder])]


def _calls_in_folder(scopes: list[Scope]) -> list[str]:
    relays = _relays(scopes)
    methods = {scope.function.name for scope in scopes if scope.owner}
    places: dict[tuple[str, int, int], str] = {}
    for scope in scopes:
        for call in scope.calls:
            for value, certain in _method_arguments(call, relays):
                if _relay(scope, value):
                    continue  # this function is a relay itself: the calls of it count
                names = _literals(value)
                if (names and names <= methods) or (certain and not names):
                    places[scope.path, call.lineno, call.col_offset] = "|".join(sorted(names)) or ast.unparse(value)
    return [f"{path}:{line} {name}" for (path, line, _), name in sorted(places.items())]


def _relays(scopes: list[Scope]) -> dict[str, set[Relay]]:
    """Return all relays by name: those with ``getattr``, then those that call them, until none is new."""
    relays: dict[str, set[Relay]] = {}
    while True:
        arguments = [
            (scope, each) for scope in scopes for call in scope.calls for each in _method_arguments(call, relays)
        ]
        found = {relay for scope, argument in arguments if (relay := _relay(scope, argument.value))}
        if found == set().union(*relays.values()):
            return relays
        relays = {relay.name: {other for other in found if other.name == relay.name} for relay in found}


def _relay(scope: Scope, value: ast.expr) -> Relay | None:
    """Return the relay that a function is for a call in it with this method's name, None if it is not a parameter of its own."""
    parameters = _parameters(scope.function)
    if not isinstance(value, ast.Name) or value.id not in parameters or not _holds_text(parameters[value.id]):
        return None
    marks = [mark.id for mark in scope.function.decorator_list if isinstance(mark, ast.Name)]
    position = list(parameters).index(value.id) - (scope.owner is not None and "staticmethod" not in marks)
    name = scope.owner if scope.owner and scope.function.name == "__init__" else scope.function.name
    return Relay(name, value.id, position)


def _method_arguments(call: ast.Call, relays: dict[str, set[Relay]]) -> Iterator[Argument]:
    """Yield the arguments of ``call`` that name a remote method."""
    called = call.func
    if isinstance(called, ast.Attribute) and called.attr == "remote" and isinstance(called.value, ast.Call):
        inner = called.value
        if isinstance(inner.func, ast.Name) and inner.func.id == "getattr" and len(inner.args) >= 2:
            yield Argument(inner.args[1], certain=True)
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    for relay in relays.get(name, ()):
        is_class = isinstance(called, ast.Name) and name[:1].isupper()
        if relay.position < len(call.args):
            yield Argument(call.args[relay.position], is_class)
        yield from (Argument(word.value, is_class) for word in call.keywords if word.arg == relay.parameter)


def _holds_text(annotation: ast.expr | None) -> bool:
    return annotation is None or ast.unparse(annotation).split("[")[0] in ("str", "Literal")


def _literals(node: ast.expr) -> set[str]:
    """Return the string literals that an expression is or chooses from."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    if isinstance(node, ast.IfExp):
        return _literals(node.body) | _literals(node.orelse)
    return set()


def _parameters(function: Function) -> dict[str, ast.expr | None]:
    """Return the parameters with their annotations, in order."""
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return {parameter.arg: parameter.annotation for parameter in every}


def _functions(tree: ast.Module) -> Iterator[tuple[Function, str | None]]:
    """Yield every function with the class that it is a method of."""
    for node in ast.walk(tree):
        owner = node.name if isinstance(node, ast.ClassDef) else None
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield child, owner


def _calls(function: Function) -> Iterator[ast.Call]:
    """Yield the calls in a function, those in its lambdas and comprehensions too, but not in functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call):
            yield node
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, Function)]
