"""Which modules does a request pass on its way into the ledger, a sample to the loss, an episode to its samples, an update to engines?

`python -m benchmarks.paths [--path request|sample|episode|update] [--functions] [--json FILE]` runs the real code on the CPU, with
stand-ins for the engines and one FSDP rank with a tiny random model, and records each function of the repository that is
entered, in order. What is traced follows a warm-up of the same, so nothing of the start is in the figures.
The pages in `PAGES` explain the same hops; a test compares them with the recording.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.path_parts.recorder import REPOSITORY, Entry
from groundwork.command_line import output_file

PATHS = ("request", "sample", "episode", "update")
PAGES = {
    "request": "paths.md",
    "sample": "paths.md",
    "episode": "paths_episode_update.md",
    "update": "paths_episode_update.md",
}
"""The page of each, in `instructions/`."""
METHOD_FOLDER = REPOSITORY / "openclaw-combine"
FIRST_CELL = re.compile(r"^\| (`[^|]+`) \|", re.MULTILINE)


def trace(path: str) -> list[Entry]:
    """Return the entries of one of `PATHS`."""
    if str(METHOD_FOLDER) not in sys.path:
        sys.path.append(str(METHOD_FOLDER))
    with tempfile.TemporaryDirectory() as folder:
        if path == "request":
            from benchmarks.path_parts.request import trace_request

            return trace_request(Path(folder))
        if path == "sample":
            from benchmarks.path_parts.sample import trace_sample

            return trace_sample(Path(folder))
        if path == "update":
            from benchmarks.path_parts.update import trace_update

            return trace_update(Path(folder))
        from benchmarks.path_parts.episode import trace_episode

        return trace_episode(Path(folder))


def modules_of_page(path: str) -> list[str]:
    """Return the modules that the page of one of `PATHS` explains, in its order."""
    text = (REPOSITORY / "instructions" / PAGES[path]).read_text()
    table_of_path = text.partition(f"<!-- path:{path} -->\n")[2].partition("<!-- /path -->")[0]
    return [module for cell in FIRST_CELL.findall(table_of_path) for module in re.findall(r"`([\w.]+)`", cell)]


def by_module(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return one row per module in the order of their first entry: who called it, and its functions."""
    rows: dict[str, dict[str, Any]] = {}
    for entry in entries:
        row = rows.setdefault(entry.module, {"module": entry.module, "caller": entry.caller, "functions": []})
        row["functions"].append(entry.function)
    return list(rows.values())


def figures(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return counts and rows of a path."""
    rows = by_module(entries)
    return {"modules": len(rows), "functions": len({(each.module, each.function) for each in entries}), "hops": rows}


def table(name: str, found: dict[str, Any], *, functions: bool) -> str:
    """Return a path as text, a line per module and with ``functions`` one per function too."""
    lines = [f"{name}: {found['modules']} modules, {found['functions']} functions"]
    for number, row in enumerate(found["hops"], start=1):
        lines.append(f"{number:4d}  {row['module']:48s} from {row['caller']:44s} {len(row['functions']):3d} functions")
        lines += [f"          {function}" for function in row["functions"] if functions]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paths", description=__doc__)
    parser.add_argument("--path", choices=PATHS, help="trace this one only (default: all)")
    parser.add_argument("--functions", action="store_true", help="list the functions of each module too")
    parser.add_argument("--json", type=output_file, help="write counts, modules and functions to this file")
    asked = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logging.basicConfig(level=logging.WARNING)
    found = {name: figures(trace(name)) for name in PATHS if asked.path in (None, name)}
    print("\n\n".join(table(name, each, functions=asked.functions) for name, each in found.items()))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
