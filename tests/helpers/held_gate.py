"""The real gate and the ledger's data source, with moments that a test can hold.

While ``hold-MOMENT`` is in the run's folder, whoever reaches the moment copies it to ``held-MOMENT`` and waits until it has other
words or is gone. The moments: ``probe`` after the serving version has answered, ``undone`` once a refused batch is in
quarantine and before the checkpoint without its steps, ``restored`` once a rollback is in the ledger and before its checkpoint.
While ``refuse`` is in the folder, users' opinions speak against every update; otherwise the gate decides.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from openclaw.gate import plugin
from openclaw.training.rollout import LedgerDataSource
from slime.args import Arguments
from slime.rollout.before_push import Answer, Canary, Candidate, Decision, Offered, Policies, Probe, Trained

REFUSE = "refuse"


def hold_file(run_dir: str | Path, moment: str) -> Path:
    """While this file is there, the moment lasts."""
    return Path(run_dir, f"hold-{moment}")


def held_file(run_dir: str | Path, moment: str) -> Path:
    """Somebody waits at the moment."""
    return Path(run_dir, f"held-{moment}")


def words_of(file: Path) -> str | None:
    """What a file says; None without it."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return None


def write_whole(file: Path, words: str) -> None:
    """Write a file that nobody can read half."""
    part = file.with_suffix(".part")
    part.write_text(words)
    part.replace(file)


def wait_at(run_dir: str, moment: str) -> None:
    """Say that the moment has come, and wait as long as it is held."""
    words = words_of(hold_file(run_dir, moment))
    if words is None:
        return
    write_whole(held_file(run_dir, moment), words)
    while words_of(hold_file(run_dir, moment)) == words:
        time.sleep(0.05)


class HeldCandidate:
    """The candidate, whose answers can be held up."""

    def __init__(self, policy: Candidate, run_dir: str) -> None:
        self._policy, self._run_dir = policy, run_dir

    @property
    def version(self) -> str:
        """Of the weights."""
        return self._policy.version

    def ask(self, probes: Sequence[Probe]) -> list[Answer]:
        """Return the policy's answers once nobody holds the moment."""
        wait_at(self._run_dir, "probe")
        return self._policy.ask(probes)

    @property
    def trained(self) -> Trained:
        """What the trainer says of the steps."""
        return self._policy.trained

    def engines(self) -> Sequence[str]:
        """Return where the engines answer."""
        return self._policy.engines()

    def on_all_engines(self) -> Offered:
        """Return all engines once they have it."""
        return self._policy.on_all_engines()

    def on_one_engine(self) -> Canary:
        """Return the engine that tries it, at once."""
        return self._policy.on_one_engine()


def decide(args: Arguments, rollout_id: int, data_source: object, policies: Policies) -> Decision:
    """Decide as the gate does, but for the file ``refuse``."""
    found = plugin.decide_on

    def decide_on(*inputs: Any) -> Any:
        finding = found(*inputs)
        if not Path(args.run_dir, REFUSE).exists():
            return finding
        return replace(finding, refusals=("users dislike it",), by_margin=True)

    with patch.object(plugin, "decide_on", decide_on):
        held = Policies(policies.serving, HeldCandidate(policies.candidate, args.run_dir))
        return plugin.decide(args, rollout_id, data_source, held)


class HeldDataSource(LedgerDataSource):
    """The ledger's data source with two moments."""

    def step_undone(self, rollout_id: int, why: str) -> None:
        """Quarantine the batch, then wait."""
        super().step_undone(rollout_id, why)
        wait_at(self.args.run_dir, "undone")

    def weights_restored(self, rollout_id: int, from_rollout_id: int, version: str) -> None:
        """Record the rollback, then wait."""
        super().weights_restored(rollout_id, from_rollout_id, version)
        wait_at(self.args.run_dir, "restored")
