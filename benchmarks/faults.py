"""Is anything lost or trained twice when processes die? Kills processes at random moments under load and checks.

`python -m benchmarks.faults [--quick] [--kills N] [--real N] --json FILE`. Two tiers. The fast one kills the real runtime process
(gateway, judge worker, ledger), stand-ins for policy engine, judge engine and trainer, and a second writer of the ledger; the
trainer leases, saves and restores through the real data source. The real one kills every kind of process of
`python -m openclaw.launch` on the tiny model: SGLang engines, runtime, trainer rank, driver; the last two end the run, and it
is resumed. Exit status 1 when something was lost, trained twice, left behind, or refused while the gateway lived.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.fault_parts.checks import write_json
from benchmarks.fault_parts.fast import run_fast
from benchmarks.fault_parts.real import run_real
from benchmarks.machine import describe_machine
from groundwork.command_line import output_file
from lab.testkit import tiny_random

MUST_BE_ZERO = (
    "judged_lost",
    "trained_twice",
    "trained_unlike_checkpoint",
    "acknowledged_lost",
    "feedback_lost",
    "damaged",
    "refused_requests",
    "orphans",
)
COLUMNS = ("seconds", "replies", "judged_turns", "trained_samples", *MUST_BE_ZERO)


def table(tiers: dict[str, dict[str, Any]]) -> str:
    """Return the figures of the tiers side by side."""
    lines = [f"{'':28s}" + "".join(f"{name:>10s}" for name in tiers)]
    lines.append(f"{'kills':28s}" + "".join(f"{sum(tier['kills'].values()):10d}" for tier in tiers.values()))
    for column in COLUMNS:
        lines.append(f"{column:28s}" + "".join(f"{tier.get(column, '-'):>10}" for tier in tiers.values()))
    return "\n".join(lines)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="kills in the fast tier (default: %(default)s)")
    parser.add_argument(
        "--real", type=int, default=2, help="kills per kind of process in the real tier; 0: leave it out"
    )
    parser.add_argument("--seed", type=int, default=0, help="of victims and moments (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="ten kills, fast tier only: checks that it runs")
    parser.add_argument("--json", required=True, type=output_file, help="file for the figures")
    arguments = parser.parse_args()
    kills, real = (10, 0) if arguments.quick else (arguments.kills, arguments.real)
    tiers: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        if kills:
            tokenizer = tiny_random.build(folder / "tokenizer")
            (folder / "fast").mkdir()
            tiers["fast"] = run_fast(folder / "fast", tokenizer, kills, arguments.seed)
        if real:
            tiers["real"] = run_real(folder / "real", real, arguments.seed)
    write_json(arguments.json, {"machine": describe_machine(), **tiers})
    print(table(tiers))
    return int(any(tier[column] for tier in tiers.values() for column in MUST_BE_ZERO if column in tier))


if __name__ == "__main__":
    sys.exit(main())
