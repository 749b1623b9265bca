"""Collects the facts of an update's certificate: from the trainer's steps, the ledger's judge answers, and the engines.

The stored replies are some of the gate's own questions, so the trainer answers them anyway. While it does, the engines are asked as a
conversation asks them, and with LoRA for the base; an update then costs its push, which only comes earlier, and one question by its
name to all engines at a time. Guarantees: no answer comes from the cache of other weights, and each question is one batch of the same
replies, so that an engine rounds alike. An engine that restarts meanwhile has what serves, so the update is sent again; one that does
not answer by the update's name makes the certificate red.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

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


def facts_of_trainer(
    trained: Trained, judged: JudgeAnswers, accepted: Collection[str], *, as_usual: bool = False
) -> Facts:
    """Return what needs no engine.

    Args:
        trained: what the trainer says.
        judged: the judge's answers.
        accepted: flags without effect that a person has accepted.
        as_usual: whether each reward of the batch is as its person's earlier ones.
    """
    metrics = trained.metrics
    return Facts(
        loss_tokens=metrics.get("rollout/loss_tokens"),
        signal_share=metrics.get("rollout/signal_share"),
        as_usual=as_usual,
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
    """The stored replies that engines are asked about: the shortest of the gate's questions about stored replies."""

    def __init__(self, args: Arguments, probes: Sequence[Probe]):
        """Choose among ``probes``; an engine refuses what its context does not hold."""
        asked = [number for number, probe in enumerate(probes) if probe.reply_ids and fits(args, probe)]
        asked.sort(key=lambda number: len(probes[number].prompt_ids) + len(probes[number].reply_ids))
        self._numbers = asked[:REPLIES]
        self.probes = [probes[number] for number in self._numbers]

    def of(self, answers: Sequence[Answer]) -> list[float]:
        """Return the log probabilities of all their tokens in a version's answers to the gate's questions."""
        return [value for number in self._numbers for value in answers[number].log_probs]


class Earlier(NamedTuple):
    """What an engine says before the update: as conversations ask, and for the base; None where it does not answer or was not asked."""

    before: Said | None = None
    base: Said | None = None


class Proof:
    """The engines' part of one update's certificate. Begins to ask when it is made; :meth:`with_update` ends it."""

    def __init__(self, args: Arguments, probes: Sequence[Probe], policies: Policies, person: str | None = None) -> None:
        """Ask the engines in threads of their own about stored replies of ``probes``, the gate's questions.

        What serves is asked for as ``person`` is answered, or as everybody is with None.
        """
        self._stored = Stored(args, probes)
        self._serving = None if person is None else request_name(person)
        self._policies = policies
        self._heals = args.use_fault_tolerance
        urls = policies.candidate.engines() if self._stored.probes else []
        pool = ThreadPoolExecutor(len(urls) or 1, "proof")
        self._earlier = {url: pool.submit(self._before, url, with_base=args.use_lora) for url in urls}
        pool.shutdown(wait=False)

    def _before(self, url: str, *, with_base: bool) -> Earlier:
        """Ask an engine one question after the other; one that does not answer now is asked with the update only."""

        def answer(adapter: str | None) -> Said | None:
            try:
                return ask(url, self._stored.probes, adapter)
            except (httpx.HTTPError, ValueError, KeyError) as error:
                logger.warning("%s does not answer before the update: %r", url, error)
                return None

        return Earlier(answer(self._serving), answer(BASE) if with_base else None)

    def with_update(self, facts: Facts, serving: Sequence[Answer], updated: Sequence[Answer]) -> Facts:
        """Give all engines the update, ask them, and return the facts with their answers.

        Args:
            facts: of the trainer.
            serving: the trainer's answers to the gate's questions with the weights that serve.
            updated: its answers with the update.
        """
        if not self._earlier:
            return facts
        for future in self._earlier.values():
            future.result()
        for _ in range(OFFERS):
            try:
                digest, engines = self._with_update(self._policies.candidate, len(self._stored.of(updated)))
                break
            except CanaryEndedError as error:
                logger.warning("the engines are asked again: %s", error)
        else:
            silence = Said([math.nan] * len(self._stored.of(updated)))
            digest, engines = None, [self._facts(url, silence) for url in self._earlier]
        return replace(
            facts,
            serving=self._policies.serving.version,
            updated=self._policies.candidate.version,
            trainer_serving=self._stored.of(serving),
            trainer_updated=self._stored.of(updated),
            digest=digest,
            engines=engines,
        )

    def _with_update(self, candidate: Candidate, tokens: int) -> tuple[str | None, list[EngineFacts]]:
        offered = candidate.on_all_engines()
        if not offered.engines:
            return offered.digest, []
        with ThreadPoolExecutor(len(offered.engines), "proof") as pool:
            question = partial(self._patiently, adapter=offered.adapter, tokens=tokens)
            named = list(pool.map(question, offered.engines))
        offered.engines[0].wait(0.0)
        pairs = zip(offered.engines, named, strict=True)
        return offered.digest, [self._facts(engine.url, said) for engine, said in pairs]

    def _facts(self, url: str, named: Said) -> EngineFacts:
        known = self._earlier.get(url)
        earlier = Earlier() if known is None else known.result()
        before = earlier.before or Said([], self._policies.serving.version)
        return EngineFacts(
            url=url,
            before=before.log_probs,
            version=before.version,
            named=named.log_probs,
            named_version=named.version,
            digest=named.digest,
            base=earlier.base.log_probs if earlier.base else (),
        )

    def _patiently(self, engine: Canary, adapter: str | None, tokens: int) -> Said:
        """Return an engine's answer with the update, or no number for each of ``tokens`` if it lives and does not answer.

        Waits for the restart of one that died, however long that takes, if somebody restarts it.

        Raises:
            CanaryEndedError: the engines have what serves, because one of them was restarted.
        """
        engine.wait(0.0)
        said = Said([math.nan] * tokens)
        try:
            said = ask(engine.url, self._stored.probes, adapter)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            logger.warning("%s does not answer with the update: %r", engine.url, error)
        if self._heals:
            engine.wait_while_down()  # it may answer before it gets what serves
        engine.wait(0.0)
        return said


def fits(args: Arguments, probe: Probe) -> bool:
    """Return whether an engine takes a question; it refuses what its context does not hold, whatever the weights are."""
    context = args.sglang_context_length or args.rollout_max_context_len
    prompt, reply = len(probe.prompt_ids), len(probe.reply_ids)
    return context is None or max(prompt + reply + 1, prompt + probe.max_new_tokens) <= context


def ask(url: str, probes: Sequence[Probe], adapter: str | None = None) -> Said:
    """Return what an engine says of stored replies, which it scores in one batch.

    Raises:
        httpx.HTTPError: it does not answer.
        ValueError: its answer is no JSON, or not about each reply.
        KeyError: its answer lacks something.
    """
    bodies = [scoring_payload(probe.prompt_ids, probe.reply_ids) for probe in probes]
    body: dict[str, Any] = {name: [each[name] for each in bodies] for name in bodies[0]}
    body |= {CACHE_KEY: [new_cache_key()] * len(probes)} | ({"lora_path": adapter} if adapter else {})
    documents = _client().post(f"{url}/generate", json=body).raise_for_status().json()
    metas = [document["meta_info"] for document in documents]
    scores = [value for probe, meta in zip(probes, metas, strict=True) for value in log_probs_of(probe, meta)]
    versions, digests = ({str(meta.get(name) or "") for meta in metas} for name in ("weight_version", "adapter_sha256"))
    return Said(scores, "+".join(sorted(versions)), "+".join(sorted(digests)) or None)


@cache
def _client() -> httpx.Client:
    """Return the process's client of engines; it keeps no connection, because an engine may restart between two questions."""
    return httpx.Client(timeout=ANSWER_SECONDS, limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)


def log_probs_of(probe: Probe, meta: dict[str, Any]) -> list[float]:
    """Return the log probabilities of a stored reply in an answer to `openclaw.engine.client.scoring_payload`; NaN where there is none."""
    entries = meta["input_token_logprobs"][-len(probe.reply_ids) :]
    return [math.nan if entry[0] is None else float(entry[0]) for entry in entries]
