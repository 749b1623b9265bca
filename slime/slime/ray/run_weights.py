"""Which weights a run serves and keeps: pushes, checkpoints, engines that restarted, and going back on command.

Guarantees: * An engine restarted after a crash gets the trainer's weights before anything else happens with it. An engine that
fails during a push is restarted and gets the weights again.
* A checkpoint counts once both the trainer's and the data source's part are written.
* SIGTERM and SIGINT are noticed within two seconds, except that a training step or a checkpoint is finished first.
"""

from __future__ import annotations

from typing import Any

import ray

from groundwork.process import Stopped
from slime.ray.nodes import check_nodes
from slime.ray.pushes import send_weights
from slime.ray.report import say
from slime.ray.run_core import RunCore
from slime.ray.run_state import Phase
from slime.utils.misc import should_run_periodic_action

POLL_SECONDS = 2.0


class RunWeights(RunCore):
    """The weights of a run; see `slime.ray.run_core` for the layers."""

    def wait(self, reference: Any) -> Any:
        """Return the value of a reference, and meanwhile recover engines and go back to older weights if asked.

        Raises:
            Stopped: a signal arrived.
        """
        while True:
            if self.stop:  # checked first, so that a loop whose batches are always ready ends too
                raise Stopped
            done, _ = ray.wait([reference], timeout=POLL_SECONDS)
            if done:
                return self._value(reference)
            self._look_after()
            if not self._alternation.alternates:
                self._roll_back()

    def _served_a_moment(self) -> bool:
        """Look after engines, and go back if asked, in `POLL_SECONDS` from now; return False once a signal arrives."""
        if self.stop.wait(POLL_SECONDS):
            return False
        self.recover()
        self._roll_back()
        return True

    def _look_after(self) -> None:
        """Restart engines; raise :class:`Stopped` on a signal, and a LostError after a loss."""
        if self.stop:
            raise Stopped
        check_nodes(self._processes.nodes())
        if self.weight_version:
            self.recover()

    # Pushes

    def recover(self) -> None:
        """Push the trainer's weights to restarted engines; raise NodeLostError if a machine is lost."""
        check_nodes(self._processes.nodes())
        revived = self._ask("recover_engines")
        if revived and self._serves_engines():
            say(f"{revived} engine(s) restarted, sending the weights")
            self._send_weights(connect=True)

    def _serves_engines(self) -> bool:
        return self._processes.trainer is not None and not self.args.debug_train_only

    def _hand_over(self, *, connect: bool = False, push: bool = True) -> None:
        """Let the engines work again, by default after a push; ``connect`` reconnects even if none restarted."""
        assert self._processes.trainer is not None

        def send() -> None:
            if push:
                self._send_weights(connect=connect or self._ask("recover_engines") > 0)

        self._alternation.for_engines(self._processes.trainer, send)

    def _send_weights(self, *, connect: bool) -> None:
        """Push the trainer's weights to all engines."""
        assert self._processes.trainer is not None
        self.weight_version = send_weights(self._processes.trainer, self._ask, connect=connect)

    def _let_engines_serve(self) -> None:
        """Wake the engines that had to sleep for a checkpoint, when no :meth:`publish` follows."""
        if self._serves_engines() and self._alternation.alternates:
            self._hand_over(push=self._alternation.engines_sleep)

    # Checkpoints

    def save_if_due(self, rollout_id: int) -> None:
        """Write a checkpoint at the interval, at the end of an epoch (``--num-epoch``) and at the last rollout."""
        args = self.args
        due = should_run_periodic_action(rollout_id, args.save_interval, self._progress.per_epoch, args.num_rollout)
        if args.save and due and self._progress.saved != rollout_id:
            self.save(rollout_id)

    def _unsaved(self) -> bool:
        return bool(self.args.save) and self._progress.unsaved

    def save(self, rollout_id: int | None) -> None:
        """Write a checkpoint of weights and data source after ``rollout_id``; it counts once both are written."""
        trainer, manager = self._processes.trainer, self._processes.manager
        if trainer is None or manager is None or rollout_id is None:
            return
        self._alternation.for_trainer(trainer)
        folder = trainer.save(rollout_id)
        if rollout_id != self._progress.saved:  # else its position is saved, and the data source has moved on
            # Ignore signals: an interrupted checkpoint would have to start over.
            self._processes.value(manager.save.remote(rollout_id), None)
        trainer.publish(rollout_id)
        self._note_saved(rollout_id)
        kept = f"; the newest {self.args.save_keep} are kept" if self.args.save_keep else ""
        say(f"saved {folder}{kept}")

    def _note_saved(self, rollout_id: int) -> None:
        self._progress.saved = rollout_id
        self._restarts.saved(rollout_id)

    def _roll_back(self) -> None:
        """Go back to the checkpoint that someone asked for, if any, and push its weights under a new version."""
        trainer, progress, last = self._processes.trainer, self._progress, self._progress.last
        if trainer is None or not self._serves_engines() or self._life.phase is not Phase.UP:
            return
        with self._rollbacks.due(self.weight_version) as saved:
            if saved is None:
                return
            self._alternation.for_trainer(trainer)
            progress.between = True  # a run that stops meanwhile saves no older weights as those after its last steps
            trainer.restore(saved.iteration)
            self._hand_over(push=True)
            self._ask("on_weights_restored", saved.rollout_id, last, self.weight_version)
            progress.between = False
            self.save(last)
        self._let_engines_serve()
        say(f"weights {saved.weight_version} serve again, as version {self.weight_version}")
