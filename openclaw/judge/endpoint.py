"""A judge behind any OpenAI-compatible endpoint: ``OPENCLAW_JUDGE_BASE_URL``, ``_MODEL`` and ``_API_KEY``.

Guarantees: the key is sent only to that address and appears in no message. Overload (429), server and connection errors
are retried a bounded number of times, and a wrong key or address leaves turns pending, because a person can mend it. An
answer that the token limit cut off is an invalid vote, one that the server gave up is none. Judged text reaches the server
without anything that its tokenizer could take for a control token (`harmless`). Owns its connections.

The conversations that are judged leave this machine for that address.

A judge written in Python: ``OPENCLAW_JUDGE_CLASS=module.Class``.

    class Polite:
        def score(self, prompt, response, next_state):   # -1, 0, 1, or None for no vote
            return 1 if "thanks" in next_state[-1]["content"].lower() else None

``prompt`` is the request's messages, ``response`` the assistant message, ``next_state`` the messages after it. A class
with a method ``hint(prompt, response, next_state)``, which returns a text or None, also serves methods with hints. One with
``score_group(prompt, replies, rubric)`` compares replies (`openclaw.judge.group`): a list of messages for each reply, and it returns
a number from 0 to 1 for each.

Guarantees: the class runs in a thread, one call at a time. Anything but -1, 0 and 1 is an invalid vote; an exception is a
failure that is retried, never a score.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import httpx

from groundwork.chat_messages import Message
from groundwork.exceptions import ConfigError
from openclaw.exceptions import EngineRefusedError, EngineUnavailableError
from openclaw.judge.answers import SCORES, read_vote, usable_hint
from openclaw.judge.client import MENDABLE, PROBE_TIMEOUT_SECONDS, JudgeSampling, note_answer, together
from openclaw.judge.interface import Question, Said
from openclaw.judge.prompts import Variant
from openclaw.ledger.records import JudgeKind, Vote
from openclaw.messages.text import content_text
from openclaw.method import JudgePlan
from openclaw.method.loading import raised, resolve

GIVEN_UP = ("abort", "error")
"""How a server ends an answer that it did not finish, for no fault of the judge."""
MAX_PAUSE = 30.0
_CONTROL = re.compile(r"<(?=[^<>\s]+>)|\[(?=/?(?:[A-Z_]{3,}|gMASK)\])|\](?=~)")


def harmless(text: str) -> str:
    """Return ``text`` with a space inside everything that looks like a control token of some model, such as ``<|im_end|>``.

    A server tokenizes the whole prompt as one text, so a judged ``<|im_end|>`` would end the message that shows it.
    """
    return _CONTROL.sub(r"\g<0> ", text)


class EndpointJudge:
    """Asks a chat completions endpoint, at most ``concurrency`` requests at a time."""

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        key: str | None,
        variant: Variant,
        sampling: JudgeSampling,
        timeout: float,
        concurrency: int,
        retries: int = 2,
        backoff: float = 0.5,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Create the judge.

        Args:
            base_url: such as ``https://host/v1``.
            model: name of the model.
            key: sent as a bearer token, or None.
            variant: which prompts (`openclaw.judge.prompts`).
            sampling: of the answers; its grammar is not used.
            timeout: seconds until a request counts as failed.
            concurrency: most requests at a time.
            retries: after a failure that may pass.
            backoff: seconds before the first retry, doubled for each further one; a longer ``Retry-After`` counts.
            transport: stand-in for tests.
        """
        self._url = base_url.rstrip("/")
        self._model = model
        self._variant: Variant = variant
        self._sampling = sampling
        self._retries = retries
        self._backoff = backoff
        self._slots = asyncio.Semaphore(concurrency)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(timeout=timeout, headers=headers, transport=transport)

    async def votes(self, kind: JudgeKind, question: Question, count: int) -> list[Vote]:
        """Return ``count`` votes, cast concurrently; see `openclaw.judge.interface.Judge.votes`."""
        said = await self.said(question.asked(kind, self._variant), count)
        return [read_vote(kind, each.text, each.seconds, finish=each.finish) for each in said]

    async def said(
        self, messages: Sequence[Message], count: int, grammar: str = "", images: Sequence[str] = ()
    ) -> list[Said]:
        """Return ``count`` answers, given concurrently, without the grammar or pictures; see `openclaw.judge.interface.Speaker`."""
        return await together(*(self._said(*messages) for _ in range(count)))

    async def answers(self) -> bool:
        """Return whether the endpoint gives a token, or refuses one for a reason that nobody can mend.

        Its list of models would not tell: some servers show it to everybody, and some cannot make it.
        """
        probe = {"model": self._model, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 1}
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                await self._post(probe)
        except (EngineUnavailableError, TimeoutError):
            return False
        except EngineRefusedError:
            pass  # a refusal shows that the endpoint is up
        return True

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _said(self, system: Message, asked: Message) -> Said:
        body = {
            "model": self._model,
            "messages": [system, {**asked, "content": harmless(asked["content"])}],
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "max_tokens": self._sampling.max_new_tokens,
        }
        started = time.monotonic()
        async with self._slots:
            answer = await self._ask(body)
        try:
            note_answer(answer.get("usage") or {})
            choice = answer["choices"][0]
            text, finish = content_text(choice["message"].get("content")), choice.get("finish_reason") or "stop"
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EngineUnavailableError(f"{self._url} sent no chat completion: {str(answer)[:200]}") from error
        if finish in GIVEN_UP:
            raise EngineUnavailableError(f"{self._url} gave the request up: finish_reason {finish}")
        return Said(text, finish, time.monotonic() - started)

    async def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        for attempt in range(self._retries):
            try:
                return await self._post(body)
            except EngineUnavailableError as error:
                await asyncio.sleep(min(MAX_PAUSE, max(error.retry_after, self._backoff * 2**attempt)))
        return await self._post(body)

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        try:
            response = await self._client.post(f"{self._url}/chat/completions", json=body)
            if response.is_success:
                return response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise EngineUnavailableError(f"{self._url}: {type(error).__name__}: {error}") from error
        words = f"{self._url}: HTTP {response.status_code}: {response.text[:300]}"
        if 400 <= response.status_code < 500 and response.status_code not in MENDABLE:
            raise EngineRefusedError(words)
        raise EngineUnavailableError(words, retry_after=_seconds(response.headers.get("retry-after", "")))


def _seconds(value: str) -> float:
    return float(value) if value.replace(".", "", 1).isdigit() else 0.0


class ClassJudge:
    """Calls an object with ``score`` and perhaps ``hint``."""

    def __init__(self, scorer: Any) -> None:
        """Create the judge over ``scorer``."""
        self._scorer = scorer
        self.gives_hints = callable(getattr(scorer, "hint", None))
        """Whether it can be asked for hints."""
        self.compares = callable(getattr(scorer, "score_group", None))
        """Whether it can be asked about groups."""
        self._lock = threading.Lock()

    async def votes(self, kind: JudgeKind, question: Question, count: int) -> list[Vote]:
        """Return ``count`` votes; see `openclaw.judge.interface.Judge.votes`."""
        return [await asyncio.to_thread(self._vote, kind, question) for _ in range(count)]

    async def group_scores(
        self, prompt: Sequence[Message], replies: Sequence[Sequence[Message]], rubric: str
    ) -> tuple[Any, float]:
        """Return what ``score_group`` returns about replies to a prompt, and the seconds that it took."""

        def asked() -> tuple[Any, float]:
            started = time.monotonic()
            with self._lock:
                answer = self._scorer.score_group(list(prompt), [list(reply) for reply in replies], rubric)
            return answer, time.monotonic() - started

        return await asyncio.to_thread(asked)

    async def answers(self) -> bool:
        """Return True: a class is always there."""
        return True

    async def close(self) -> None:
        """Do nothing: a class has no connections."""

    def _vote(self, kind: JudgeKind, question: Question) -> Vote:
        exchange = question.messages
        started = time.monotonic()
        ask = self._scorer.score if kind == "prm" else self._scorer.hint
        with self._lock:
            answer = ask(list(exchange.prompt), exchange.reply, list(exchange.next_state))
        seconds = time.monotonic() - started
        if kind == "prm":
            valid = not isinstance(answer, bool) and answer in SCORES
            return Vote(
                kind, repr(answer), int(answer) if valid else None, None, seconds, None if valid else "other_box"
            )
        hint = usable_hint(answer) if isinstance(answer, str) else None
        return Vote(kind, repr(answer), 1 if hint else -1, hint, seconds)


def load_scorer(path: str) -> Any:
    """Return an object of the class at ``module.Class``.

    Raises:
        ConfigError: if it cannot be built.
    """
    try:
        return resolve(path)()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"OPENCLAW_JUDGE_CLASS={path}: {path}() raised {raised(error)}") from error


def load_class_judge(path: str, plan: JudgePlan) -> ClassJudge:
    """Return the judge of the class at ``module.Class``.

    Raises:
        ConfigError: if it cannot be built, or lacks what the method's plan asks for.
    """
    scorer = load_scorer(path)
    if not callable(getattr(scorer, "score", None)):
        raise ConfigError(f"OPENCLAW_JUDGE_CLASS={path} lacks: def score(self, prompt, response, next_state)")
    judge = ClassJudge(scorer)
    if plan.hint_votes and not judge.gives_hints:
        raise ConfigError(
            f"OPENCLAW_JUDGE_CLASS={path}: the method asks for hints; add: def hint(self, prompt, response, next_state)"
        )
    return judge
