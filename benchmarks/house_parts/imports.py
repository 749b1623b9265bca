"""Who imports whom in the product.

What counts as an import: every ``import`` statement, at the top of a file, in a function, under a condition, in ``try``
or under ``TYPE_CHECKING``, absolute or relative. What does not: a module that is named in a string (``load_function``,
``python -m``), and an import by a test.

`from package import name` leads to the module that defines the name: to the submodule ``name``, or through the package's
``__init__.py`` to the module that it takes the name from. So an ``__init__.py`` that only passes a name on is no
importer; one that uses the name itself is. `import a.b` leads to ``a.b`` and not to the package ``a``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from pathlib import PurePosixPath

from benchmarks.house_parts.tree import Module, Tree


class Imports:
    """The imports between the modules of ``tree``.

    The import path is the root of the checkout, ``pythonpath`` of pytest's section in ``pyproject.toml``, and every folder
    below one with a dash in its name that is not a package. Where two of its folders give a module the same name, the deeper
    folder wins.
    """

    def __init__(self, tree: Tree) -> None:
        self._modules = tree.modules
        pytest = tree.project.get("tool", {}).get("pytest", {}).get("ini_options", {})
        folders = {PurePosixPath(folder) for folder in (".", "scripts", *pytest.get("pythonpath", ()))}
        for folder in {PurePosixPath(path).parent for path in tree.modules}:
            if folder.parts and "-" in folder.parts[0] and str(folder / "__init__.py") not in tree.modules:
                folders.add(folder)
        self._import_path = sorted(folders, key=lambda folder: -len(folder.parts))
        self._forwarded: dict[str, dict[str, tuple[str, str]]] = {}

    @cached_property
    def edges(self) -> set[tuple[str, str]]:
        """Pairs of paths: importer, imported. A module is not an importer of itself."""
        pairs = {(path, target) for path, module in self._modules.items() for target in self._targets(module)}
        return {(importer, imported) for importer, imported in pairs if importer != imported}

    @cached_property
    def importers(self) -> dict[str, list[str]]:
        """The importers of each module, sorted, for all modules but ``__init__.py`` files."""
        known: dict[str, list[str]] = {path: [] for path, module in self._modules.items() if not module.is_package_file}
        for importer, imported in sorted(self.edges):
            if imported in known:
                known[imported].append(importer)
        return known

    def with_one_importer(self) -> list[str]:
        """Return the modules that exactly one module imports, wherever that one is."""
        return [path for path, importers in self.importers.items() if len(importers) == 1]

    def with_one_importer_in_package(self) -> list[str]:
        """Return those of `with_one_importer` whose importer is in the same folder and no ``__init__.py``.

        A module behind an ``__init__.py`` that uses it is behind the face of the package, which is where it belongs.
        """
        pairs = [(path, self._modules[self.importers[path][0]]) for path in self.with_one_importer()]
        return [
            path
            for path, importer in pairs
            if importer.folder == self._modules[path].folder and not importer.is_package_file
        ]

    def definition(self, module: Module, name: str) -> tuple[str, str] | None:
        """Return path and name of what ``name`` is in ``module``, if an import of the product brought it there."""
        return self._names(module).get(name)

    def _targets(self, module: Module) -> Iterator[str]:
        used = _used_names(module.tree) if module.is_package_file else None
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if target := self._file(alias.name):
                        yield target
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if used is not None and (alias.asname or alias.name) not in used:
                        continue
                    if found := self._source(module, node, alias.name):
                        yield found[0]

    def _names(self, module: Module) -> dict[str, tuple[str, str]]:
        """Return what the ``from`` imports of a module bring: name to path and name of the definition."""
        if module.path not in self._forwarded:
            names = self._forwarded[module.path] = {}
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        if found := self._source(module, node, alias.name):
                            names[alias.asname or alias.name] = found
        return self._forwarded[module.path]

    def _source(self, module: Module, node: ast.ImportFrom, name: str) -> tuple[str, str] | None:
        """Return path and name of the definition of an imported name; None if it is not the product's."""
        if node.level:
            folder = PurePosixPath(module.path)
            for _ in range(node.level):
                folder = folder.parent
            start = folder.joinpath(*(node.module or "").split("."))
            submodule, package = self._at(start / name), self._at(start)
        else:
            submodule, package = self._file(f"{node.module}.{name}"), self._file(node.module or "")
        if submodule:
            return submodule, ""
        if package is None:
            return None
        if self._modules[package].is_package_file and package != module.path:
            return self._names(self._modules[package]).get(name, (package, name))
        return package, name

    def _file(self, name: str) -> str | None:
        parts = name.split(".")
        return next(filter(None, (self._at(folder.joinpath(*parts)) for folder in self._import_path)), None)

    def _at(self, place: PurePosixPath) -> str | None:
        """Return the module or package file at a path without its suffix."""
        return next((path for path in (f"{place}.py", f"{place}/__init__.py") if path in self._modules), None)


def _used_names(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
