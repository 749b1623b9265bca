"""Rollouts that never pause: groups are generated while the trainer works, and a batch is what has finished by then.

Guarantees:
* At most ``over_sampling_batch_size`` groups are running, or finished and not yet trained on, so the engines cannot run
  away from the trainer. Surplus groups stay for the next rollout.
* An aborted or too stale group returns to the data source.
* A checkpoint contains every group that was handed out and is in no rollout yet, if the data source has the attribute
  ``outstanding``.

The worker belongs to the rollout manager's process and lives from the first call until `stop`. Use it with
``train_async.py --rollout-function-path slime.rollout.fully_async_rollout.generate_rollout_fully_async``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from typing import Any

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.collection import Collection, first_index, is_whole, to_go_on
from slime.rollout.data_source import undecoded
from slime.rollout.engine_access import abort_until_idle
from slime.rollout.evaluation import eval_rollout
from slime.rollout.generation import GenerateState, Group, generate_and_rm_group
from slime.rollout.metrics import flatten
from slime.rollout.multimodal_prompts import copy_sharing_media
from slime.rollout.staleness import StalenessBound
from slime.utils.async_utils import run

logger = logging.getLogger(__name__)

_STOP_SECONDS = 30.0
_worker: RolloutWorker | None = None


class RolloutWorker:
    """Keeps groups running. Everything except `outstanding` runs on the background loop."""

    def __init__(self, args: Arguments, data_source: Any) -> None:
        self.args = args
        self.source = data_source
        self._state = GenerateState(args)
        self._state.reset()
        self._limit = max(args.over_sampling_batch_size or 0, args.rollout_batch_size)
        self._lock = getattr(data_source, "lock", None) or threading.RLock()
        self._under_way: dict[asyncio.Task[Group], Group] = {}
        self._finished: deque[tuple[Group, Group]] = deque()
        self._held: list[Group] = []
        self._staleness = StalenessBound(args)
        self._aborted = 0
        self._failure: BaseException | None = None
        self._stopping = False
        self._news = asyncio.Event()
        if hasattr(data_source, "outstanding"):
            data_source.outstanding = self.outstanding
        else:
            logger.warning(
                "%s has no attribute outstanding: checkpoints lack running groups, and a resumed run misses them",
                type(data_source).__name__,
            )

    def outstanding(self) -> list[Group]:
        """Return the groups handed out but in no rollout yet: finished ones as they are, others as their prompts."""
        with self._lock:
            finished = [*self._held, *(group for group, _ in self._finished)]
            groups = [*finished, *self._under_way.values()]
            return copy_sharing_media(groups, groups)

    async def take(self, rollout_id: int, wanted: int) -> RolloutFnTrainOutput:
        """Return the next ``wanted`` groups that the filters keep, in order of completion.

        Raises:
            InterruptedError: the worker is stopped meanwhile.
            Exception: any error of a generate, reward or filter function or of the data source.
        """
        self._state.rollout_id = rollout_id
        collection = Collection(self.args)
        self._held = collection.kept
        while len(collection.kept) < wanted:
            self._go_on()
            if self._failure is not None:
                raise self._failure
            if self._stopping:
                raise InterruptedError(
                    f"rollout {rollout_id} was stopped with {len(collection.kept)} of {wanted} groups"
                )
            if not self._finished:
                self._news.clear()
                await self._news.wait()
                continue
            await self._judge(collection, *self._finished[0])
        with self._lock:
            self._held = []
        output = collection.output(self.source.get_samples)
        assert output.metrics is not None
        output.metrics |= {
            "rollout/aborted_groups": self._aborted,
            "rollout/queued_groups": len(self._finished),
            "rollout/groups_under_way": len(self._under_way),
            **self._staleness.take_metrics(),
        }
        self._aborted = 0
        self._go_on()
        return output

    async def _judge(self, collection: Collection, group: Group, prompt: Group) -> None:
        admitted = await self._staleness.admits(group)
        if self._stopping:
            return
        with self._lock:
            self._finished.popleft()
            if admitted:
                collection.add(group)
            else:
                self.source.add_samples([prompt])

    def _go_on(self) -> None:
        """Start groups up to the limit."""
        if self._stopping or self._failure is not None:
            return
        with self._lock:
            room = self._limit - len(self._under_way) - len(self._finished)
            groups = undecoded(self.source.get_samples)(room) if room > 0 else []
            if room > 0 and not groups and room == self._limit:
                raise ValueError("the data source has no more prompts")
            for group in groups:
                prompt = copy_sharing_media(group, group)
                coroutine = generate_and_rm_group(self.args, group, dict(self._state.sampling_params), evaluation=False)
                task = asyncio.create_task(coroutine)
                self._under_way[task] = prompt
                task.add_done_callback(self._on_finished)

    def _on_finished(self, task: asyncio.Task[Group]) -> None:
        try:
            with self._lock:
                self._put_away(task, self._under_way.pop(task))
            self._go_on()
        except Exception as error:  # noqa: BLE001  raised by the next take
            self._failure = self._failure or error
        self._news.set()

    def _put_away(self, task: asyncio.Task[Group], prompt: Group) -> None:
        if task.cancelled():
            self.source.add_samples([prompt])
            return
        error = task.exception()
        if error is not None:
            self.source.add_samples([prompt])
            raise error
        group = task.result()
        if is_whole(group) and not (self._stopping and _never_started(group)):
            self._finished.append((group, prompt))
            return
        self._aborted += not self._stopping
        if self._aborted and not self._aborted & (self._aborted - 1):
            logger.warning("group %d was aborted (%d so far); generating it again", first_index(group), self._aborted)
        rollout_id = self._state.rollout_id or 0
        self.source.add_samples([to_go_on(group, prompt, rollout_id) if self.args.partial_rollout else prompt])

    async def stop(self) -> None:
        """End running groups and return every group that is in no rollout to the data source."""
        self._stopping = self._state.aborted = True
        tasks = list(self._under_way)
        try:
            await asyncio.wait_for(
                abort_until_idle(self.args, lambda: all(task.done() for task in tasks)), _STOP_SECONDS
            )
        except Exception as error:  # noqa: BLE001  the run ends regardless of the engines
            logger.warning("the engines did not become idle (%r); abandoning their requests", error)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # run the callbacks of the last tasks
        with self._lock:
            self.source.add_samples([*self._held, *(group for group, _ in self._finished)])
            self._finished.clear()
            self._held = []
        self._news.set()


def _never_started(group: Group) -> bool:
    return any(sample.status == sample.Status.PENDING for sample in flatten(group))


async def _take(args: Arguments, rollout_id: int, data_source: Any) -> RolloutFnTrainOutput:
    global _worker
    if _worker is None or _worker.source is not data_source:
        await _stop()
        _worker = RolloutWorker(args, data_source)
    return await _worker.take(rollout_id, args.rollout_batch_size)


async def _stop() -> None:
    global _worker
    worker, _worker = _worker, None
    if worker is not None:
        await worker.stop()


def stop() -> None:
    """Stop this process's worker, if any; the rollout manager calls it when the run ends."""
    run(_stop())


def generate_rollout_fully_async(
    args: Arguments, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """Return the worker's next batch; the first call starts the worker, which continues after the return."""
    if not args.rollout_global_dataset:
        raise ConfigError(
            "the asynchronous rollout needs prompts: add --prompt-data and remove --disable-rollout-global-dataset"
        )
    if evaluation:
        return run(eval_rollout(args, rollout_id))[0]
    return run(_take(args, rollout_id, data_source))


setattr(generate_rollout_fully_async, "dispose", stop)  # noqa: B010  the rollout manager reads this function attribute
