"""What becomes of every line that the project's documents tell users to type?

`python -m benchmarks.promises [--quick] [--only ROW ...] [--json FILE]` types each in a copy of the repository, as a user would:
launch lines with `--dry-run`, programs with tiny models, plugins as files, requests at a gateway before a stand-in engine. The
table is `promise_parts/table.yaml`. A row is W (works as written), D (works differently, with a reason and the line that tells
the user) or M (missing: neither).

Exit status 1 when a row is M, or is not what `baselines/promises.json` says. `--json` writes the table; rows that were not tried
stay in that file as they were.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.fault_parts.checks import write_json
from benchmarks.machine import REPOSITORY, describe_machine
from benchmarks.promise_parts.attempt import Grade, Outcome, Typist
from benchmarks.promise_parts.rows import DOCUMENTS, Row, read_table
from groundwork.command_line import nearest, output_file

RECORDED = REPOSITORY / "benchmarks" / "baselines" / "promises.json"
MEANINGS = {Grade.WORKS: "works", Grade.DIFFERS: "differs", Grade.MISSING: "missing", Grade.LEFT_OUT: "left out"}
ID_WIDTH = 34


def recorded_rows(path: Path = RECORDED) -> list[dict[str, Any]]:
    """Return the rows that a file of this benchmark has; none if there is no such file."""
    return json.loads(path.read_text())["rows"] if path.is_file() else []


def recorded_grades() -> dict[str, str]:
    """Return the recorded grade of each row by id."""
    return {row["id"]: row["grade"] for row in recorded_rows()}


def problems(outcomes: Sequence[Outcome], recorded: dict[str, str]) -> list[str]:
    """Return what makes the benchmark fail: rows that are missing, and rows that are not as recorded."""
    found = []
    for each in outcomes:
        before = recorded.get(each.id, "not recorded")
        if each.grade is Grade.MISSING:
            found.append(f"{each.id} is missing: {each.line}")
        elif each.grade is not Grade.LEFT_OUT and each.grade != before:
            found.append(f"{each.id} is {each.grade}, recorded: {before}")
    return found


def chosen(rows: Sequence[Row], only: Sequence[str], quick: bool) -> list[Row]:
    """Return the rows to try.

    Raises:
        ValueError: there is no row with such an id.
    """
    ids = [row.id for row in rows]
    for name in only:
        if name not in ids:
            raise ValueError(f"no row {name!r}{nearest(name, ids)}; --list shows all")
    return [row for row in rows if (row.id in only if only else not (quick and row.slow))]


def attempt_all(rows: Sequence[Row], jobs: int, show: bool) -> list[Outcome]:
    """Try rows, ``jobs`` at once, and print a line for each as it ends; ``show`` adds its output. Slow rows come last, one at a time."""
    lock, done = threading.Lock(), Counter[str]()

    def attempt(row: Row) -> Outcome:
        outcome = typist.attempt(row)
        with lock:
            done["rows"] += 1
            said = outcome.reason or outcome.line
            print(
                f"[{done['rows']:3}/{len(rows)}] {outcome.grade}  {row.id:{ID_WIDTH}} {outcome.seconds:5.1f} s  {said[:100]}",
                flush=True,
            )
            if show:
                print(f"{outcome.output}\n", flush=True)
        return outcome

    with tempfile.TemporaryDirectory(prefix="promises-") as folder:
        typist = Typist(Path(folder), gateway=any(row.gateway for row in rows))
        try:
            with ThreadPoolExecutor(jobs) as pool:
                quick = list(pool.map(attempt, [row for row in rows if not row.slow]))
            outcomes = {each.id: each for each in [*quick, *map(attempt, [row for row in rows if row.slow])]}
        finally:
            typist.close()
    return [outcomes[row.id] for row in rows]


def document_of(rows: Sequence[Row], outcomes: Sequence[Outcome], before: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what is written: the machine, counts, and every promise. One that was not tried is as in ``before``, or left out."""
    tried = {each.id: each for each in outcomes if each.grade is not Grade.LEFT_OUT}
    kept = {row["id"]: row for row in before}
    written = []
    for row in rows:
        said = {"id": row.id, "documents": list(row.documents), "promise": row.promise}
        if row.id in tried:
            one = tried[row.id]
            written.append({**said, "grade": str(one.grade), "reason": one.reason, "line": one.line})
        else:
            written.append({**said, "grade": str(Grade.LEFT_OUT), **kept.get(row.id, {}), **said})
    counts = Counter(row["grade"] for row in written)
    return {
        "machine": describe_machine(),
        "documents": DOCUMENTS,
        "counts": {str(grade): counts[grade] for grade in Grade},
        "rows": written,
    }


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.promises", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out rows that take minutes or a network")
    parser.add_argument("--only", nargs="+", default=[], metavar="ROW", help="only these rows, slow or not")
    parser.add_argument("--list", action="store_true", help="print the rows and try none")
    parser.add_argument("--show", action="store_true", help="print the end of each row's output")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="rows at once (default: %(default)s)"
    )
    parser.add_argument("--json", type=output_file, help="write the table to this file")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns 1 if a row is missing or not as recorded."""
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        rows = chosen(read_table(), options.only, options.quick)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        print("\n".join(f"{row.id:{ID_WIDTH}} {' '.join(row.documents):12} {row.promise}" for row in rows))
        return 0
    recorded = recorded_grades()
    outcomes = attempt_all(rows, max(options.jobs, 1), options.show)
    counts = Counter(outcome.grade for outcome in outcomes)
    print(", ".join(f"{counts[grade]} {MEANINGS[grade]}" for grade in Grade))
    if options.json:
        write_json(options.json, document_of(read_table(), outcomes, recorded_rows(options.json)))
    found = problems(outcomes, recorded)
    print("\n".join(found), file=sys.stderr, end="\n" * bool(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
