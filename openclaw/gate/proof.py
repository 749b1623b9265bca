"""Collects the facts of an update's certificate: from the trainer's steps, the ledger's judge answers, and the engines.

The stored replies are some of the gate's own questions, so the trainer has answered them already and only engines compute. Engines are
asked as a conversation asks them before the update, by the update's name with it, and with LoRA for the base. Guarantees: no answer
comes from the cache of other weights. An engine that restarts meanwhile has what serves, so the update is sent again; one that
does not answer by the update's name makes the certificate red.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx

from groundwork.people import request_name
from openclaw.engine.client import BASE, CACHE_KEY, new_cache_key, scoring_payload
from openclaw.gate.certificate import EngineFacts, Facts
from openclaw.ledger.decisions import JudgeAnswers
from slime.args import Arguments
from slime.rollout.before_push import Answer, Canary, CanaryEndedError, Candidate, Policies, Probe, Trained

logger = logging.getLogger(__name__)

REPLIES = 4
"""Stored replies that every engine is asked about."""
OFFERS = 3
ANSWER_SECONDS = 60.0
POLL_SECONDS = 0.2


def facts_of_trainer(trained: Trained, judged: JudgeAnswers, accepted: Collection[str]) -> Facts:
    """Return what needs no engine; ``accepted``: flags without effect that a person has accepted."""
    metrics = trained.metrics
    return Facts(
        loss_tokens=metrics.get("rollout/loss_tokens"),
        signal_share=metrics.get("rollout/signal_share"),
        gradients=[step["train/grad_norm"] for step in trained.steps if "train/grad_norm" in step],
        update_rms=metrics.get("rollout/update_rms"),
        judge_asked=judged.asked,
        judge_lost=judged.lost,
        unread=trained.unread,
        unused=[flag for flag in trained.unused if flag not in accepted],
    )


@dataclass(frozen=True)
class Said:
    """What an engine says of the stored replies: log probabilities of all tokens, its version, and its adapter's digest."""

    log_probs: list[float]
    version: str = ""
    digest: str | None = None


class Stored:
    """The stored replies that engines are asked about, and what the trainer says of them."""

    def __init__(self, args: Arguments, probes: Sequence[Probe], serving: Sequence[Answer], updated: Sequence[Answer]):
        """Choose the shortest of the gate's questions about stored replies.

        Args:
            args: of the run; an engine refuses what its context does not hold.
            probes: the gate's questions.
            serving: the trainer's answers with the weights that serve.
            updated: its answers with the update.
        """
        asked = [number for number, probe in enumerate(probes) if probe.reply_ids and fits(args, probe)]
        asked.sort(key=lambda number: len(probes[number].prompt_ids) + len(probes[number].reply_ids))
        self.probes = [probes[number] for number in asked[:REPLIES]]
        self.serving = [value for number in asked[:REPLIES] for value in serving[number].log_probs]
        self.updated = [value for number in asked[:REPLIES] for value in updated[number].log_probs]


class Proof:
    """The engines' part of one update's certificate: first :meth:`before`, then :meth:`with_update`."""

    def __init__(self, stored: Stored, policies: Policies, person: str | None = None) -> None:
        """Ask about ``stored``; before the update as ``person`` is answered, or as everybody is with None."""
        self._stored = stored
        self._serving = None if person is None else request_name(person)
        self._policies = policies
        self._before: dict[str, Said] = {}

    def before(self) -> None:
        """Ask the engines as conversations do; one that does not answer now is asked with the update only."""
        if not self._stored.probes:
            return
        for url in self._policies.candidate.engines():
            try:
                self._before[url] = ask(url, self._stored.probes, self._serving)
            except (httpx.HTTPError, ValueError, KeyError) as error:
                logger.warning("%s does not answer before the update: %r", url, error)

    def with_update(self, facts: Facts) -> Facts:
        """Give all engines the update, ask them, and return the facts with their answers."""
        if not self._before:
            return facts
        for _ in range(OFFERS):
            try:
                digest, engines = self._with_update(self._policies.candidate)
                break
            except CanaryEndedError as error:
                logger.warning("the engines are asked again: %s", error)
        else:
            digest, engines = None, [self._facts(url, Said(self._silence)) for url in self._before]
        return replace(
            facts,
            serving=self._policies.serving.version,
            updated=self._policies.candidate.version,
            trainer_serving=self._stored.serving,
            trainer_updated=self._stored.updated,
            digest=digest,
            engines=engines,
        )

    def _with_update(self, candidate: Candidate) -> tuple[str | None, list[EngineFacts]]:
        offered = candidate.on_all_engines()
        engines = []
        for engine in offered.engines:
            named = self._patiently(engine, partial(ask, engine.url, self._stored.probes, offered.adapter))
            base = Said([])
            if offered.adapter is not None:
                base = self._patiently(engine, partial(ask, engine.url, self._stored.probes, BASE))
            engines.append(self._facts(engine.url, named, base))
        return offered.digest, engines

    @property
    def _silence(self) -> list[float]:
        return [math.nan] * len(self._stored.updated)

    def _facts(self, url: str, named: Said, base: Said | None = None) -> EngineFacts:
        before = self._before.get(url, Said([], self._policies.serving.version))
        return EngineFacts(
            url=url,
            before=before.log_probs,
            version=before.version,
            named=named.log_probs,
            named_version=named.version,
            digest=named.digest,
            base=base.log_probs if base is not None else (),
        )

    def _patiently(self, engine: Canary, question: Callable[[], Said]) -> Said:
        """Return an engine's answer, or no numbers if it lives and does not answer.

        Raises:
            CanaryEndedError: the engines have what serves, because one of them was restarted.
        """
        engine.wait(0.0)
        try:
            return question()
        except (httpx.HTTPError, ValueError, KeyError) as error:
            logger.warning("%s does not answer with the update: %r", engine.url, error)
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline and not _answers(engine.url):
            engine.wait(POLL_SECONDS)
        engine.wait(0.0)
        return Said(self._silence)


def fits(args: Arguments, probe: Probe) -> bool:
    """Return whether an engine takes a question; it refuses what its context does not hold, whatever the weights are."""
    context = args.sglang_context_length or args.rollout_max_context_len
    prompt, reply = len(probe.prompt_ids), len(probe.reply_ids)
    return context is None or max(prompt + reply + 1, prompt + probe.max_new_tokens) <= context


def ask(url: str, probes: Sequence[Probe], adapter: str | None = None) -> Said:
    """Return what an engine says of stored replies.

    Raises:
        httpx.HTTPError: it does not answer.
        ValueError: its answer is no JSON.
        KeyError: its answer lacks something.
    """
    key = new_cache_key()
    with (
        httpx.Client(base_url=url, timeout=ANSWER_SECONDS, trust_env=False) as client,
        ThreadPoolExecutor(len(probes)) as pool,
    ):

        def answer(probe: Probe) -> dict[str, Any]:
            body = (
                scoring_payload(probe.prompt_ids, probe.reply_ids)
                | {CACHE_KEY: key}
                | ({"lora_path": adapter} if adapter else {})
            )
            return client.post("/generate", json=body).raise_for_status().json()

        documents = list(pool.map(answer, probes))
    metas = [document["meta_info"] for document in documents]
    scores = [value for probe, meta in zip(probes, metas, strict=True) for value in log_probs_of(probe, meta)]
    versions, digests = ({str(meta.get(name) or "") for meta in metas} for name in ("weight_version", "adapter_sha256"))
    return Said(scores, "+".join(sorted(versions)), "+".join(sorted(digests)) or None)


def log_probs_of(probe: Probe, meta: dict[str, Any]) -> list[float]:
    """Return the log probabilities of a stored reply in an answer to `openclaw.engine.client.scoring_payload`; NaN where there is none."""
    entries = meta["input_token_logprobs"][-len(probe.reply_ids) :]
    return [math.nan if entry[0] is None else float(entry[0]) for entry in entries]


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=POLL_SECONDS, trust_env=False).is_success
    except httpx.HTTPError:
        return False
