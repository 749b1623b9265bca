"""Does the gate stop bad updates and let good ones pass? What it costs is measured by `benchmarks.gate`.

`python -m benchmarks.gate_opinions [--quick] --json FILE [--seeds 0,1,2]`. Measurements:

* **flipped**: three batches with all verdicts flipped, with and without the gate; the held-out share of liked replies of the
  served version before, its lowest value, and after.
* **healthy**: no flips; refusals are false. The errors and margins of the decisions are recorded, too.
* **taste**: the user likes the opposite from some batch on, and accepts what is offered.
* **tabular**: the first three on a policy of a few styles (`gate_parts.tabular`), with many seeds.
* **owners**: one person must not pay for another. Updates that help or harm a quiet person while a loud one contradicts
  (`gate_parts.owners`), false refusals with many people of the same taste, and a rival who joins a tabular run.

The others simulate the loop in one process on the tiny model, with the real ledger and gate (`gate_parts.simulated`). A case in FILE is
kept, so an interrupted benchmark continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from benchmarks.gate_parts import owners, tabular
from benchmarks.gate_parts.simulated import Outcome, Setting, simulate
from benchmarks.machine import describe_machine
from groundwork.command_line import output_file
from openclaw.config.runtime_variables import GateVariables

WARM_UP = 14
STEADY = 40
FLIPPED = 3
LONG = 35
AFTER = 3
RATE = 3e-4
PEOPLE = (2, 8, 40)
WITHOUT_REPLIES = replace(GateVariables(), gate_replies=0)
"""What opinions decide; greedy replies are left out."""


def setting(seed: int, quick: bool) -> Setting:
    """Return a healthy run."""
    return Setting(seed, updates=WARM_UP + FLIPPED + AFTER, learning_rate=RATE, held_out=96 if quick else 192)


def flipped(seed: int, quick: bool, *, gated: bool) -> dict:
    """Return what three batches of flipped verdicts do to the served version."""
    wrong = tuple(range(WARM_UP, WARM_UP + FLIPPED))
    found = simulate(replace(setting(seed, quick), flipped=wrong, gated=gated), WITHOUT_REPLIES)
    before, during = found.liked[WARM_UP], found.liked[WARM_UP + 1 : WARM_UP + FLIPPED + 1]
    return {
        "liked_before": before,
        "largest_fall": round(before - min(during), 4),
        "liked_at_end": found.liked[-1],
        "flipped_refused": sum(each in wrong for each in found.refused),
        "others_refused": sum(each not in wrong for each in found.refused),
        **traces(found),
    }


def healthy(seed: int, quick: bool) -> dict:
    """Return the false refusals of a healthy run."""
    found = simulate(setting(seed, quick), WITHOUT_REPLIES)
    return {"decisions": len(found.margins), "false_refusals": len(found.refused), **traces(found)}


def taste(seed: int, quick: bool) -> dict:
    """Return how a change of taste is followed once it is accepted; ``liked`` counts the old rule."""
    changes = replace(setting(seed, quick), updates=WARM_UP + 12, new_taste_from=WARM_UP, accepts=True)
    found = simulate(changes, WITHOUT_REPLIES)
    at = found.accepted_at[0] if found.accepted_at else None
    return {
        "refused": found.refused,
        "accepted_at": found.accepted_at,
        "old_rule_at_change": found.liked[WARM_UP],
        "old_rule_at_acceptance": None if at is None else found.liked[at + 1],
        "old_rule_at_end": found.liked[-1],
        **traces(found),
    }


def many(seeds: int) -> dict:
    """Return figures of the policy of a few styles: false refusals, the worst falls, and how a new taste is followed."""

    def falls(flips: int, *, gated: bool) -> dict:
        wrong = tuple(range(STEADY, STEADY + flips))
        runs = [tabular.run(tabular.Case(seed, STEADY + flips, flipped=wrong, gated=gated)) for seed in range(seeds)]
        lost = [each.liked[STEADY] - min(each.liked[STEADY + 1 :]) for each in runs]
        return {
            "largest_fall_mean": round(statistics.mean(lost), 4),
            "largest_fall_worst": round(max(lost), 4),
            "runs_that_fall_by_more_than_0.05": sum(each > 0.05 for each in lost),
            "refused": sum(batch in wrong for each in runs for batch in each.refused),
        }

    calm = [tabular.run(tabular.Case(seed, STEADY + 20)) for seed in range(seeds)]
    changes = [
        tabular.run(tabular.Case(seed, STEADY + 60, new_taste_from=STEADY, accepts=True)) for seed in range(seeds)
    ]
    return {
        "seeds": seeds,
        "false_refusals": sum(len(each.refused) for each in calm),
        "decisions": sum(each.compared for each in calm),
        "flipped": {
            f"{flips}_batches_{'gated' if gated else 'ungated'}": falls(flips, gated=gated)
            for flips in (FLIPPED, LONG)
            for gated in (True, False)
        },
        "taste_changed": {
            "old_rule_before": round(statistics.mean(each.liked[STEADY] for each in changes), 4),
            "old_rule_at_end": round(statistics.mean(each.liked[-1] for each in changes), 4),
            "runs_with_an_acceptance": sum(bool(each.accepted_at) for each in changes),
        },
    }


def of_owners(seeds: int) -> dict:
    """Return figures of several people on one server."""
    steady = {
        count: [tabular.run(tabular.Case(seed, STEADY + 20, owners=count)) for seed in range(seeds)] for count in PEOPLE
    }
    rivals = {
        name: [tabular.run(tabular.Case(seed, STEADY + 60, rival_from=STEADY, gated=gated)) for seed in range(seeds)]
        for name, gated in (("gated", True), ("ungated", False))
    }
    return {
        "seeds": seeds,
        "quiet_and_loud": owners.figures(20),
        "same_taste": {
            f"{count}_people": {
                "false_refusals": sum(len(each.refused) for each in runs),
                "decisions": sum(each.compared for each in runs),
            }
            for count, runs in steady.items()
        },
        "rival": {
            name: {
                "largest_fall_worst": round(max(each.liked[STEADY] - min(each.liked[STEADY:]) for each in runs), 4),
                "liked_before": round(statistics.mean(each.liked[STEADY] for each in runs), 4),
                "liked_at_end": round(statistics.mean(each.liked[-1] for each in runs), 4),
                "refused": sum(len(each.refused) for each in runs),
            }
            for name, runs in rivals.items()
        },
    }


def traces(found: Outcome) -> dict:
    """Return the curves of a run, rounded."""
    rounded = {
        name: [None if each is None else round(each, 5) for each in values]
        for name, values in asdict(found).items()
        if name in ("liked", "margins", "errors", "to_best", "probes", "seconds")
    }
    return {"traces": rounded}


def summarise(cases: dict[str, dict]) -> dict:
    """Return the figures that people compare."""
    groups: dict[str, list[dict]] = {}
    for name, case in cases.items():
        groups.setdefault(name.partition(":")[0], []).append(case)
    summary: dict = {}
    for name in ("flipped_gated", "flipped_ungated"):
        if found := groups.get(name):
            falls = [case["largest_fall"] for case in found]
            summary[name] = {
                "largest_fall_mean": round(statistics.mean(falls), 4),
                "largest_fall_worst": max(falls),
                "flipped_refused": sum(case["flipped_refused"] for case in found),
                "flipped_batches": FLIPPED * len(found),
                "others_refused": sum(case["others_refused"] for case in found),
            }
    if found := groups.get("healthy"):
        summary["healthy"] = {
            "false_refusals": sum(case["false_refusals"] for case in found),
            "decisions": sum(case["decisions"] for case in found),
        }
    if found := groups.get("taste"):
        summary["taste"] = [
            {name: value for name, value in case.items() if name.startswith(("old", "acc", "ref"))} for case in found
        ]
    return {**summary, **{name: cases[name] for name in ("tabular", "owners") if name in cases}}


def main(argv: list[str] | None = None) -> int:
    """Measure what FILE lacks; write it after each case."""
    parser = argparse.ArgumentParser(prog="benchmarks.gate_opinions", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer held-out problems and seeds")
    parser.add_argument("--json", type=output_file, required=True, metavar="FILE", help="where the figures go")
    parser.add_argument("--seeds", default=None, help="numbers, separated by commas (default: 0,1,2; with --quick: 0)")
    options = parser.parse_args(argv)
    seeds = [int(word) for word in (options.seeds or ("0" if options.quick else "0,1,2")).split(",")]
    result = json.loads(options.json.read_text()) if options.json.exists() else {"cases": {}}
    cases: dict[str, dict] = result["cases"]
    quick = options.quick
    todo: dict[str, Callable[[], dict]] = {
        "tabular": lambda: many(4 if quick else 40),
        "owners": lambda: of_owners(2 if quick else 10),
    }
    for seed in seeds:
        todo[f"flipped_gated:{seed}"] = lambda seed=seed: flipped(seed, quick, gated=True)
        todo[f"flipped_ungated:{seed}"] = lambda seed=seed: flipped(seed, quick, gated=False)
        todo[f"healthy:{seed}"] = lambda seed=seed: healthy(seed, quick)
        todo[f"taste:{seed}"] = lambda seed=seed: taste(seed, quick)
    for number, (name, measure) in enumerate(todo.items(), start=1):
        if name in cases:
            continue
        started = time.monotonic()
        cases[name] = measure()
        print(f"{number}/{len(todo)} {name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        result |= {"machine": describe_machine(), "bounds": asdict(GateVariables()), "summary": summarise(cases)}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result.get("summary", {}), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
