"""Sampling from a deployment that loads one snapshot after another, so that every reply has the version that gave it.

An answer of Fireworks does not say which snapshot it is of. So requests of the loaded one run side by side, and a load waits until
they are done and lets none begin; replies stay whole, and while it lasts, requests wait. After each reply the replicas are asked what
they have: if one of them has something else, as after a restart of its own, the reply is thrown away, the snapshot is loaded again,
and the same is asked once more.

Guarantees: token ids and log probabilities are those that Fireworks returned, as many of the one as of the other; a reply without them
is an error, not a reply.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tinker

from slime.arguments.tinker import PREFILL, SAMPLE
from slime.backends.fireworks_utils.control import HOT_LOAD, Rental
from slime.backends.fireworks_utils.http import Connection, body_of
from slime.backends.tinker_utils.service import Meter, RefusedError, Sampled
from slime.exceptions import LostError
from slime.utils.probes import Answer, Probe

logger = logging.getLogger(__name__)

COMPLETIONS = "/inference/v1/completions"
LOADING = frozenset({404, 425})
LOAD_SECONDS, LOADING_PAUSE, POLL_SECONDS = 600.0, 5.0, 2.0
SIDE_BY_SIDE, GATE_SIDE_BY_SIDE = 64, 16
TRIES = 3
TopRow = list[tuple[int, float]]


@dataclass(frozen=True)
class Reply:
    """One reply; see ``tinker.SampledSequence``.

    Attributes:
        tokens: ids ``[R]``.
        logprobs: that they were sampled with ``[R]``.
        stop_reason: ``stop`` or ``length``.
        topk_logprobs: likeliest ids with their log probabilities ``[R]``, if asked for.
    """

    tokens: list[int]
    logprobs: list[float]
    stop_reason: str
    topk_logprobs: list[TopRow]


@dataclass(frozen=True)
class Response:
    """An answer; see ``tinker.SampleResponse``. The scores ``[P]`` of a prompt begin with None."""

    sequences: list[Reply]
    prompt_cache_hit_tokens: int
    prompt_logprobs: list[float | None] | None = None
    topk_prompt_logprobs: list[TopRow | None] | None = None


class Completions:
    """Asks a model for completions of token ids; owns the threads that wait. Thread-safe."""

    def __init__(self, connection: Connection, meter: Meter, ends: frozenset[int]) -> None:
        """``ends``: ids at which every reply ends by itself."""
        self._connection, self._meter, self._ends = connection, meter, ends
        self.threads = ThreadPoolExecutor(SIDE_BY_SIDE, "fireworks-sampling")

    def close(self) -> None:
        """Begin nothing more."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    def ask(
        self,
        model: str,
        ids: Sequence[int],
        parameters: Mapping[str, Any],
        topk: int,
        score: bool,
        exact: bool,
        loading: frozenset[int] = frozenset(),
    ) -> Response:
        """Return a model's answer.

        Args:
            model: its resource name.
            ids: of the prompt.
            parameters: of ``tinker.SamplingParams``.
            topk: likeliest tokens per position that are asked for.
            score: whether the log probabilities of ``ids`` are asked for.
            exact: see `read`.
            loading: statuses of a model that is not there yet.

        Raises:
            tinker.TinkerError: Fireworks refuses, is away, or is not done with loading after `LOAD_SECONDS`.
            RefusedError: it has no such parameter, or returned no ids or no log probability for each.
        """
        body: dict[str, Any] = {
            **{"model": model, "prompt": list(ids), "n": 1, "max_tokens": parameters["max_tokens"], "echo": score},
            **{"temperature": parameters.get("temperature", 1.0), "top_p": parameters.get("top_p", 1.0)},
            **{"top_k": max(0, parameters.get("top_k", 0)), "logprobs": True, "raw_output": True},
        }
        if topk:
            body["top_logprobs"] = topk
        if (seed := parameters.get("seed")) is not None:
            body["seed"] = seed
        if stop := self._strings(parameters.get("stop") or ()):
            body["stop"] = stop
        end = time.monotonic() + LOAD_SECONDS
        while True:
            waits = loading if time.monotonic() < end else frozenset[int]()
            answer = self._connection.ask("POST", COMPLETIONS, body, also=waits)
            if answer.is_success:
                break
            self._connection.pause(LOADING_PAUSE)
        found = body_of(answer)
        plain = body["temperature"] == body["top_p"] == 1.0 and not body["top_k"]
        response = read(found, list(ids), topk, score, exact and not plain)
        self._meter.add(PREFILL, len(ids) - response.prompt_cache_hit_tokens)
        self._meter.add("cached", response.prompt_cache_hit_tokens)
        self._meter.add(SAMPLE, len(response.sequences[0].tokens))
        return response

    def _strings(self, stop: Sequence[int | str]) -> list[str]:
        if others := [each for each in stop if isinstance(each, int) and each not in self._ends]:
            raise RefusedError(
                f"Fireworks stops at strings, not at token ids such as {others[0]}; leave stop_token_ids out"
            )
        return [each for each in stop if isinstance(each, str)]


def read(found: Mapping[str, Any], ids: list[int], topk: int, score: bool, exact: bool) -> Response:
    """Return what an answer of `COMPLETIONS` holds.

    Args:
        found: the body.
        ids: of the prompt.
        topk: likeliest tokens per position that were asked for.
        score: whether the prompt's tokens are in it, before the reply's.
        exact: whether ``logprob`` cannot stand for ``sampling_logprob``, because the reply was not sampled from the model's own
            distribution and may be trained.

    Raises:
        RefusedError: something of this is missing, or does not fit together.
    """
    choices = found.get("choices") or [{}]
    choice = choices[0]
    raw, entries = choice.get("raw_output") or {}, (choice.get("logprobs") or {}).get("content")
    tokens = raw.get("completion_token_ids")
    if tokens is None:
        raise RefusedError(
            "Fireworks returned no token ids (raw_output.completion_token_ids), so the reply cannot be used"
        )
    if entries is None or len(entries) != len(tokens):
        raise RefusedError(
            f"Fireworks returned {len(entries or ())} log probabilities for {len(tokens)} tokens, so the reply cannot be used"
        )
    seen = choice.get("prompt_token_ids") or raw.get("prompt_token_ids")
    start = len(ids) if score else 0
    if (seen is not None and list(seen) != ids) or list(tokens[:start]) != ids[:start]:
        raise RefusedError("Fireworks answered for other tokens than those of the prompt")
    sampled = [entry.get("sampling_logprob") for entry in entries[start:]]
    if None in sampled:
        if exact:
            raise RefusedError(
                "Fireworks returned no sampling_logprob; leave temperature, top_p and top_k at 1, 1 and -1"
            )
        sampled = [entry.get("logprob") for entry in entries[start:]]
    log_probs = [_number(each) for each in sampled]
    first = min(start, 1)  # nothing comes before a prompt's first token, so nothing is told of what else it could be
    rows = [_row(entry, topk) for entry in entries[first:]] if topk else []
    reply = Reply(
        list(tokens[start:]),
        log_probs,
        "length" if choice.get("finish_reason") == "length" else "stop",
        rows[start - first :],
    )
    usage = (found.get("usage") or {}).get("prompt_tokens_details") or {}
    cached = min(len(ids), int(usage.get("cached_tokens") or 0))
    if not score:
        return Response([reply], cached)
    scores = [None, *(_number(entry.get("logprob")) for entry in entries[1:start])]
    return Response([reply], cached, scores, [None, *rows[: start - first]] if topk else None)


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise RefusedError("Fireworks returned a log probability that is no finite number, so the reply cannot be used")
    return float(value)


def _row(entry: Mapping[str, Any], topk: int) -> TopRow:
    found = [(each.get("token_id"), each.get("logprob")) for each in entry.get("top_logprobs") or ()]
    if not found or any(token is None or value is None for token, value in found):
        raise RefusedError("Fireworks returned no token ids with its likeliest tokens; leave top-K scores out")
    return [(int(token), float(value)) for token, value in found[:topk]]


@dataclass(frozen=True)
class Snapshot:
    """Weights that a deployment can load, and the version that they have here."""

    identity: str
    version: str


class Deployment:
    """The run's deployment and what it has loaded. Thread-safe."""

    def __init__(self, rental: Rental, connection: Connection, completions: Completions) -> None:
        self._rental, self._connection, self._completions = rental, connection, completions
        self._free = threading.Condition()
        self._replies, self._changes = 0, 0
        self._loaded: Snapshot | None = None
        self._wanted: Snapshot | None = None  # the last that `load` loaded; it stays so if loading it again fails

    def load(self, snapshot: Snapshot) -> None:
        """Let every reply that begins from now on be of ``snapshot``; replies that began are waited for.

        Raises:
            tinker.TinkerError: it could not be loaded.
        """
        with self._alone():
            if self._loaded != snapshot or not self._holds(snapshot):
                self._load(snapshot)
            self._wanted = snapshot

    @contextmanager
    def with_other(self, snapshot: Snapshot) -> Iterator[None]:
        """Have ``snapshot`` loaded for as long as the block runs, and afterwards what was before; other requests wait."""
        with self._alone():
            if self._loaded == snapshot:
                yield
                return
            try:
                self._load(snapshot)
                yield
            finally:
                self._loaded = None
                if self._wanted is not None:
                    self._load(self._wanted)

    def reply(self, ids: Sequence[int], parameters: Mapping[str, Any], topk: int, score: bool) -> Sampled:
        """Return an answer of what `load` loaded, with its version; if it is not loaded any more, it is loaded again.

        Raises:
            tinker.TinkerError: nothing was loaded, it cannot be loaded again, or the replicas do not keep it.
            RefusedError: see `Completions.ask`.
        """
        for _ in range(TRIES):
            with self._one_of_many() as snapshot:
                if snapshot is not None:
                    response = self.ask(ids, parameters, topk, score, exact=True)
                    if self._holds(snapshot):
                        return Sampled(response, snapshot.version)
                    logger.warning("a replica did not have %s; the reply is asked for again", snapshot.identity)
            with self._alone():
                if (wanted := self._wanted) is None:
                    raise tinker.TinkerError(f"{self._rental.note.deployment_path} has no weights of this run loaded")
                if self._loaded != wanted or not self._holds(wanted):
                    self._load(wanted)
        raise tinker.TinkerError(f"{self._rental.note.deployment_path} does not keep what it loads")

    def ask(
        self, ids: Sequence[int], parameters: Mapping[str, Any], topk: int, score: bool, exact: bool = False
    ) -> Response:
        """Return an answer of whatever is loaded; for a caller that knows."""
        return self._completions.ask(self._rental.note.deployment_path, ids, parameters, topk, score, exact, LOADING)

    def _holds(self, snapshot: Snapshot) -> bool:
        found = self._rental.replicas()
        return bool(found) and all(_has(replica, snapshot.identity) for replica in found)

    def _load(self, snapshot: Snapshot) -> None:
        self._loaded = None
        body = {"identity": snapshot.identity, "reset_prompt_cache": True}
        self._connection.ask("POST", HOT_LOAD, body, headers=self._rental.hot_load_headers)
        end = time.monotonic() + LOAD_SECONDS
        while not self._holds(snapshot):
            for replica in self._rental.replicas():
                state = replica.get("loading_state") or {}
                if state.get("stage") == "error" and state.get("target_snapshot_identity") == snapshot.identity:
                    raise tinker.TinkerError(f"{self._rental.note.deployment_path} could not load {snapshot.identity}")
            if time.monotonic() > end:
                raise tinker.TinkerError(
                    f"{self._rental.note.deployment_path} did not load {snapshot.identity} in {LOAD_SECONDS:g} s"
                )
            self._connection.pause(POLL_SECONDS)
        self._loaded = snapshot

    @contextmanager
    def _one_of_many(self) -> Iterator[Snapshot | None]:
        with self._free:
            self._free.wait_for(lambda: not self._changes)
            snapshot = self._loaded
            self._replies += 1
        try:
            yield snapshot
        finally:
            with self._free:
                self._replies -= 1
                self._free.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._free:
            self._free.wait_for(lambda: not self._changes)
            self._changes = 1
            self._free.wait_for(lambda: not self._replies)
        try:
            yield
        finally:
            with self._free:
                self._changes = 0
                self._free.notify_all()


def _has(replica: Mapping[str, Any], identity: str) -> bool:
    current = replica.get("current_snapshot_identity")
    adapters = replica.get("loaded_adapters") or ()
    has = [current] if current else [each.get("identity") for each in adapters if each.get("status") == "loaded"]
    return bool(replica.get("readiness")) and has == [identity]


class DeploymentSampler:
    """A snapshot of the policy; asked as what serves, it answers with what is loaded, and says which version that was.

    Attributes:
        version: the weight version.
    """

    def __init__(self, deployment: Deployment, snapshot: Snapshot, threads: ThreadPoolExecutor) -> None:
        self.version, self._deployment, self._snapshot, self._threads = snapshot.version, deployment, snapshot, threads

    def load(self) -> None:
        """Load it, so that it answers from now on; see `Deployment.load`."""
        self._deployment.load(self._snapshot)

    async def sample(self, ids: Sequence[int], parameters: Mapping[str, Any], topk: int = 0) -> Sampled:
        """Return one reply; see `slime.backends.tinker_utils.service.Sampler`."""
        return await self._in_a_thread(ids, parameters, topk, False)

    async def score(self, ids: Sequence[int], topk: int = 0) -> Sampled:
        """Return the log probabilities of ``ids``."""
        return await self._in_a_thread(ids, {"max_tokens": 1}, topk, True)

    async def _in_a_thread(self, *asked: Any) -> Sampled:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._deployment.reply, *asked)

    def answers(self, probes: Sequence[Probe]) -> list[Answer]:
        """Return one answer per probe of this snapshot, loaded for as long as that takes."""
        with self._deployment.with_other(self._snapshot):
            return answers(self._deployment, probes)


class ModelSampler:
    """A model of Fireworks that this run does not train: the judge, or the policy as it was."""

    def __init__(self, completions: Completions, model: str, version: str) -> None:
        self.version, self._completions, self._model = version, completions, model

    def load(self) -> None:
        """No-op: it is there."""

    def ask(self, ids: Sequence[int], parameters: Mapping[str, Any], topk: int = 0, score: bool = False) -> Response:
        """Return an answer; see `Completions.ask`."""
        return self._completions.ask(self._model, ids, parameters, topk, score, False)

    async def sample(self, ids: Sequence[int], parameters: Mapping[str, Any], topk: int = 0) -> Sampled:
        """Return one reply; see `slime.backends.tinker_utils.service.Sampler`."""
        return await self._in_a_thread(ids, parameters, topk, False)

    async def score(self, ids: Sequence[int], topk: int = 0) -> Sampled:
        """Return the log probabilities of ``ids``."""
        return await self._in_a_thread(ids, {"max_tokens": 1}, topk, True)

    async def _in_a_thread(self, *asked: Any) -> Sampled:
        loop = asyncio.get_running_loop()
        return Sampled(await loop.run_in_executor(self._completions.threads, self.ask, *asked), self.version)

    def answers(self, probes: Sequence[Probe]) -> list[Answer]:
        """Return one answer per probe."""
        return answers(self, probes)


def answers(model: Deployment | ModelSampler, probes: Sequence[Probe]) -> list[Answer]:
    """Return one answer per probe, in order; see `slime.utils.probes`."""

    def answer(probe: Probe) -> Answer:
        scores, reply, ended = list[float](), list[int](), False
        if probe.reply_ids:
            ids = [*probe.prompt_ids, *probe.reply_ids]
            found = model.ask(ids, {"max_tokens": 1}, 0, True).prompt_logprobs or []
            scores = [value for value in found[len(probe.prompt_ids) :] if value is not None]
            if len(scores) != len(probe.reply_ids):
                raise LostError(f"Fireworks scored {len(scores)} of {len(probe.reply_ids)} tokens")
        if probe.max_new_tokens:
            asked = {"max_tokens": probe.max_new_tokens, "temperature": 0.0}
            [greedy] = model.ask(probe.prompt_ids, asked, 0, False).sequences
            reply, ended = greedy.tokens, greedy.stop_reason == "stop"
        return Answer(scores, reply, ended)

    with ThreadPoolExecutor(
        GATE_SIDE_BY_SIDE
    ) as threads:  # own ones, because those of requests may all wait for a load
        return list(threads.map(answer, probes))
