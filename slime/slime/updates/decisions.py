"""Decisions before a push: whether the steps of a rollout may serve, asked of ``--before-push-path``.

Guarantees: a checkpoint and a push hold only weights that were accepted. A refusal brings weights, moments, schedule and random
state back bit for bit, and training goes on with the next batch. The plugin runs in a thread of the driver; what it asks of the
trainer and the engines, the driver's main thread does, so the ranks hear one caller. Between its questions the main thread
answers signals and restarts engines, which get the weights that serve; signals also while the ranks answer. A run that stops
meanwhile undoes the steps, so it saves none that nobody decided.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from groundwork.exceptions import ConfigError
from groundwork.paused import shown
from groundwork.process import Stopped
from slime.args import Arguments, required
from slime.arguments.algorithm import STATE_ELSEWHERE
from slime.arguments.option import flag_of
from slime.arguments.plugins import never_mentioned
from slime.exceptions import PluginError, SlimeError
from slime.observability.metric_utils import STEPS
from slime.rollout.before_push import (
    Answer,
    Canary,
    Decision,
    DecisionEndedError,
    Offered,
    Policies,
    Probe,
    Trained,
)
from slime.updates.update import State, Update
from slime.utils.alerts import tell
from slime.utils.misc import load_function
from slime.utils.run_logs import say, with_info

if TYPE_CHECKING:
    from slime.ray.processes import Processes
    from slime.updates.policy_engines import Engines

POLL_SECONDS = 2.0
ACCEPTED = "gate/accepted"
RED = "gate/certificate_red"
"""1 if the plugin found the certificate of an update red."""
T = TypeVar("T")


class Decisions:
    """Decides only with the flag. Owned by the driver's main thread."""

    def __init__(self, args: Arguments, processes: Processes, engines: Engines) -> None:
        self._args = args
        self._processes = processes
        self._engines = engines
        self._seconds: dict[str, float] = {}
        self._snapshot = False
        self._unread: set[str] = set(args.training_options_given) if args.before_push_path else set()
        """Attributes of training flags that somebody set, and that no process has read so far."""
        self._unused: frozenset[str] | None = None
        """Those that no code can read, once any was left."""

    def before_steps(self, passes: int) -> None:
        """Take the snapshot to which a refusal goes back, or a fuse that a later one of several passes blows.

        Raises:
            ConfigError: there are several passes and fuses, but no snapshot can be taken.
        """
        between = passes > 1 and bool(self._args.fuses)
        if between and (flags := [flag_of(name) for name in STATE_ELSEWHERE if getattr(self._args, name)]):
            raise ConfigError(f"--fuses cannot undo the first of {passes} passes with {flags[0]}; remove one of them")
        self._snapshot = between or bool(self._args.before_push_path)
        if self._snapshot:
            self._seconds = {}
            self._timed("snapshot", self._processes.trainer.take_snapshot)

    def after_steps(self, update: Update) -> None:
        """Move an update on to `State.ACCEPTED`, or to `State.UNDONE` if the plugin refuses it.

        The plugin is asked if the steps changed the weights, or if one was skipped. The update's metrics get the decision,
        the plugin's metrics and the seconds.
        """
        if not self._snapshot:
            if update.state is State.TRAINED:
                update.to(State.ACCEPTED)
            return
        trainer = self._processes.trainer
        if update.state is State.HELD:
            trainer.undo_steps()  # those of the passes before
            return
        serving, candidate = trainer.versions()
        skipped = any(step.get("train/skipped_steps") for step in update.steps.get(STEPS, []))
        if not self._args.before_push_path or (serving == candidate and not skipped):
            trainer.keep_steps()
            update.to(State.ACCEPTED)
            return
        update.to(State.PROBED)
        try:
            decision = self._timed("probe", lambda: self._decided(update, serving, candidate))
        except Stopped:
            trainer.undo_steps()
            raise
        if decision.accepted:
            trainer.keep_steps()
            update.to(State.ACCEPTED)
        else:
            self._timed("restore", trainer.undo_steps)
            update.to(State.UNDONE)
            update.undone = decision.why
        self._engines.end_trial(accepted=decision.accepted)
        if not decision.accepted:
            whom = f" {shown(update.person)}" if self._args.adapter_per_person else ""
            red = "its certificate is red, and " if decision.metrics.get(RED) else ""
            tell(
                "refused", f"{red}the gate refused the update of step {update.rollout_id}; the weights of before serve"
            )
            say(
                f"step {update.rollout_id} is undone: {decision.why}; weights {serving} keep serving{whom}, training goes on"
            )
        update.metrics.update(decision.metrics | {ACCEPTED: float(decision.accepted)} | self._seconds)

    def _decided(self, update: Update, serving: str, candidate: str) -> Decision:
        """Run the plugin, tell the data source what it decided, and return it."""
        processes, path = self._processes, required("--before-push-path", self._args.before_push_path)
        plugin = load_function(path)
        source, args = DataSourceOfManager(processes), self._args_of_plugin()
        thread = PluginThread(self._engines.look_after)
        policies = Policies(
            AskedPolicy(thread, serving, lambda probes: processes.trainer.ask(True, probes)),
            AskedCandidate(
                thread,
                candidate,
                lambda probes: processes.trainer.ask(False, probes),
                WorkForCandidate(
                    self._trained(update),
                    self._engines.urls,
                    lambda: self._timed("offer", self._engines.offer),
                    (lambda: self._on_one_engine(update)) if self._args.canary_engine else None,
                ),
            ),
        )
        try:
            decision = thread.run(lambda: plugin(args, update.rollout_id, source, policies))
            if not isinstance(decision, Decision):
                raise PluginError(f"--before-push-path {path} returned {decision!r:.100}; return a Decision")
            processes.value(processes.manager.on_gate_decided(update.rollout_id, decision))
        except BaseException:
            self._engines.abandon_trial("the trainer died, or the run ends")
            raise
        return decision

    def _trained(self, update: Update) -> Trained:
        """Return what the trainer says of the steps."""
        if self._unread:
            self._unread -= self._processes.trainer.options_read()
            self._unread -= self._processes.value(self._processes.manager.options_read())
        if self._unread and self._unused is None:
            self._unused = never_mentioned(self._args, self._unread)
        steps = update.steps.get(STEPS, [])
        metrics = {**update.metrics, **{name: value for name, value in update.steps.items() if name != STEPS}}
        unused = self._unread & (self._unused or frozenset())
        return Trained(metrics, tuple(steps), *(tuple(sorted(map(flag_of, each))) for each in (self._unread, unused)))

    def _args_of_plugin(self) -> Arguments:
        """Return the run's arguments with the addresses of its engines, as plugins in the rollout manager have them."""
        return self._args.changed(**self._processes.value(self._processes.manager.engine_arguments()))

    def _on_one_engine(self, update: Update) -> Canary:
        if update.state is State.TRIED:  # a trial was interrupted
            update.to(State.PROBED)
        canary = self._timed("canary_push", self._engines.begin_trial)
        update.to(State.TRIED)
        return canary

    def _timed(self, name: str, work: Callable[[], T]) -> T:
        start = time.monotonic()
        try:
            return work()
        finally:
            self._seconds[f"perf/{name}_time"] = time.monotonic() - start


class PluginThread:
    """Runs one plugin beside the main thread, which does what it asks for.

    Once the main thread has given up, every further call of the plugin raises `DecisionEndedError`, so its thread ends.
    """

    def __init__(self, look_after: Callable[[], None]) -> None:
        """``look_after``: called every few seconds in the main thread; raises on a signal or a loss."""
        self._look_after = look_after
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended = False

    def run(self, plugin: Callable[[], T]) -> T:
        """Return what the plugin returns.

        Raises:
            PluginError: the plugin raised an error that is neither its user's nor the core's.
        """
        result: Future[T] = Future()

        def work() -> None:
            try:
                with with_info():
                    result.set_result(plugin())
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                result.set_exception(error)
            finally:
                self._asked.put(None)

        threading.Thread(target=work, name="before-push", daemon=True).start()
        looked = time.monotonic()
        try:
            while True:
                if time.monotonic() - looked >= POLL_SECONDS:  # a plugin may ask again at once
                    self._look_after()  # before a question leaves the queue: if this raises, `_end` refuses it
                    looked = time.monotonic()
                if (asked := self._next()) is not None:
                    self._do(*asked)
                elif result.done():
                    if result.exception() is not None:  # perhaps a signal or a loss, which the plugin met first
                        self._look_after()
                    return _result_of_plugin(result)
        finally:
            self._end()

    def _next(self) -> tuple[Callable[[], Any], Future[Any]] | None:
        try:
            return self._asked.get(timeout=POLL_SECONDS)
        except queue.Empty:
            return None

    def _do(self, work: Callable[[], Any], answer: Future[Any]) -> None:
        try:
            answer.set_result(work())
        except BaseException:
            answer.set_exception(DecisionEndedError("the trainer died, or the run ends"))
            raise

    def call(self, work: Callable[[], T]) -> T:
        """Let the main thread do ``work`` and return its result; called by the plugin.

        Raises:
            DecisionEndedError: nobody does it any more.
        """
        answer: Future[T] = Future()
        with self._lock:
            if self._ended:
                raise DecisionEndedError("nobody waits for the decision any more")
            self._asked.put((work, answer))
        return answer.result()

    def _end(self) -> None:
        """Refuse what is asked and what will be."""
        with self._lock:
            self._ended = True
        while not self._asked.empty():
            if (asked := self._asked.get()) is not None:
                asked[1].set_exception(DecisionEndedError("nobody waits for the decision any more"))


def _result_of_plugin(result: Future[T]) -> T:
    try:
        return result.result()
    except (SlimeError, ConfigError):
        raise
    except Exception as error:
        raise PluginError(f"the --before-push-path plugin failed: {type(error).__name__}: {error}") from error


class AskedPolicy:
    """One version of the policy, which the training ranks answer for."""

    def __init__(self, thread: PluginThread, version: str, answers: Callable[[list[Probe]], list[Answer]]) -> None:
        """``answers``: asks the ranks; runs in the main thread."""
        self.version = version
        self._thread = thread
        self._answers = answers

    def ask(self, probes: Sequence[Probe]) -> list[Answer]:
        """Return one answer per probe, in order; see `slime.rollout.before_push.Policy`.

        Raises:
            PluginError: a probe has no prompt, or asks for a negative number of tokens.
            DecisionEndedError: the trainer died or the run ends.
        """
        plain = [Probe(list(probe.prompt_ids), list(probe.reply_ids), probe.max_new_tokens) for probe in probes]
        for number, probe in enumerate(plain):
            if not probe.prompt_ids or probe.max_new_tokens < 0:
                raise PluginError(
                    f"probe {number} has {len(probe.prompt_ids)} prompt tokens and max_new_tokens {probe.max_new_tokens}; "
                    "give at least one prompt token, and 0 or more new ones"
                )
        return self._thread.call(lambda: self._answers(plain)) if plain else []


@dataclass(frozen=True)
class WorkForCandidate:
    """What the driver's main thread does for a plugin with the version that may serve.

    Attributes:
        trained: what the trainer says of the steps.
        engines: returns where the policy engines answer.
        offer: gives all of them the candidate.
        begin_trial: gives one of them the candidate; None in a run that sets no engine apart.
    """

    trained: Trained
    engines: Callable[[], list[str]]
    offer: Callable[[], Offered]
    begin_trial: Callable[[], Canary] | None = None


class AskedCandidate(AskedPolicy):
    """The version that may serve."""

    def __init__(
        self,
        thread: PluginThread,
        version: str,
        answers: Callable[[list[Probe]], list[Answer]],
        work: WorkForCandidate,
    ) -> None:
        """``work``: what else the main thread does for it."""
        super().__init__(thread, version, answers)
        self.trained = work.trained
        self._work = work

    def on_one_engine(self) -> Canary:
        """Return the engine that has the candidate before the others; see `slime.rollout.before_push.Candidate`.

        Raises:
            PluginError: the run sets no engine apart.
            DecisionEndedError: the trainer died or the run ends.
        """
        if self._work.begin_trial is None:
            raise PluginError("no engine may be first without --canary-engine; add it, or do not ask for one")
        return self._thread.call(self._work.begin_trial)

    def engines(self) -> list[str]:
        """Return the URLs of all policy engines; see `slime.rollout.before_push.Candidate`."""
        return self._thread.call(self._work.engines)

    def on_all_engines(self) -> Offered:
        """Return the engines once they have the candidate; see `slime.rollout.before_push.Candidate`.

        Raises:
            DecisionEndedError: the trainer died or the run ends.
        """
        return self._thread.call(self._work.offer)


class DataSourceOfManager:
    """The run's data source for a plugin: its methods run in the rollout manager, and what they return comes as a copy."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        manager = self._processes.manager
        is_method, value = self._processes.value(manager.data_source_attribute(name))

        def call(*arguments: Any, **keywords: Any) -> Any:
            return self._processes.value(manager.call_data_source(name, arguments, keywords))

        return call if is_method else value

    def __len__(self) -> int:
        return self._processes.value(self._processes.manager.call_data_source("__len__", (), {}))
