"""Make each flag ineffective in turn and list which test fails: ``python -m tests.flag_mutations``.

The product reads the flag's default, whatever was given; tests see what was given (see ``ineffective.py``). First each
flag's test of tests/contract/flag_effects.py runs, many flags in one process. Where it does not fail, other fast tests
that mention the flag run, and at last both in a process of their own. A failure counts if the same test passes with the
flag in effect. "As a check": only the checks of the command line made a difference. Ctrl-C keeps what was found; the next run goes on from there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.contract.test_flag_effects import accepted
from tests.flag_mutations.drive import answers
from tests.flag_mutations.jobs import has_one_value, job_of, needs_engines, row_of

OTHERS = 12
"""Tests that run for a flag that its own does not notice."""

Line = dict[str, Any]
Found = dict[str, Line]


def main() -> int:
    """Measure, print a line per flag, and return 1 when there is a flag that nothing noticed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.flag_mutations", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flag", nargs="+", default=[], metavar="NAME", help="only these flags, measured again")
    parser.add_argument(
        "--integration", action="store_true", help="also flags whose test starts engines (minutes each)"
    )
    parser.add_argument("--again", action="store_true", help="forget what the file has")
    parser.add_argument("--only-rows", action="store_true", help="do not look for other tests")
    parser.add_argument(
        "--json",
        type=Path,
        default=Path("runs/flag_mutations.json"),
        metavar="FILE",
        help="what was found: %(default)s",
    )
    options = parser.parse_args()
    named = [name.removeprefix("--") for name in options.flag]
    if unknown := sorted(set(named) - set(accepted())):
        parser.error(f"no accepted flag is called {', '.join(unknown)}")
    found: Found = {} if options.again or not options.json.exists() else json.loads(options.json.read_text())
    found = {flag: line for flag, line in found.items() if line["test"] == row_of().get(flag) and flag not in named}
    wanted = [flag for flag in row_of() if flag not in found and (not named or flag in named)]
    start = time.monotonic()
    try:
        measure(wanted, found, options)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    finally:
        keep(found, options.json)
        show({flag: found[flag] for flag in row_of() if flag in found and (not named or flag in named)})
        print(f"{time.monotonic() - start:.0f} s; {options.json}", file=sys.stderr)
    return int(any(line["state"] == "NOT NOTICED" for line in found.values()))


def measure(wanted: list[str], found: Found, options: argparse.Namespace) -> None:
    """Fill ``found`` for the flags ``wanted``, in passes: each takes the flags that the passes before left."""
    found |= {flag: _line(flag, "one value") for flag in wanted if has_one_value(flag)}
    left = [flag for flag in wanted if flag not in found]
    engines = [] if options.integration else [flag for flag in left if needs_engines(flag)]
    others = 0 if options.only_rows else OTHERS
    by_row = partial(job_of, others=0)
    by_others = partial(job_of, row=False, others=others)
    passes = (
        ("the test of each flag", "noticed", by_row, set(engines), False),
        ("other tests", "noticed", by_others, set(), False),
        (
            "checks that do not see it either",
            "noticed as a check",
            partial(by_row, where="checks too"),
            set(engines),
            False,
        ),
        ("alone in a process", "noticed", partial(job_of, others=others), set(engines), True),
    )
    columns = TextColumn("{task.description:60}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns) as progress:
        for name, state, make, skipped, alone in passes:
            jobs = [job for flag in left if flag not in skipped and (job := make(flag)).nodes]
            task = progress.add_task(name, total=len(jobs))
            for answer in chain.from_iterable(map(answers, [[job] for job in jobs] if alone else [jobs])):
                flag = answer["flag"]
                progress.update(task, advance=1, description=f"{name}: --{flag}")
                if answer["step"] == "noticed":
                    found[flag] = _line(flag, state, answer)
                    left.remove(flag)
                elif alone:
                    found[flag] = _line(
                        flag, "NOT NOTICED" if answer["step"] == "unnoticed" else answer["step"], answer
                    )
                keep(found, options.json)
            progress.update(task, description=name)
    found |= {flag: _line(flag, "by integration test") for flag in engines if flag in left}


def keep(found: Found, file: Path) -> None:
    """Write what was found so far."""
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = file.with_name(f"{file.name}.new")
    whole.write_text(json.dumps(found, indent=1) + "\n")
    whole.replace(file)


def _line(flag: str, state: str, answer: Line | None = None) -> Line:
    answer = answer or {}
    rest = {key: answer[key] for key in ("node", "why", "seconds") if answer.get(key)}
    return {"state": state, "test": row_of()[flag], **rest}


def show(found: Found) -> None:
    """Print a line per flag, and how many there are of each kind."""
    counts: dict[str, int] = {}
    for flag, line in found.items():
        by = line.get("node", line["test"])
        elsewhere = line["state"].startswith("noticed") and by.split("[")[0] != line["test"]
        state = f"{line['state']} by another test than its row's" if elsewhere else line["state"]
        counts[state] = counts.get(state, 0) + 1
        print(f"--{flag}: {state}: {by} {line.get('why', '')}".rstrip())
    print(", ".join(f"{number} {state}" for state, number in counts.items()))


if __name__ == "__main__":
    sys.exit(main())
