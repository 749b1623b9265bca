"""How far is the house from fewer, deeper modules? Counters of the source, for this checkout or another one.

`python -m benchmarks.house [--root FOLDER] [--paths FILE] [--list COUNTER] [--lines DEPTH] [--json FILE]` reads source text only, so it
takes seconds and runs for any commit: `git worktree add old COMMIT`, then `--root old`. `--list` prints the places behind
a counter; `--lines` says what the lines of each part are, a part being that many folders deep. `--paths` takes the modules on each way of the data from a file that `benchmarks.paths --json` wrote.

The figures are for readers: nothing fails at a value. What a counter counts is in the docstrings of `house_parts`: `tree`
(what is product, what is a test), `imports`, `remote_calls`, `slices`, `sizes` and `kinds`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.house_parts import kinds, sizes
from benchmarks.house_parts.imports import Imports
from benchmarks.house_parts.remote_calls import calls_by_string
from benchmarks.house_parts.slices import Slices
from benchmarks.house_parts.tree import Tree
from benchmarks.machine import REPOSITORY, git
from groundwork.command_line import existing_folder, output_file


class Counter(NamedTuple):
    """A figure, what it counts, and the places behind it if it has any."""

    name: str
    meaning: str
    value: float
    places: Sequence[str] = ()


def counters(tree: Tree) -> list[Counter]:
    """Return the counters of a checkout, in the order of a report."""
    modules = list(tree.modules.values())
    imports = Imports(tree)
    objects = Slices(tree, imports).objects()
    launch = [module for module in modules if sizes.is_launch_code(module.path)]
    longest = sizes.longest_module(modules)
    pages = sizes.pages(tree)
    return [
        Counter("product_lines", "lines of Python outside tests", sum(module.lines for module in modules)),
        Counter("test_lines", "lines of Python in tests", tree.test_lines),
        Counter("modules", "Python files outside tests", len(modules)),
        Counter("median_lines", "lines of the median module", sizes.median_lines(modules)),
        Counter("longest_lines", f"lines of the longest module, {longest.path}", longest.lines),
        _listed("one_importer", "modules that exactly one module imports", imports.with_one_importer()),
        _listed("one_importer_in_package", "of these: by one in its folder", imports.with_one_importer_in_package()),
        _listed("remote_calls_by_string", "calls that name a remote method in a string", calls_by_string(modules)),
        _listed("objects_in_slices", "large objects cut along inheritance", [one.described() for one in objects]),
        Counter("classes_in_slices", "classes that these consist of", sum(len(one.classes) for one in objects)),
        Counter("contract_exceptions", "entries in ignore_imports", sizes.contract_exceptions(tree.project)),
        _listed("launch_modules", "modules of launch and configuration", [module.path for module in launch]),
        Counter("launch_lines", "their lines", sum(module.lines for module in launch)),
        _listed("message_types", "definitions of a type Message", sizes.definitions(modules, ["Message"])),
        _listed("config_errors", "definitions of ConfigError", sizes.definitions(modules, sizes.CONFIG_ERRORS)),
        _listed("pages", "pages in instructions/, reference left out", pages),
        Counter("page_words", "their words", sizes.words(tree, pages)),
    ]


def _listed(name: str, meaning: str, places: list[str]) -> Counter:
    return Counter(name, meaning, len(places), places)


def path_counters(recorded: dict[str, Any]) -> list[Counter]:
    """Return the number of modules on each way that `benchmarks.paths` recorded."""
    return [
        Counter(f"{way}_modules", f"modules on the way of: {way}", hops["modules"])
        for way, hops in recorded.items()
        if isinstance(hops, dict) and "modules" in hops
    ]


def report(root: Path, recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the commit of a checkout, its figures and the places behind them.

    Args:
        root: the checkout.
        recorded: the ways as `benchmarks.paths` writes them; empty for none.

    Raises:
        ValueError: there is no Python file.
        SyntaxError: a Python file of the product cannot be parsed.
    """
    tree = Tree(root)
    if not tree.modules:
        raise ValueError(f"{root} holds no Python file outside tests; name the root of a checkout")
    found = [*counters(tree), *path_counters(recorded)]
    return {
        "commit": commit_of(root),
        "figures": {each.name: each.value for each in found},
        "meanings": {each.name: each.meaning for each in found},
        "places": {each.name: list(each.places) for each in found if each.places},
    }


def commit_of(root: Path) -> str | None:
    """Return the short commit of a checkout, with ``+`` if files differ from it; None without git."""
    head = git(root, "rev-parse", "--short", "HEAD")
    return None if head is None else head + ("+" if git(root, "status", "--porcelain") else "")


def table(found: dict[str, Any]) -> str:
    """Return a report as text, a line per counter."""
    lines = [f"commit {found['commit'] or 'unknown'}"]
    lines += [f"{name:26s}{value:10,g}  {found['meanings'][name]}" for name, value in found["figures"].items()]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument("--root", type=existing_folder, default=REPOSITORY, help="checkout (default: this one)")
    parser.add_argument("--paths", type=_recorded, default={}, help="file that `benchmarks.paths --json` wrote")
    parser.add_argument("--list", metavar="COUNTER", help="print the places behind this counter, and no table")
    parser.add_argument("--lines", type=int, metavar="DEPTH", help="print what the lines are, by folders; no table")
    parser.add_argument("--json", type=output_file, help="write figures and places to this file")
    asked = parser.parse_args(argv)
    try:
        found = report(asked.root, asked.paths)
    except (SyntaxError, ValueError) as error:
        parser.error(str(error))
    if asked.list and asked.list not in found["places"]:
        parser.error(f"{asked.list} has no places; choose from {', '.join(found['places'])}")
    if asked.lines:
        print(kinds.table(kinds.by_part(Tree(asked.root).modules.values(), asked.lines)))
    else:
        print("\n".join(found["places"][asked.list]) if asked.list else table(found))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _recorded(text: str) -> dict[str, Any]:
    try:
        recorded = json.loads(Path(text).read_text())
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(
            f"cannot read {text} ({error}); write it with benchmarks.paths --json"
        ) from error
    if not isinstance(recorded, dict):
        raise argparse.ArgumentTypeError(f"{text} holds no ways; write it with benchmarks.paths --json")
    return recorded


if __name__ == "__main__":
    raise SystemExit(main())
