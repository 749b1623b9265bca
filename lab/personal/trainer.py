"""Waits until a run has learned from everything that was said, so that a count of sessions does not depend on the machine's speed."""

from __future__ import annotations

import asyncio
import json
import time

from lab.tiny_demo.launched import LaunchedRun, RunFailed
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import ARGUMENTS_NAME

POLL_SECONDS = 0.1
STUCK_SECONDS = 300.0


class Trainer:
    """The run's trainer as its ledger shows it; owns neither."""

    def __init__(self, run: LaunchedRun, ledger: Ledger) -> None:
        """Read the run's batch size from its folder; the run must be up."""
        arguments = json.loads((run.settings.run_dir / ARGUMENTS_NAME).read_text())
        self.batch = int(arguments["rollout_batch_size"])
        self._holds_weights = int(arguments["update_weights_interval"]) > 1
        self._run, self._ledger = run, ledger

    @property
    def updates(self) -> int:
        """Return the number of updates whose weights are live."""
        return int(self._ledger.views.counts()["steps"])

    @property
    def ready(self) -> int:
        """Return the number of samples that wait for a batch."""
        return self._ledger.samples.ready_count()

    @property
    def samples_trained(self) -> int:
        """Return the number of samples in the updates so far."""
        return sum(step["samples"] for step in self._ledger.views.step_records())

    async def settle(self) -> None:
        """Return when no reaction waits for its judge and no update is due or under way.

        With ``--update-weights-interval`` above 1 an update is not live at once, so it is not waited for.

        Raises:
            RunFailed: the run ended, or nothing changed for `STUCK_SECONDS`.
        """
        seen, since = None, time.monotonic()
        while True:
            self._run.check()
            pending = int(self._ledger.views.counts()["turns"].get("pending", 0))
            leased = 0 if self._holds_weights else self._ledger.samples.untrained_leases()
            state = (pending, self.ready, leased)
            if pending == 0 and state[1] < self.batch and leased == 0:
                return
            if state != seen:
                seen, since = state, time.monotonic()
            if time.monotonic() - since > STUCK_SECONDS:
                raise RunFailed(
                    f"nothing changed for {STUCK_SECONDS:.0f} s: {pending} turns wait for the judge, {state[1]} samples are "
                    f"ready, {leased} are in an update that is not live; see {self._run.log_path}"
                )
            await asyncio.sleep(POLL_SECONDS)
