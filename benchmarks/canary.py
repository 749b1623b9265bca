"""What does one engine's lead cost an update, and what do running requests notice? A real run of two engines on the CPU.

`python -m benchmarks.canary [--rollouts N] [--clients N] --json FILE`. Clients stream through the router all the time; a wait is the
time between two tokens of a stream. A trial lasts from the plugin's request for an engine to a second after its decision: the engine
leaves the router, finishes its requests, gets the candidate, serves for a second, and goes back or is joined by the other. Every third
candidate is refused. Waits that end in a trial are given beside all others. Figures are recorded, not judged; exit status 1 when a
request was refused or broke off.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.fault_parts.checks import write_json
from benchmarks.gate import spread, streamed
from benchmarks.gate_parts.canary_plugin import SERVES_SECONDS, WINDOWS
from benchmarks.machine import describe_machine
from groundwork.command_line import output_file
from groundwork.data_rows import json_objects

FLAGS = (
    *("--num-gpus", "3", "--rollout-num-gpus", "2", "--canary-engine"),
    *("--before-push-path", "benchmarks.gate_parts.canary_plugin.decide"),
)
AFTER_SECONDS = 1.0
"""For the push that follows a decision."""
LONG_SECONDS = 0.1


def figures(run_dir: Path, waits: list[tuple[float, float]]) -> dict[str, Any]:
    """Return what a trial adds to an update, and the waits in trials and otherwise."""
    windows = [window for _, window in json_objects(run_dir / WINDOWS)]

    def in_trial(end: float) -> bool:
        return any(window["start"] <= end <= window["end"] + AFTER_SECONDS for window in windows)

    inside = [seconds for end, seconds in waits if in_trial(end)]
    outside = [seconds for end, seconds in waits if not in_trial(end)]
    logged = [row for _, row in json_objects(run_dir / "metrics.jsonl")]
    names = ("perf/canary_push_time", "perf/update_weights_time", "perf/restore_time")
    return {
        "trials": len(windows),
        "refused trials": sum(not window["accepted"] for window in windows),
        "seconds from the request until the engine has the candidate": spread([w["has"] - w["start"] for w in windows]),
        "seconds of serving in each trial": SERVES_SECONDS,
        "seconds": {name: spread([row[name] for row in logged if name in row]) for name in names},
        "waits in trials": spread(inside) | {"longer than 0.1 s": sum(each > LONG_SECONDS for each in inside)},
        "other waits": spread(outside) | {"longer than 0.1 s": sum(each > LONG_SECONDS for each in outside)},
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.canary", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=9, help="updates (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=2, help="streams at once (default: %(default)s)")
    parser.add_argument("--json", required=True, type=output_file, help="file for the figures")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="canary-") as name:
        run_dir = Path(name)
        waits, refused = streamed(run_dir, arguments.rollouts, arguments.clients, *FLAGS)
        found = figures(run_dir, waits)
    write_json(
        arguments.json, {"machine": describe_machine(), "clients": arguments.clients, "refused": refused, **found}
    )
    print(json.dumps(found, indent=1))
    return int(refused > 0)


if __name__ == "__main__":
    sys.exit(main())
