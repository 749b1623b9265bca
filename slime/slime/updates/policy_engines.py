"""The policy engines as the driver sees them: which weights they serve, and whether they or the trainer have the GPUs.

Guarantees: an engine restarted after a crash gets the weights that serve before anything else happens with it. An engine that
fails during a push is restarted and gets them again. With ``--canary-engine`` one engine gets a candidate before the others,
which keep what serves until the gate has accepted it; no request waits for that decision.

With ``--colocate`` trainer and engines alternate on their GPUs. One round: the engines generate and release their memory; the
trainer's memory returns; it steps, saves and releases its memory; the engines reserve their weights, receive the push, and
reserve their cache. During a push the engines hold only their weights, and the trainer sends one tensor at a time. Without
``--offload-train`` and ``--offload-rollout`` both keep their memory, and only the order of the work remains.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TypeVar

import ray
from ray import ObjectRef
from ray.exceptions import RayActorError

from groundwork.people import mark_of
from groundwork.process import Stopped
from groundwork.tracing import record as record_span
from slime.args import Arguments
from slime.backends.sglang_utils.engine import CACHE, WEIGHTS
from slime.exceptions import EngineNodeLostError, LostError, TrainerError
from slime.rollout.before_push import Canary, Offered
from slime.utils.alerts import tell
from slime.utils.misc import should_run_periodic_action
from slime.utils.run_logs import say
from slime.weight_sync.remote_engine import EngineLife, lives_of

if TYPE_CHECKING:
    from slime.ray.processes import Processes

logger = logging.getLogger(__name__)

PUSH_ATTEMPTS = 3
POLL_SECONDS = 2.0
T = TypeVar("T")


class Engines:
    """Owned by the driver's main thread.

    Attributes:
        version: the weight version that they serve, with ``--adapter-per-person`` to whom the trainer trains; empty before the
            first push.
        sleep: whether the engines release their memory while the trainer works.
        trainer_leaves: whether the trainer releases its memory while the engines work.
    """

    def __init__(self, args: Arguments, processes: Processes) -> None:
        self.version = ""
        self.sleep = bool(args.offload_rollout)
        self.trainer_leaves = bool(args.offload_train)
        self._args = args
        self._processes = processes
        self._trainer_works = False
        self._canary: Canary | None = None
        self._offered: list[Canary] = []
        """The engines that have a candidate which nobody has accepted."""
        self._arrivals = 0
        """How often all engines got the same weights after one of them started."""

    @property
    def get_weights(self) -> bool:
        """Whether a trainer pushes weights to them; adapters per person are published without engines, too."""
        serves = not self._args.debug_train_only or self._args.adapter_per_person
        return self._processes.has_trainer and serves

    def let_in(self, person: str) -> None:
        """Let the trainer, which has the GPUs, train the adapter of ``person`` from now on."""
        self.version = self._processes.trainer.let_in(mark_of(person))

    # Looking after them

    def look_after(self) -> None:
        """Restart dead engines; raise :class:`Stopped` on a signal, and a LostError after a loss."""
        if self._processes.stop:
            raise Stopped
        self._processes.check_nodes()
        if self.version:
            self.recover()

    def recover(self) -> None:
        """Push the weights that serve to restarted engines; raise NodeLostError if a machine is lost."""
        self._processes.check_nodes()
        revived = self._revived()
        if revived and self.get_weights:
            tell("engine", f"{revived} engine(s) died and were restarted")
            say(f"{revived} engine(s) restarted, sending the weights")
            self.push(connect=True)

    def _revived(self) -> int:
        return self._processes.value(self._processes.manager.recover_engines())

    # Pushes

    def push(self, *, connect: bool) -> None:
        """Push the trainer's weights to all engines; ``connect``: engines started since the last push.

        A push that fails on an engine ends that engine (`slime.weight_sync`). It is restarted, and all engines get the
        weights again, in at most ``PUSH_ATTEMPTS`` attempts. Any other failure is raised.
        """
        trainer, processes = self._processes.trainer, self._processes
        began = time.time()
        for attempt in range(1, PUSH_ATTEMPTS + 1):
            try:
                if connect:
                    trainer.connect_rollout_engines(processes.value(processes.manager.engine_handles()))
                self.version = trainer.update_weights()
                if connect:
                    self._all_have_the_same(died=processes.value(processes.manager.weights_arrived()))
                record_span("push", began, time.time() - began, version=self.version, attempts=attempt)
                return
            except LostError:
                raise
            except TrainerError:
                if attempt == PUSH_ATTEMPTS or not self._revived():
                    raise
                logger.exception("an engine failed in a weight update (attempt %d); sending the weights again", attempt)
                connect = True  # the restarted engine is in no group yet

    # GPUs that trainer and engines share

    @property
    def alternate(self) -> bool:
        """Whether they or the trainer have to leave before the other works."""
        return self.sleep or self.trainer_leaves

    def before_a_trainer(self) -> None:
        """Make room for a trainer that is about to start."""
        self._fall_asleep()
        self._trainer_works = True

    def leave_gpus(self) -> None:
        """Give the GPUs to the trainer; a no-op if it has them."""
        if self._trainer_works:
            return
        self._fall_asleep()
        self._trainer_works = True
        if self.trainer_leaves:
            self._processes.trainer.onload()

    def take_gpus(self, *, connect: bool = False, push: bool = True) -> None:
        """Let the engines work again, by default after a push; ``connect`` reconnects even if none restarted."""
        if self._trainer_works and self.trainer_leaves:
            self._processes.trainer.offload()
        self._trainer_works = False
        self._wake(WEIGHTS)
        if push:
            self.push(connect=connect or self._revived() > 0)
        self._wake(CACHE)

    def serve_again(self) -> None:
        """Wake the engines that had to sleep for a checkpoint, when no publication of an update follows."""
        if self.get_weights and self.alternate:
            self.take_gpus(push=self.sleep)

    def _wake(self, parts: tuple[str, ...]) -> None:
        if self.sleep:
            self._processes.value(self._processes.manager.wake_engines(parts))

    def _fall_asleep(self) -> None:
        """Let the engines release their memory; a run that ends kills them, which is quicker."""
        if self.sleep:
            manager = self._processes.manager
            self._processes.value(manager.end_engines() if self._processes.ending else manager.sleep_engines())

    # One engine first

    def begin_trial(self) -> Canary:
        """Give the trainer's weights to the last engine; attempts again after an engine died of it or beside it."""
        for attempt in range(1, PUSH_ATTEMPTS + 1):
            canary = self._set_apart()
            try:
                self._processes.trainer.push_candidate()
            except LostError:
                raise
            except TrainerError:
                if attempt == PUSH_ATTEMPTS or not self._recovered(canary):
                    raise
                logger.exception("the candidate did not reach its engine (attempt %d); sending it again", attempt)
            else:
                say("one engine has the candidate")
                return canary
        raise AssertionError("the last attempt returns or raises")

    def _set_apart(self) -> Canary:
        """Take the last engine out of the router, once it may get the candidate."""
        manager = self._processes.manager
        while True:
            arrivals = self._arrivals
            engine = self._wait(manager.set_apart())
            if engine is not None and arrivals == self._arrivals:
                self._canary = canary = Canary(engine.url, engine.lives)
                return canary
            self.look_after()  # with new weights meanwhile, the router knows the engine again

    def urls(self) -> list[str]:
        """Return where engines answer that may be offered a candidate.

        None while the trainer has their GPUs, and none with a canary, which is asked before.
        """
        return [engine.url for engine in self._offerable()]

    def _offerable(self) -> list[EngineLife]:
        """Return the engines of `urls`.

        One whose actor is gone is restarted first, in at most ``PUSH_ATTEMPTS`` attempts.
        """
        if self.alternate or not self.get_weights or self._args.canary_engine:
            return []
        for attempt in range(1, PUSH_ATTEMPTS + 1):
            handles = self._processes.value(self._processes.manager.engine_handles())
            try:
                return lives_of(dict(enumerate(handles)))
            except (RayActorError, EngineNodeLostError):
                if attempt == PUSH_ATTEMPTS:
                    raise
                logger.exception("the actor of an engine is gone (attempt %d); restarting it", attempt)
                self.look_after()
        raise AssertionError("the last attempt returns or raises")

    def offer(self) -> Offered:
        """Give the trainer's weights to all engines before they are accepted; attempts again after an engine died of it.

        Engines that share their GPUs with the trainer sleep now, so none gets them.
        """
        self._offered = []
        for attempt in range(1, PUSH_ATTEMPTS + 1):
            engines = self._offerable()  # before they have it: a restart of one gives all of them what serves
            if not engines:
                return Offered()
            try:
                sent = self._processes.trainer.offer_candidate()
            except LostError:
                raise
            except TrainerError:
                if attempt == PUSH_ATTEMPTS:
                    raise
                logger.exception("the candidate did not reach the engines (attempt %d); sending it again", attempt)
                self.look_after()
            else:
                self._offered = [Canary(engine.url, engine.lives) for engine in engines]
                return Offered(tuple(self._offered), sent.adapter, sent.digest)
        raise AssertionError("the last attempt returns or raises")

    def end_trial(self, *, accepted: bool) -> None:
        """Let the router use the first engine again; engines with a refused candidate get what serves before."""
        have_it = [engine for engine in (self._canary, *self._offered) if engine is not None]
        if have_it and not accepted:
            self._take_back(have_it[0])
        had_one = self._canary is not None
        self.abandon_trial("the gate has decided")
        if not had_one:
            return
        # Ignore signals: a run that stops between the decision and its count would save the steps under an earlier rollout.
        self._processes.value(self._processes.manager.rejoin(), heed_signals=False)

    def _take_back(self, canary: Canary) -> None:
        try:
            self._processes.trainer.take_candidate_back()
        except LostError:
            raise
        except TrainerError:
            if not self._recovered(canary):
                raise
            logger.exception("the engine with the refused candidate failed; it restarted with the weights that serve")

    def abandon_trial(self, why: str) -> None:
        """Let the plugin know that the engines' trial is over; the next push to all engines ends it there."""
        for engine in (self._canary, *self._offered):
            if engine is not None:
                engine.end(why)
        self._canary, self._offered = None, []

    def _all_have_the_same(self, *, died: bool | None) -> None:
        """Note that all engines have the same weights; ``died``: of an engine with a candidate, None without one."""
        self._arrivals += 1
        for engine in self._offered:
            engine.end("all engines got the same weights")
        if self._canary is not None and died is not None:
            self._canary.end("the engine died" if died else "all engines got the same weights", died=died)

    def _recovered(self, canary: Canary) -> bool:
        """Restart dead engines; return whether all engines got the weights that serve."""
        self.look_after()
        return canary.ended

    def _wait(self, reference: ObjectRef[T]) -> T:
        """Look after the engines until the rollout manager answers."""
        while not ray.wait([reference], timeout=POLL_SECONDS)[0]:
            self.look_after()
        return self._processes.value(reference, heed_signals=False)


def push_is_due(args: Arguments, rollout_id: int) -> bool:
    """Return whether a push follows ``rollout_id``: at the interval and after the last rollout."""
    return should_run_periodic_action(rollout_id, args.update_weights_interval, None, args.num_rollout)
