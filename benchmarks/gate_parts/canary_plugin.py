"""A gate that tries every candidate on one engine, refuses every third, and writes down when; for `benchmarks.canary`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx

from slime.args import Arguments
from slime.rollout.before_push import Decision, Policies

WINDOWS = "canary-windows.jsonl"
SERVES_SECONDS = 1.0
REFUSES_EVERY = 3


def decide(args: Arguments, rollout_id: int, data_source: Any, policies: Policies) -> Decision:
    """Let one engine have the candidate for a moment and ask it for a reply."""
    start = time.time()
    engine = policies.candidate.on_one_engine()
    has = time.time()
    limits = {"temperature": 0.0, "max_new_tokens": 8}
    answer = httpx.post(f"{engine.url}/generate", json={"input_ids": [1, 29, 203], "sampling_params": limits}).json()
    found = str(answer["meta_info"]["weight_version"])
    if found != policies.candidate.version:
        raise RuntimeError(f"the engine has version {found}, not {policies.candidate.version}")
    engine.wait(SERVES_SECONDS)
    accepted = rollout_id % REFUSES_EVERY != REFUSES_EVERY - 1
    with Path(args.run_dir, WINDOWS).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"start": start, "has": has, "end": time.time(), "accepted": accepted}) + "\n")
    return Decision(accepted, "of the benchmark")
