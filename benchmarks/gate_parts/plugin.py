"""A gate as large as a real one: 128 probes, each with a stored reply of 40 tokens, 8 with a greedy reply of up to 48."""

from __future__ import annotations

import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from slime.args import Arguments
from slime.rollout.before_push import Decision, Policies, Probe

PROBES, PROMPT_TOKENS, REPLY_TOKENS, GREEDY, GREEDY_TOKENS = 128, 100, 40, 8, 48
WINDOWS = "gate_windows.jsonl"


def probes(vocabulary: int = 1000) -> list[Probe]:
    """Return the same random probes each time."""
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(3, vocabulary) for _ in range(count)]

    return [Probe(ids(PROMPT_TOKENS), ids(REPLY_TOKENS), GREEDY_TOKENS if n < GREEDY else 0) for n in range(PROBES)]


def decide(args: Arguments, rollout_id: int, data_source: Any, policies: Policies) -> Decision:
    """Ask both versions and accept; write down when it began and ended."""
    start = time.time()
    means = [
        statistics.fmean(statistics.fmean(answer.log_probs) for answer in policy.ask(probes())) for policy in policies
    ]
    with Path(args.run_dir, WINDOWS).open("a") as file:
        file.write(json.dumps({"rollout_id": rollout_id, "start": start, "end": time.time()}) + "\n")
    return Decision(True, f"means {means[0]:.3f} and {means[1]:.3f}", {"gate/margin": means[1] - means[0]})
