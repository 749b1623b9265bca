"""A ``--before-push-path`` plugin that writes down both versions' answers, refuses one rollout, and can be held up."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from slime.rollout.before_push import Decision, Policies, Probe

PROBES = [Probe([9, 8, 7], [6, 5, 4, 3], 8), Probe([100, 200], [300], 0), Probe([12] * 9, (), 5)]
REFUSED = 1


def answers_file(run_dir: str | Path, rollout_id: int) -> Path:
    """Where the plugin writes what it heard about a rollout."""
    return Path(run_dir, f"gate-{rollout_id}.json")


def decide(args: Any, rollout_id: int, data_source: Any, policies: Policies) -> Decision:
    """Ask both versions. While ``gate-hold`` is in the run's folder, say so with ``gate-held`` and wait between the two."""
    found = {"versions": [policy.version for policy in policies], "serving": policies.serving.ask(PROBES)}
    while Path(args.run_dir, "gate-hold").exists() and rollout_id > REFUSED:
        Path(args.run_dir, "gate-held").touch()
        time.sleep(0.05)
    found["candidate"] = policies.candidate.ask(PROBES)
    answers_file(args.run_dir, rollout_id).write_text(json.dumps(found))
    accepted = rollout_id != REFUSED
    return Decision(accepted, "better" if accepted else "worse on 2 of 3 probes", {"gate/margin": 0.25})
