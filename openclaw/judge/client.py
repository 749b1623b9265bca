"""HTTP client of an engine's `/generate`, and the judge on top of it.

Guarantees: the engine gets ids (rendered by the judge's own tokenizer), never text. Only transport errors, 5xx and
`MENDABLE` are retried, a bounded number of times; any other 4xx is the caller's fault and raised at once. One `EngineHttp`
has at most ``concurrency`` concurrent requests. Retries are counted, and the tokens of answers for who asks (`count_tokens`).
Every request has a cache key that no client's request has
(`openclaw.engine.client`), because prompts of judge and teacher contain conversations.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import httpx

from chat_codec.prompts import Prompts
from groundwork.chat_messages import Message
from groundwork.people import mark_of, request_name
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.engine.client import BASE, CACHE_KEY, GRAMMAR_PARAMETER, CacheKeys, check_adapter
from openclaw.exceptions import EngineProtocolError, EngineRefusedError, EngineUnavailableError
from openclaw.judge.answers import THINKING_START, answer_grammar, read_vote
from openclaw.judge.interface import Question, Said
from openclaw.judge.prompts import Variant
from openclaw.ledger.records import JudgeKind, Vote
from openclaw.owners import root

logger = logging.getLogger(__name__)

TAIL_TOKENS = 16
MENDABLE = (401, 402, 403, 404, 408, 429)
"""Client errors that another request may not get: a key, a bill, an address or a limit that a person or time changes."""
PROBE: dict[str, Any] = {"input_ids": [0], "sampling_params": {"temperature": 0.0, "max_new_tokens": 1}}
PROBE_TIMEOUT_SECONDS = 5.0
T = TypeVar("T")


async def together(*coroutines: Coroutine[Any, Any, T]) -> list[T]:
    """Run coroutines concurrently and return their results; cancel the rest and raise on the first failure."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


class TokenCount:
    """Tokens of prompts and answers of calls to judge and teacher."""

    tokens = 0


_COUNT: ContextVar[TokenCount | None] = ContextVar("judge_tokens", default=None)


def count_tokens() -> TokenCount:
    """Return a count of all calls that get an answer from now on in this task and those that it starts."""
    count = TokenCount()
    _COUNT.set(count)
    return count


def note_answer(numbers: Mapping[str, Any]) -> None:
    """Count an answer by what its server says of it: ``prompt_tokens`` and ``completion_tokens``."""
    if (count := _COUNT.get()) is not None:
        count.tokens += int(numbers.get("prompt_tokens") or 0) + int(numbers.get("completion_tokens") or 0)


class Engine(Protocol):
    """An engine that answers or scores prompts: `EngineHttp`, or a stand-in."""

    async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
        """Return the engine's answer to one `/generate` payload.

        Args:
            payload: the request.
            owner: whose conversation it is about, if its prompt begins with the conversation; None: prompts about all
                owners begin alike, and a random word stands before what somebody said.
        """
        ...

    async def answers(self) -> bool:
        """Return whether the engine gives a token now."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class EngineHttp:
    """One engine, or a router in front of several. Owns its connections; call `close`."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        concurrency: int,
        retries: int = 2,
        backoff: float = 0.2,
        per_person: bool = False,
        key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Create a client of ``url``.

        Args:
            url: ``http://HOST:PORT``.
            timeout: seconds until a request counts as failed.
            concurrency: most concurrent requests.
            retries: retries after a transport error or 5xx.
            backoff: seconds before the first retry, doubled for each further one.
            per_person: whether the engine has an adapter per person. Then that of the owner answers, and the base model if there
                is no owner, unless the payload names another; an answer of somebody else's adapter is an error.
            key: sent as a bearer token, or None.
            transport: stand-in for tests.
        """
        self.url = url.rstrip("/")
        self.counters: Counter[str] = Counter()
        self._per_person = per_person
        self._cache_keys = CacheKeys()
        self._retries = retries
        self._backoff = backoff
        self._slots = asyncio.Semaphore(concurrency)
        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(
            timeout=timeout, limits=limits, headers=headers, transport=transport, trust_env=False
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
        """POST ``payload`` to `/generate`; see `Engine.generate`.

        Raises:
            EngineUnavailableError: after the last retry.
            EngineRefusedError: on any other 4xx, with the engine's message, or somebody else's adapter answered.
        """
        async with self._slots:
            answer = await self._with_retries(payload, owner)
        note_answer(answer.get("meta_info") or {})
        return answer

    async def _with_retries(self, payload: dict[str, Any], owner: str | None) -> dict[str, Any]:
        for attempt in range(self._retries):
            try:
                return await self._post(payload, owner)
            except EngineUnavailableError:
                self.counters["retries"] += 1
                await asyncio.sleep(self._backoff * 2**attempt)
        return await self._post(payload, owner)

    async def answers(self) -> bool:
        """Return whether the engine gives one token within `PROBE_TIMEOUT_SECONDS`; ignores the concurrency limit."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                await self._post(PROBE, None)
        except (EngineUnavailableError, TimeoutError):
            return False
        except EngineRefusedError:
            pass  # a refusal shows that the engine is up
        return True

    async def _post(self, payload: dict[str, Any], owner: str | None) -> dict[str, Any]:
        payload = {**payload, CACHE_KEY: self._cache_keys.of(owner)}
        own = self._per_person and "lora_path" not in payload
        if own:
            payload["lora_path"] = BASE if owner is None else request_name(root(owner))
        self.counters["requests"] += 1
        try:
            response = await self._client.post(f"{self.url}/generate", json=payload)
            if response.is_success:
                answer: object = response.json()
                if not isinstance(answer, dict):
                    raise ValueError(f"answered {response.text[:200]}")
                found = _unless_aborted(cast(dict[str, Any], answer), self.url)
                if own and owner is not None:
                    check_adapter(found["meta_info"], mark_of(root(owner)))
                return found
        except EngineProtocolError as error:
            raise EngineRefusedError(f"{self.url}: {error}") from error
        except (httpx.HTTPError, ValueError) as error:
            raise EngineUnavailableError(f"{self.url}: {type(error).__name__}: {error}") from error
        if response.status_code >= 500 or response.status_code in MENDABLE:
            raise EngineUnavailableError(f"{self.url}: HTTP {response.status_code}: {response.text[:300]}")
        raise EngineRefusedError(f"{self.url}: HTTP {response.status_code}: {response.text[:300]}")


class BaseModel:
    """The base model behind the engine of a LoRA run, whichever adapter is the newest.

    Guarantees: an answer of other weights, or of a mixture, is an error.
    """

    def __init__(self, engine: Engine) -> None:
        """Ask ``engine``, which stays its owner's to close."""
        self._engine = engine

    async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
        """Return the base model's answer; see `Engine.generate`.

        Raises:
            EngineRefusedError: the engine has no adapters, or other weights answered.
        """
        answer = await self._engine.generate({**payload, "lora_path": BASE}, owner)
        version = answer["meta_info"].get("weight_version")
        if version != BASE:
            raise EngineRefusedError(f"the base model was asked, but weights of version {version} answered")
        return answer

    async def answers(self) -> bool:
        """Return whether the engine gives a token now."""
        return await self._engine.answers()

    async def close(self) -> None:
        """No-op: the engine is closed by its owner."""


class NamedTokenizer:
    """Somebody else's engine, which a person says has a certain tokenizer.

    Guarantees: it gets ids only after it cut a text into the same ids as that tokenizer. An engine without a tokenizer of its own
    cannot show that, and is trusted with a warning.
    """

    TEXT = "Token by token: na\u00efve caf\u00e9, 12.5 %, \u4f60\u597d,  <b>end</b>\n"

    def __init__(self, engine: EngineHttp, tokenizer: Any, variable: str) -> None:
        """Own ``engine``; ``variable`` says where a person named the tokenizer."""
        self._engine = engine
        self._ids = list(tokenizer(self.TEXT).input_ids)
        self._variable = variable
        self._known = False

    async def check(self) -> None:
        """Ask the engine to cut a text, unless it has done so before.

        Raises:
            EngineUnavailableError: it is away, or has another tokenizer, which a person can mend.
        """
        if self._known:
            return
        sampling = {"max_new_tokens": 1, "temperature": 0.0}
        asked = {"text": self.TEXT, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}
        try:
            answer = await self._engine.generate(asked)
            ids = [entry[1] for entry in answer["meta_info"]["input_token_logprobs"]]
        except EngineRefusedError as error:
            logger.warning(
                "nobody can tell whether %s has the tokenizer of %s: %s", self._engine.url, self._variable, error
            )
        except (KeyError, IndexError, TypeError) as error:
            raise EngineUnavailableError(
                f"{self._engine.url} sent no log-probabilities of a prompt, so it is no SGLang server"
            ) from error
        else:
            if ids != self._ids:
                raise EngineUnavailableError(
                    f"{self._engine.url} has another tokenizer than {self._variable}; name the folder of that server's model"
                )
        self._known = True

    async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
        """Return the engine's answer; see `Engine.generate` and `check`."""
        await self.check()
        return await self._engine.generate(payload, owner)

    async def answers(self) -> bool:
        """Return whether the engine has the tokenizer and gives a token now."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                await self.check()
        except (EngineUnavailableError, TimeoutError):
            return False
        return await self._engine.answers()

    async def close(self) -> None:
        """Close the engine's connections."""
        await self._engine.close()


def _unless_aborted(answer: dict[str, Any], url: str) -> dict[str, Any]:
    """Return an engine's answer, unless the engine gave the request up."""
    meta: dict[str, Any] = answer.get("meta_info") or {}
    finish: dict[str, Any] = meta.get("finish_reason") or {}
    if finish.get("type") != "abort":
        return answer
    words = f"{url} gave the request up: {finish.get('message')}"
    if 400 <= int(finish.get("status_code") or 0) < 500:
        raise EngineRefusedError(words)
    raise EngineUnavailableError(words)


@dataclass(frozen=True)
class JudgeSampling:
    """Sampling parameters of a judge; ``grammar``: the engine ends every answer in one of the allowed boxes."""

    temperature: float = RuntimeVariables.prm_temperature
    top_p: float = 1.0
    max_new_tokens: int = RuntimeVariables.prm_max_new_tokens
    grammar: bool = RuntimeVariables.judge_grammar


class JudgeClient:
    """Casts votes: renders the question (off the event loop), asks the judge engine, parses the answer."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        variant: Variant,
        sampling: JudgeSampling,
        picture_tokens: Callable[[str], int] | None = None,
    ) -> None:
        """Create the judge.

        Args:
            engine: runs the judge model.
            tokenizer: the judge model's, with a chat template.
            variant: which prompts (`openclaw.judge.prompts`).
            sampling: of the answers.
            picture_tokens: tokens of a picture's ``data:`` URL in the model's prompt; None: the model sees no pictures.
        """
        self._picture_tokens = picture_tokens
        self._engine = engine
        self._tokenizer = tokenizer
        self._prompts = Prompts(tokenizer)
        self._variant: Variant = variant
        self._sampling = sampling
        self._rendering = asyncio.Lock()

    def prompt_ids(self, kind: JudgeKind, question: Question) -> list[int]:
        """Return the prompt ids for the judge ``kind``; control tokens that the judged text spells stay text."""
        return self._ids(question.asked(kind, self._variant))

    def _ids(self, messages: Sequence[Message]) -> list[int]:
        keywords = {"enable_thinking": False} if self._variant == "brief" else {}
        try:
            return self._prompts.ids(messages, keywords=keywords)
        finally:
            self._prompts.forget()  # a judged text must not outlive its session

    async def length(self, kind: JudgeKind, question: Question) -> int:
        """Return how many tokens the prompt of a question has, those of its pictures included."""
        async with self._rendering:
            count = len(await asyncio.to_thread(self.prompt_ids, kind, question))
        if self._picture_tokens is None:
            return count
        return count + sum(self._picture_tokens(url) - 1 for url in question.images)  # each has a placeholder

    async def votes(self, kind: JudgeKind, question: Question, count: int) -> list[Vote]:
        """Return ``count`` votes, cast concurrently.

        Raises:
            JudgeError: if any of them failed; there is no verdict from incomplete votes.
        """
        if count == 0:
            return []
        asked, grammar = question.asked(kind, self._variant), answer_grammar(kind)
        return [
            read_vote(kind, each.text, each.seconds, finish=each.finish, inside_thought=each.inside_thought)
            for each in await self.said(asked, count, grammar, question.images)
        ]

    async def said(
        self, messages: Sequence[Message], count: int, grammar: str, images: Sequence[str] = ()
    ) -> list[Said]:
        """Return ``count`` answers, given concurrently; see `openclaw.judge.interface.Speaker.said`."""
        async with self._rendering:
            ids = await asyncio.to_thread(self._ids, messages)
        inside_thought = self._tokenizer.decode(ids[-TAIL_TOKENS:]).rstrip().endswith(THINKING_START)
        sampling = {
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "max_new_tokens": self._sampling.max_new_tokens,
            **({GRAMMAR_PARAMETER: grammar} if self._sampling.grammar else {}),
        }
        payload = {"input_ids": ids, **({"image_data": list(images)} if images else {}), "sampling_params": sampling}
        return await together(*(self._said(payload, inside_thought) for _ in range(count)))

    async def answers(self) -> bool:
        """Return whether the engine gives a token now."""
        return await self._engine.answers()

    async def close(self) -> None:
        """Close the engine's connections."""
        await self._engine.close()

    async def _said(self, payload: dict[str, Any], inside_thought: bool) -> Said:
        started = time.monotonic()
        answer = await self._engine.generate(payload)
        seconds = time.monotonic() - started
        try:
            return Said(str(answer["text"]), answer["meta_info"]["finish_reason"]["type"], seconds, inside_thought)
        except (KeyError, TypeError) as error:
            raise EngineUnavailableError(f"the judge engine sent no answer: {str(answer)[:200]}") from error
