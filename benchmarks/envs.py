"""What environments cost: episodes per second, calls, kills, a long run, and how it grows with hosts.

`python -m benchmarks.envs [--quick] [--only PART ...] [--simulate] [--soak MINUTES] [--json FILE]`. Parts:

* `episodes`: by number of parallel environments, on a real pool over HTTP, beside a pool in the client's process, which is
  the limit; an environment that does nothing, one that runs a program per step, and a shell task in a sandbox.
* `sandbox`: start of a sandbox, and a call in it, beside a plain subprocess, which is the limit.
* `calls`: a hundred programs at a time, and the longest gap of the server's event loop meanwhile.
* `tokens`: tokens processed per episode of 10 turns, merged beside alone.
* `orphans`: a pool is killed in the middle of its work, with plain programs and with sandboxes; which processes, control
  groups, temporary files and records are left after the next one's start.

`--simulate` adds the forecast: episodes per second of several hosts, from the latencies that this run or `--recorded`
holds, with its error against the measured figures of one host. `--soak` plays for minutes, 32 sandboxes
at a time, in ten rounds, and looks at the server between them: nothing may be left, no close may fail, and memory may grow
only within the bounds of `benchmarks.env_parts.soak`. Exit status 1 if anything is left after a kill or a soak is not met;
the rest is recorded, not judged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentrl.client import HttpLeases
from benchmarks.env_parts.calls import concurrent_calls
from benchmarks.env_parts.forecast import Engine, Recorded, growth, predict
from benchmarks.env_parts.kinds import KINDS, WITH_PROGRAMS
from benchmarks.env_parts.load import Record, drained, run
from benchmarks.env_parts.orphans import orphans
from benchmarks.env_parts.sandboxes import sandbox_figures
from benchmarks.env_parts.servers import in_process, pool_words, started
from benchmarks.env_parts.soak import soak
from benchmarks.env_parts.statistics import milliseconds
from benchmarks.env_parts.tokens import processed
from benchmarks.machine import REPOSITORY, describe_machine
from groundwork.command_line import output_file

PARTS = ("episodes", "sandbox", "calls", "tokens", "orphans")
STEPS = 5
ENGINE = REPOSITORY / "benchmarks/baselines/gateway_cpu.json"
HOSTS = (1, 2, 4, 8, 16, 32)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.envs", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of `episodes`; default: all")
    parser.add_argument("--parallel", type=int, nargs="+", default=[1, 8, 32], help="environments (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run (default: %(default)s)")
    parser.add_argument("--simulate", action="store_true", help="also forecast more hosts; needs `episodes`")
    parser.add_argument("--recorded", type=Path, metavar="FILE", help="take the latencies of an earlier --json instead")
    parser.add_argument("--engine", type=Path, default=ENGINE, metavar="FILE", help="turns of `benchmarks.gateway`")
    parser.add_argument("--engines", type=int, default=1, metavar="N", help="of the forecast (default: %(default)s)")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="also play for so long")
    parser.add_argument(
        "--soak-kind", choices=WITH_PROGRAMS, default="Shell", help="of the soak (default: %(default)s)"
    )
    parser.add_argument("--soak-parallel", type=int, default=32, help="environments of the soak (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="short runs: checks that it works")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures to this file")
    options = parser.parse_args()
    if options.simulate and options.recorded is None and "episodes" not in options.only:
        parser.error("--simulate needs latencies; add the part `episodes`, or --recorded FILE")
    if options.quick:
        options.parallel, options.seconds = [1, 4], 1.0
    with tempfile.TemporaryDirectory(prefix="envs-") as folder:
        found = asyncio.run(measure(options, Path(folder)))
    document = {"machine": describe_machine(), "load_average": os.getloadavg()[0], **found}
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    met = all(found[part]["met"] for part in ("orphans", "soak") if part in found)
    return 0 if met else 1


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Take the asked figures, print a line for each part, and return them."""
    found: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        found[name] = value
        print(json.dumps({name: without_latencies(value)}), flush=True)

    few = options.quick
    if "tokens" in options.only:
        note("tokens", processed(5 if few else 200, 10))
    if "sandbox" in options.only:
        note("sandbox", await sandbox_figures(folder, 3 if few else 30))
    if "calls" in options.only:
        note("calls", await concurrent_calls(folder, 10 if few else 100))
    if "orphans" in options.only:
        left = {kind: await orphans(folder, KINDS[kind], 3 if few else 16) for kind in WITH_PROGRAMS}
        note("orphans", {**left, "met": all(each["met"] for each in left.values())})
    if "episodes" in options.only:
        note("episodes", {kind: await episodes(kind, options, folder) for kind in options.kinds})
    if options.simulate:
        source = json.loads(options.recorded.read_text()) if options.recorded else found
        note("forecast", forecast(source["episodes"], options))
    if options.soak:
        note("soak", await soak(folder, KINDS[options.soak_kind], parallel=options.soak_parallel, minutes=options.soak))
    return found


def without_latencies(value: Any) -> Any:
    """Return figures without the recorded distributions, which are for the file."""
    if not isinstance(value, dict):
        return value
    return {key: without_latencies(each) for key, each in value.items() if key != "recorded"}


async def episodes(kind: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the figures of one environment by number of parallel ones, and the latencies of a single one.

    A pool has twice as many slots, because an environment keeps its slot until it is closed.
    """
    task, environment = KINDS[kind].task, KINDS[kind].environment
    runs = {"parallel": 1, "seconds": options.seconds, "warm_up": options.seconds / 5}
    actions, most = [KINDS[kind].action] * STEPS, max(options.parallel)
    rows: list[dict[str, Any]] = []
    with started("agentrl.pool", *pool_words(folder / f"{kind}.sqlite", 2 * most, [environment])) as server:
        async with (
            in_process(folder / f"{kind} beside.sqlite", 2 * most, [environment]) as limit,
            HttpLeases(server.url) as service,
        ):
            settled = await run(service, task, actions, servers=[server], settles=True, **runs)
            alone = await run(service, task, actions, servers=[server], **runs)
            await drained(service)
            for parallel in options.parallel:
                runs["parallel"] = parallel
                ours = await run(service, task, actions, servers=[server], **runs)
                await drained(service)
                beside = await run(limit, task, actions, **runs)
                await drained(limit)
                rows.append(row(parallel, ours, beside))
        with started("agentrl.router", "--worker", f"a={server.url}") as router:
            async with HttpLeases(router.url) as service:
                runs["parallel"] = most
                routed = await run(service, task, actions, servers=[router, server], **runs)
    calls = sum(map(len, routed.latencies.values()))
    cores = len(os.sched_getaffinity(0))
    recorded = Recorded.of(alone, settled, STEPS, router_s=routed.server_s[0] / calls, cores=cores)
    through = {
        "parallel": most,
        "episodes_per_s": round(routed.rate, 2),
        "step_ms": milliseconds(routed.latencies["step"]),
    }
    return {"steps": STEPS, "parallel": rows, "through_a_router": through, "recorded": asdict(recorded)}


def row(parallel: int, ours: Record, limit: Record) -> dict[str, Any]:
    """Return the figures of a pool over HTTP beside one in the client's process."""
    return {
        "environments": parallel,
        "episodes_per_s": round(ours.rate, 2),
        "step_ms": milliseconds(ours.latencies["step"]),
        "pool_busy": round(ours.server_s[0] / ours.seconds, 3),
        "client_busy": round(ours.client_s / ours.seconds, 3),
        "in_process": {
            "episodes_per_s": round(limit.rate, 2),
            "step_ms": milliseconds(limit.latencies["step"]),
        },
        "ratio": round(ours.rate / limit.rate, 3),
    }


def forecast(measured: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return the simulation's error against each measured row, and the growth with hosts; print nothing."""
    engine = Engine.read(options.engine)
    found: dict[str, Any] = {"engine": {"file": options.engine.name, "engines": options.engines, **vars(engine)}}
    for kind, figures in measured.items():
        recorded = Recorded(**figures["recorded"])
        checks = []
        for each in figures["parallel"]:
            simulated = predict(recorded, hosts=1, slots=each["environments"], router=False)
            error = 100 * (simulated.rate / each["episodes_per_s"] - 1)
            checks.append(
                {
                    "environments": each["environments"],
                    "measured_per_s": each["episodes_per_s"],
                    "simulated_per_s": round(simulated.rate, 2),
                    "error_percent": round(error, 1),
                }
            )
        slots = max(each["environments"] for each in figures["parallel"])
        hosts = HOSTS[:3] if options.quick else HOSTS
        found[kind] = {
            "one_host": checks,
            "hosts": growth(recorded, engine, hosts, slots=slots, engines=options.engines),
        }
    return found


if __name__ == "__main__":
    sys.exit(main())
