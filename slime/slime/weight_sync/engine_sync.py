"""What every transport shares: the engines, the order of an update, and failure handling.

Guarantees: no request is refused (engines hold them from pause to continue). Two buckets, as many as there are buffers, are
packed before the pause, so small models hold requests only while the engines load them. The first engine that refuses or dies ends the update: it
is killed, because its weights may be mixed; the others hold their requests; and all trainer ranks leave the gathering
together. A new connection and another push then continue the requests. Rank 0 talks to the engines; other ranks only
help to gather.

With ``--check-weight-update-equal``, after a push every tensor of every engine equals the trainer's, bit for bit: each
engine rank reports a checksum per tensor through a store that the trainer hosts, and the trainer compares. No weight is
sent again.
"""

from __future__ import annotations

import collections
import itertools
import json
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from slime.args import Arguments
from slime.arguments.trainer import waits_for_passes
from slime.exceptions import WeightsDifferError
from slime.utils.hf_checkpoint import DTYPES
from slime.utils.tcp_store import hosted_store
from slime.weight_sync import LOADER, Sent
from slime.weight_sync.remote_engine import EngineCalls, RemoteEngine
from slime.weight_sync.requests import MODULUS, Bucket, BucketBuffer, Checksums, cast, serialized

if TYPE_CHECKING:
    from ray import ObjectRef

Found = dict[str, list[tuple[int, int]]]


class EqualityCheck:
    """Owns the store; one per trainer, on rank 0."""

    def __init__(self, args: Arguments, address: str) -> None:
        self._timeout = timedelta(minutes=args.distributed_timeout_minutes)
        self._address = address
        self._store: TCPStore | None = None
        self._name = ""
        self._checks = 0

    def compare(self, expected: Checksums, ranks: list[int], ask: Callable[[list[bytes]], None]) -> None:
        """Ask all engines for their checksums; an update session must be open.

        Args:
            expected: checksums of the trainer.
            ranks: number of ranks of each engine.
            ask: function that sends each engine its request.

        Raises:
            WeightsDifferError: a tensor differs; the message names the first.
        """
        if self._store is None:
            self._store = hosted_store(self._address, timeout=self._timeout)
            self._name = secrets.token_hex(8)
        self._checks += 1
        request = {
            "operation": "checksums",
            "shapes": expected.shapes,
            "dtypes": expected.dtypes,
            "store": [self._address, self._store.port, self._name],
        }
        names = [f"check-{self._checks}/engine-{engine}" for engine in range(len(ranks))]
        ask([serialized(request | {"key": name}) for name in names])
        for engine, count in enumerate(ranks):
            keys = [f"{names[engine]}/{rank}" for rank in range(count)]
            parts = [json.loads(self._store.get(key)) for key in keys]
            for key in keys:
                self._store.delete_key(key)
            check(
                expected,
                {name: [tuple(part[name]) for part in parts if name in part] for name in expected.found},
                engine,
            )

    def close(self) -> None:
        """End the store."""
        self._store = None


def check(expected: Checksums, found: Found, engine: int) -> None:
    """Compare the checksums of an engine's ranks; several ranks may hold the same part of a tensor.

    Raises:
        WeightsDifferError: see :meth:`EqualityCheck.compare`.
    """
    for name, (value, elements) in expected.found.items():
        held = sum(count for _, count in found[name])
        copies, rest = divmod(held, elements) if elements else (1, 0)
        if copies == 0 or rest:
            raise WeightsDifferError(f"engine {engine} holds {held} of the {elements} elements of {name}")
        if sum(part for part, _ in found[name]) % MODULUS != copies * value % MODULUS:
            raise WeightsDifferError(f"{name} on engine {engine} differs from the trainer's after the push")


P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

CLEANUP_SECONDS = 60.0
"""Time limit for an engine's calls after a failed update or a failed join."""


class EngineWeightSync(ABC):
    """Base of the transports, one per trainer rank. A transport implements how to join, send and leave."""

    _ahead = 2
    """Buckets that are packed before the pause; there are buffers for two."""

    def __init__(self, args: Arguments, *, device: torch.device, address: str) -> None:
        """``address``: address at which engines reach trainer rank 0."""
        self._args = args
        self._device = device
        self._address = address
        self._engines: list[RemoteEngine] = []
        self._starts: list[int] = []
        self._calls: EngineCalls[Any] | None = None
        self._joined = False
        self._dtype = DTYPES[args.train_dtype]
        self._buffer = BucketBuffer(args.update_weight_buffer_size, device, self._dtype)
        self._check = EqualityCheck(args, address) if args.check_weight_update_equal else None
        self.sent = Sent()

    # Implemented by the transport

    @abstractmethod
    def _join(self) -> None:
        """Connect to the engines; a failed call may stay in ``_calls``."""

    def _send(self, bucket: Bucket, **keywords: Any) -> None:
        """Send one bucket; ``keywords`` are ``flush_cache`` and ``weight_version`` of the engine's call."""
        raise NotImplementedError(f"{type(self).__name__} sends no buckets")

    def _sent(self) -> None:
        """Wait until the engines have loaded everything sent."""
        if self._calls is not None:
            self._calls.values()

    def _farewell(self) -> Callable[[Sequence[RemoteEngine]], EngineCalls[None]] | None:
        """Return what sends engines the call with which they leave the transport as it is now, if they have to."""
        return None

    @abstractmethod
    def _leave(self, *, broken: bool) -> None:
        """Release the engines; ``broken``: one may be gone, or an operation may never end by itself."""

    def _abandon(self, calls: EngineCalls[Any], failed: list[int]) -> list[int]:
        """Abandon running ``calls``; return engines stuck in them, other than those that ``failed``."""
        self._leave(broken=True)
        return []

    # Called by a trainer rank

    def connect(self, engines: list[RemoteEngine]) -> None:
        """Leave the previous engines and connect to ``engines``."""
        if dist.get_rank() != 0:
            return
        if self._joined:
            self._part(engines)
        self._engines = list(engines)
        if not engines:
            return
        self._starts = self._call(RemoteEngine.starts)
        try:
            self._join()
        except Exception:
            self._give_up()
            raise
        self._joined = True

    def push(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        """Send all weights and make them ``version``; collective over the trainer ranks."""
        self._send_all(weights, version, self._push)

    def offer(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        """Send all weights, as a push does, unless the transport can keep them from serving; collective."""
        self._send_all(weights, version, self._offer)

    def serve(self, version: str) -> None:
        """Let what was offered last serve as ``version``; an engine that fails at it is ended."""
        if dist.get_rank() != 0 or not self._engines:
            return
        try:
            self._serve(version)
        except Exception:
            self._give_up()
            raise

    def _serve(self, version: str) -> None:
        logger.debug("whole weights of version %s serve already", version)

    def _offer(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        self._push(weights, version)

    def _send_all(
        self,
        weights: Iterator[tuple[str, Tensor]],
        version: str,
        send: Callable[[Iterator[tuple[str, Tensor]], str], None],
    ) -> None:
        # A failing reader may close its iterator; a chain cannot be closed, so the rest can still be gathered below.
        weights = itertools.chain(weights)
        if dist.get_rank() != 0 or not self._engines:
            collections.deque(weights, maxlen=0)
            return
        try:
            if not self._joined:
                raise RuntimeError("the engines are in no weight update group; connect first")
            send(weights, version)
        except Exception:
            self._give_up()
            raise
        finally:
            collections.deque(weights, maxlen=0)

    def close(self) -> None:
        """Release the engines without calling them, because they may be gone."""
        if self._joined:
            self._leave(broken=True)
            self._joined = False
        if self._check is not None:
            self._check.close()

    # An update

    def _push(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        expected = Checksums()
        if self._check is not None:
            weights = expected.of_all(cast(weights, self._dtype))
        self._transfer(weights, version)
        if self._check is not None:
            self._check.compare(expected, self._call(RemoteEngine.num_weight_ranks), self._ask)
        self._finish()
        self._call(RemoteEngine.continue_generation)

    def _transfer(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        """Pause the engines and send the weights; leaves an update session open."""
        buckets = self._buffer.fill(weights)
        ahead = list(itertools.islice(buckets, self._ahead))
        self._open()
        # A third is packed once the first is loaded: `_send` waits for what was sent before.
        for bucket in itertools.chain(ahead, buckets):
            # The last bucket sets the version and, if requests were retracted, empties the prefix cache.
            self._send(
                bucket,
                flush_cache=bucket.is_last and self._flushes(),
                weight_version=version if bucket.is_last else None,
            )
        self._sent()

    def _open(self) -> None:
        """Pause the engines, wait until none computes, and open an update session."""
        self._pause()
        self._call(RemoteEngine.begin_weight_update)
        if waits_for_passes(self._args):
            self._ask([serialized({"operation": "wait"})] * len(self._engines))

    def _finish(self) -> None:
        """Close the update session."""
        self._call(RemoteEngine.end_weight_update)

    def _pause(self) -> None:
        self._call(RemoteEngine.pause_generation, self._args.weight_update_mode)

    def _flushes(self) -> bool:
        return self._args.weight_update_mode == "retract"

    def _call(
        self, method: Callable[Concatenate[RemoteEngine, P], ObjectRef[T]], *arguments: P.args, **keywords: P.kwargs
    ) -> list[T]:
        """Call ``method`` on all engines and return their answers."""
        self._calls = calls = EngineCalls.to_all(self._engines, method, *arguments, **keywords)
        return calls.values()

    def _ask(self, requests: list[bytes]) -> None:
        """Send each engine a request for `slime.weight_sync.engine_loader`."""
        messages = [(request, LOADER) for request in requests]
        self._calls = EngineCalls.to_each(self._engines, RemoteEngine.update_weights_from_tensor, messages)
        self._calls.values()

    # Failure

    def _give_up(self) -> None:
        """Kill the failed engines and disconnect; the others keep holding requests with mixed weights."""
        calls, self._calls = self._calls or EngineCalls("nothing", [], []), None
        failed = calls.failed()
        self._end(failed)
        self._joined = False
        farewell = self._farewell()
        stuck = self._abandon(calls, failed)
        self._end(stuck)
        kept = [index for index in range(len(self._engines)) if index not in (*failed, *stuck)]
        for send in filter(None, (_hold, farewell)):
            calls = send([self._engines[index] for index in kept])
            lost = [kept[position] for position in calls.unanswered(CLEANUP_SECONDS)]
            self._end(lost)
            kept = [index for index in kept if index not in lost]

    def _end(self, positions: list[int]) -> None:
        """Kill engines, unless they restarted since they joined; the manager restarts them."""
        for position in positions:
            logger.error("policy engine %d failed in a weight update; ending it", position)
            starts = self._starts[position] if position < len(self._starts) else 0
            EngineCalls.to_all([self._engines[position]], RemoteEngine.end_failed_update, starts).unanswered(
                CLEANUP_SECONDS
            )

    def _part(self, engines: list[RemoteEngine]) -> None:
        """Leave the previous engines while they leave too, because NCCL members wait for each other."""
        starts = EngineCalls.to_all(engines, RemoteEngine.starts)
        same = not starts.unanswered(CLEANUP_SECONDS) and starts.values() == self._starts and engines == self._engines
        farewell = self._farewell()
        leaving = farewell(engines) if farewell else None
        self._leave(broken=not same)
        self._joined = False
        if leaving is not None:
            for position in leaving.unanswered(CLEANUP_SECONDS):
                logger.warning("policy engine %d did not answer %s", position, leaving.method)


def _hold(engines: Sequence[RemoteEngine]) -> EngineCalls[None]:
    return EngineCalls.to_all(engines, RemoteEngine.hold_after_failed_update)
