"""Plugins that break one clause each, a module per kind; what they inherit or call keeps all the other clauses."""

from __future__ import annotations

import importlib
import pkgutil


def path_of(clause: str) -> str:
    """Return the import path of the plugin that breaks ``clause``.

    Raises:
        LookupError: when there is none, or more than one.
    """
    name = clause.replace("-", "_")
    modules = [f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)]
    found = [module for module in modules if name in vars(importlib.import_module(module))]
    if len(found) != 1:
        raise LookupError(f"{len(found)} plugins break {clause}; there must be one")
    return f"{found[0]}.{name}"
