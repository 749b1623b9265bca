"""Time to search a new text for secrets, per 40,000 characters (about 10k tokens).

`python -m benchmarks.redaction [--json FILE]`. Prose and code are this repository's; hashes and JSON are made up. Each line
is the CPU time of the fastest of several runs, on one core.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

from benchmarks.machine import describe_machine
from groundwork.command_line import output_file
from openclaw.privacy.secret_finder import SecretFinder

CHARACTERS = 40_000
RUNS = 20
ROOT = Path(__file__).resolve().parent.parent


def texts() -> dict[str, str]:
    """Return texts of `CHARACTERS`, by what they are."""
    rng = random.Random(0)
    hashes = (f"{rng.getrandbits(160):040x}  path/to/some/file_{number}.py" for number in range(800))
    entries = ({"id": n, "name": f"tool {n}", "url": f"https://example.org/a/b/{n}?q={n}"} for n in range(1000))
    found = {
        "prose": "\n".join(path.read_text() for path in sorted(ROOT.glob("instructions/*.md"))),
        "code": "\n".join(path.read_text() for path in sorted(ROOT.glob("openclaw/gateway/*.py"))),
        "hashes": "\n".join(hashes),
        "json": json.dumps(list(entries)),
    }
    return {name: text[:CHARACTERS] for name, text in found.items()}


def milliseconds(finder: SecretFinder, text: str) -> float:
    """Return the CPU time of the fastest run."""
    best = float("inf")
    for _ in range(RUNS):
        started = time.process_time()
        list(finder(text))
        best = min(best, time.process_time() - started)
    return round(best * 1e3, 2)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.redaction", description=__doc__)
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the numbers to this file")
    options = parser.parse_args()
    finder = SecretFinder()
    found = {name: milliseconds(finder, text) for name, text in texts().items()}
    for name, value in found.items():
        print(f"{name:8s} {value:6.2f} ms")
    if options.json:
        report = {"machine": describe_machine(), "characters": CHARACTERS, "milliseconds": found}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
