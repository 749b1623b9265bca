"""Let FastAPI read the signature of a handler once, however many apps a process of the tests builds.

A gateway's handlers are closures: every app has new functions of the same code. Their analysis takes two thirds of an app's time,
and a look into their source for messages half of a first request's. Handlers with dependencies or with defaults that are objects are analysed anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from fastapi import routing
from fastapi.dependencies.models import Dependant

LISTS = [field.name for field in dataclasses.fields(Dependant) if field.default_factory is list]
PLAIN = (str, int, float, bool, type(None))

_analyse, _returned_by, _place = (
    routing.get_dependant,
    routing.get_typed_return_annotation,
    routing._extract_endpoint_context,
)
_dependants: dict[Any, Dependant] = {}
_returned: dict[Any, Any] = {}
_places: dict[Any, Any] = {}
_codes: dict[int, CodeType] = {}
"""By the id that is in keys, so that no other code gets this id."""


def _key(call: Callable[..., Any], *given: Any) -> Any:
    if not isinstance(call, FunctionType) or hasattr(call, "__wrapped__"):
        return None
    defaults = [*(call.__defaults__ or ()), *(call.__kwdefaults__ or {}).values()]
    if not all(isinstance(value, PLAIN) for value in defaults):
        return None
    _codes[id(call.__code__)] = call.__code__
    return id(call.__code__), *((type(value), value) for value in defaults), *(call.__kwdefaults__ or ()), *given


def get_dependant(*, path: str, call: Callable[..., Any], **given: Any) -> Dependant:
    """Do what FastAPI's function does."""
    key = _key(call, path, *sorted(given.items()))
    found = _dependants.get(key) if key else None
    if found is None:
        found = _analyse(path=path, call=call, **given)
        if key is None or found.dependencies:
            return found
        _dependants[key] = found
    return dataclasses.replace(found, call=call, **{name: [*getattr(found, name)] for name in LISTS})


def get_typed_return_annotation(call: Callable[..., Any]) -> Any:
    """Do what FastAPI's function does."""
    key = _key(call)
    if key is None:
        return _returned_by(call)
    if key not in _returned:
        _returned[key] = _returned_by(call)
    return _returned[key]


def extract_endpoint_context(call: Any) -> Any:
    """Do what FastAPI's function does, at the first request to a handler."""
    key = _key(call)
    if key is None:
        return _place(call)
    if key not in _places:
        _places[key] = _place(call)
    return _places[key]


def install() -> None:
    """Replace FastAPI's functions in this process."""
    routing.get_dependant = get_dependant
    routing.get_typed_return_annotation = get_typed_return_annotation
    routing._extract_endpoint_context = extract_endpoint_context
