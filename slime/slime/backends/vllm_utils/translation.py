"""One `/generate` request and its answer, from SGLang's words to vLLM's and back; pure functions and one small state.

The other side is vLLM's `/inference/v1/generate`, which takes ids and returns ids with log-probabilities and weight versions.
Guarantees: every id, log-probability and version span is one that vLLM sent; none is computed or made up. What vLLM did not
send is missing in the answer, too, so that the reader of SGLang's format finds it. A field or sampling parameter that has no
counterpart raises `UntranslatableError`, because vLLM would ignore it in silence.

Log-probabilities of output are those at the sampling temperature; with ``top_p``, ``top_k`` or ``min_p`` they are of the cut
distribution, where SGLang's are of the whole one. Those of a prompt are at temperature 1, as SGLang's.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime.backends.sglang_utils.server_hooks import DIGEST
from slime.exceptions import UntranslatableError

PARAMETERS = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop_str_in_output",
    "sampling_seed": "seed",
    **{
        name: name
        for name in (
            *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
            *("logit_bias", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens"),
            "spaces_between_special_tokens",
        )
    },
}
"""SGLang's sampling parameters and vLLM's names of them."""
GRAMMARS = {"structural_tag": "structural_tag", "json_schema": "json", "regex": "regex", "ebnf": "grammar"}
"""SGLang's grammars and the keys of vLLM's structured outputs."""
DEFAULT_NEW_TOKENS = 128
"""SGLang's default; vLLM's would be all that the context allows."""
LEAST_TEMPERATURE = 0.01
"""vLLM raises smaller ones to it, except 0."""
NO_LOGPROB = -9999.0
"""vLLM's word for a log-probability that it does not have."""
TOKEN = "token_id:"
"""Begins a token in vLLM's answers with text, under ``--return-tokens-as-token-ids``."""
REQUEST_ID = "generate-tokens-"
"""vLLM puts it before the name of a request."""
_IDS, _NAME, _ADAPTER, _SALT = "input_ids", "rid", "lora_path", "extra_key"
_FIELDS = frozenset(
    {
        _IDS,
        _NAME,
        _ADAPTER,
        _SALT,
        "sampling_params",
        "return_logprob",
        "logprob_start_len",
        "top_logprobs_num",
        "stream",
    }
)
_NUMBERS = frozenset({"temperature", "max_new_tokens", "logprob_start_len", "top_logprobs_num"})
"""Those that are read here; vLLM looks at the others."""
_COUNTS = frozenset({"max_new_tokens", "top_logprobs_num"})
_SWITCHES = frozenset({"stream", "return_logprob"})
_OF_ROUTER = frozenset({"log_metrics"})
"""The router adds it to each request; it is about SGLang's own metrics."""


@dataclass(frozen=True)
class Asked:
    """A request, as vLLM gets it.

    Attributes:
        body: of vLLM's request, without the model's name.
        adapter: name of the adapter that the request asks for; None: the newest.
        prompt: its ids.
        logprobs: whether the answer has log-probabilities.
        top: how many of the most likely tokens it has for each position.
        scored_from: first prompt position with an entry.
        new_tokens: whether it wants any; vLLM generates one at least.
    """

    body: dict[str, Any]
    adapter: str | None
    prompt: Sequence[int]
    logprobs: bool
    top: int
    scored_from: int
    new_tokens: bool

    @property
    def stream(self) -> bool:
        """Whether the answer is a stream of events."""
        return bool(self.body["stream"])

    @property
    def name(self) -> str:
        """The request's name in vLLM."""
        return REQUEST_ID + self.body["request_id"]


def parts_of(payload: Any) -> list[dict[str, Any]] | None:
    """Return the requests that a payload with several prompts stands for, None if it has one.

    A field that is a list has one value for each prompt, as in SGLang; any other value is that of all.

    Raises:
        UntranslatableError: a list has another length, or the payload is for a stream.
    """
    prompts = payload.get(_IDS) if isinstance(payload, dict) else None
    if not isinstance(prompts, list) or not prompts or not all(isinstance(prompt, list) for prompt in prompts):
        return None
    if payload.get("stream"):
        raise UntranslatableError(f"{_IDS} has {len(prompts)} prompts; send one in a stream")
    for name, value in payload.items():
        if isinstance(value, list) and len(value) != len(prompts):
            raise UntranslatableError(f"{name} has {len(value)} values for {len(prompts)} prompts; send one for each")
    name = payload.get(_NAME)
    names = [f"{name}_{number}" for number in range(len(prompts))] if isinstance(name, str) else name
    return [
        {
            field: value[number] if isinstance(value, list) else value
            for field, value in {**payload, _NAME: names}.items()
        }
        for number in range(len(prompts))
    ]


def to_vllm(payload: Any, name: str) -> Asked:
    """Return the request of vLLM for a `/generate` payload; ``name``: of a request that has none.

    Raises:
        UntranslatableError: vLLM would not do what the payload says.
    """
    if not isinstance(payload, dict):
        raise UntranslatableError(f"the body is a {type(payload).__name__}; send a JSON object with 'input_ids'")
    _check_kinds(payload)
    prompt = payload.get(_IDS)
    if not isinstance(prompt, list) or not prompt or not all(isinstance(token, int) for token in prompt):
        raise UntranslatableError(
            "input_ids: send the ids of a prompt as a list, or of several as a list of lists; vLLM engines take no text"
        )
    given = {field for field, value in payload.items() if value not in (None, False)}
    if unknown := sorted(given - _FIELDS - _OF_ROUTER):
        raise UntranslatableError(
            f"{', '.join(unknown)}: vLLM engines do not take it; leave it out, or use --backend sglang"
        )
    parameters = {name: value for name, value in (payload.get("sampling_params") or {}).items() if value is not None}
    new_tokens = int(parameters.setdefault("max_new_tokens", DEFAULT_NEW_TOKENS))
    top, logprobs, stream = (
        int(payload.get("top_logprobs_num") or 0),
        bool(payload.get("return_logprob")),
        bool(payload.get("stream")),
    )
    start = payload.get("logprob_start_len")
    last = len(prompt) - 1
    scored_from = last if start is None or start < 0 else min(int(start), last)
    sampling = _sampling({**parameters, "max_new_tokens": max(1, new_tokens)})
    if logprobs:
        # The sampled token stands in vLLM's list of the most likely ones, whatever its rank, so one more is asked for.
        sampling["logprobs"] = top + 1 if top else 0
        if scored_from < last:
            sampling["prompt_logprobs"] = top
    if stream and scored_from < last:
        raise UntranslatableError(
            "logprob_start_len: vLLM engines do not score a prompt in a stream; leave out 'stream'"
        )
    if stream:
        sampling["detokenize"] = bool(sampling.get("stop"))
    body: dict[str, Any] = {
        "request_id": str(payload.get(_NAME) or name),
        "token_ids": prompt,
        "sampling_params": sampling,
        "stream": stream,
        "output_mode": "tokens" if stream else "text",
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    if payload.get(_SALT):
        body["cache_salt"] = payload[_SALT]
    return Asked(body, payload.get(_ADAPTER), prompt, logprobs, top, scored_from, new_tokens > 0)


def _check_kinds(payload: Mapping[str, Any]) -> None:
    """Raise `UntranslatableError` for a value that is not of the kind that its name says."""
    sampling = payload.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        raise UntranslatableError(f"sampling_params {reprlib.repr(sampling)}: send a JSON object")
    texts = {
        _NAME: "the name of one request",
        _ADAPTER: "the name of one adapter",
        _SALT: "one string",
    }
    for name, send in texts.items():
        if not isinstance(payload.get(name), str | None):
            raise UntranslatableError(f"{name} {reprlib.repr(payload[name])}: send {send}")
    for name, value in {**payload, **sampling}.items():
        if value is None:
            continue
        shown = f"{name} {reprlib.repr(value)}"
        if name in _NUMBERS and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise UntranslatableError(f"{shown}: send a number")
        if name in _COUNTS and value < 0:
            raise UntranslatableError(f"{shown}: send 0 or more")
        if name in _SWITCHES and not isinstance(value, bool):
            raise UntranslatableError(f"{shown}: send true or false")


def _sampling(parameters: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(parameters) - set(PARAMETERS) - set(GRAMMARS)):
        raise UntranslatableError(f"sampling_params: vLLM engines have no {', '.join(unknown)}; leave it out")
    temperature = parameters.get("temperature", 1.0)
    if 0 < temperature < LEAST_TEMPERATURE:
        raise UntranslatableError(
            f"temperature {temperature:g}: vLLM samples at 0, or at {LEAST_TEMPERATURE:g} and above"
        )
    sampling = {PARAMETERS[name]: value for name, value in parameters.items() if name in PARAMETERS}
    grammars = {GRAMMARS[name]: value for name, value in parameters.items() if name in GRAMMARS}
    if len(grammars) > 1:
        raise UntranslatableError(f"sampling_params: {', '.join(sorted(grammars))} are several grammars; send one")
    if grammars:
        sampling["structured_outputs"] = grammars
    return sampling


@dataclass(frozen=True)
class Weights:
    """What answers a request.

    Attributes:
        pinned: the version of the adapter that the request keeps; None: whole weights, which an update changes.
        digest: SHA-256 of what brought the adapter.
        now: returns the version of the whole weights at the moment.
        more: what else an answer's ``meta_info`` says.
    """

    now: Callable[[], str]
    pinned: str | None = None
    digest: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def spans(self, sent: Sequence[Mapping[str, Any]] | None, count: int) -> list[dict[str, Any]]:
        """Return the version of each stretch of ``count`` tokens, by the spans that vLLM ``sent``.

        Raises:
            ValueError: there are tokens, but nothing says which version sampled them.
        """
        if self.pinned is not None:
            return [{"version": self.pinned, "start": 0, "end": count}] if count else []
        if count and not sent:
            raise ValueError(f"vLLM named no weight version of its {count} tokens")
        return [{name: span[name] for name in ("version", "start", "end")} for span in sent or ()]


class Reply:
    """One answer of vLLM, on its way to SGLang's form. Owns the count of its tokens, and the last event until vLLM reports its usage."""

    def __init__(self, asked: Asked, weights: Weights) -> None:
        self._asked, self._weights = asked, weights
        self._count = 0
        self._last: dict[str, Any] | None = None

    def event(self, sent: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the event of SGLang's stream for one of vLLM's, or None: the last one waits for the report of the usage.

        Raises:
            LookupError: the event is not in vLLM's format; so do AttributeError, TypeError and ValueError.
        """
        if "error" in sent:
            return {"error": sent["error"]}
        if not sent["choices"]:
            return self.rest(_cached(sent))
        made = self._answer(sent["choices"][0])
        if made["meta_info"]["finish_reason"] is None:
            return made
        self._last = made
        return None

    def rest(self, cached: int = 0) -> dict[str, Any] | None:
        """Return the event that still waits, if one does."""
        made, self._last = self._last, None
        if made is not None:
            made["meta_info"]["cached_tokens"] = cached
        return made

    def whole(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of a request that is not a stream; raises like `event`."""
        choice = dict(sent["choices"][0])
        if not self._asked.new_tokens:
            choice |= {
                "token_ids": [],
                "logprobs": {"content": []},
                "text": "",
                "weight_versions": None,
                "finish_reason": "length",
            }
        made = self._answer(choice)
        meta = made["meta_info"] | {"cached_tokens": _cached(sent)}
        if self._asked.logprobs:
            meta |= self._scores(sent.get("prompt_logprobs"))
        return {"text": choice["text"], **made, "meta_info": meta}

    def _answer(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        ids = list(choice["token_ids"] or ())
        self._count += len(ids)
        finish = _finish(choice, ids, self._count)
        meta: dict[str, Any] = {
            "id": self._asked.body["request_id"],
            "prompt_tokens": len(self._asked.prompt),
            "completion_tokens": self._count,
            "cached_tokens": 0,
            "weight_version": self._weights.pinned or self._weights.now(),
            "finish_reason": finish,
        }
        if finish is not None:
            spans = meta["weight_versions"] = self._weights.spans(choice.get("weight_versions"), self._count)
            meta["weight_version"] = spans[-1]["version"] if spans else meta["weight_version"]
        if self._weights.pinned is not None:
            meta[DIGEST] = self._weights.digest
        meta |= self._weights.more
        if self._asked.logprobs:
            entries = (choice.get("logprobs") or {}).get("content") or []
            found = [_entry(entry) for entry in entries]
            meta["output_token_logprobs"] = [entry for entry in found if entry[0] > NO_LOGPROB]
            if self._asked.top:
                meta["output_top_logprobs"] = [_best(entry["top_logprobs"], self._asked.top) for entry in entries]
        return {"output_ids": ids, "meta_info": meta}

    def _scores(self, sent: Sequence[Mapping[str, Any] | None] | None) -> dict[str, Any]:
        """Return the entries of the prompt's ids; the first one has no value, as in SGLang."""
        start, prompt, top = self._asked.scored_from, self._asked.prompt, self._asked.top
        scored = sent or ()
        if start + 1 < len(prompt) != len(scored):
            raise ValueError(f"vLLM scored {len(scored)} of {len(prompt)} prompt tokens")
        entries: list[list[Any]] = [[None, prompt[start], None]]
        tops: list[list[list[Any]] | None] = [None]
        for position in range(start + 1, len(prompt)):
            found = scored[position] or {}
            entries.append([found[str(prompt[position])]["logprob"], prompt[position], None])
            listed = [{"token_id": int(token), "logprob": value["logprob"]} for token, value in found.items()]
            tops.append(_best(listed, top))
        return {"input_token_logprobs": entries} | ({"input_top_logprobs": tops} if top else {})


def _cached(sent: Mapping[str, Any]) -> int:
    """Return how many of the prompt's tokens vLLM found in its cache."""
    return int(((sent.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def _finish(choice: Mapping[str, Any], ids: Sequence[int], count: int) -> dict[str, Any] | None:
    """Return SGLang's finish reason; ``count``: of the reply's tokens."""
    reason, stopped_at = choice["finish_reason"], choice.get("stop_reason")
    match reason:
        case None:
            return None
        case "stop":
            return {"type": "stop", "matched": stopped_at if stopped_at is not None else (ids[-1] if ids else None)}
        case "length":
            return {"type": "length", "length": count}
        case "abort":
            return {"type": "abort", "message": "vLLM aborted the request"}
    raise ValueError(f"vLLM ended the reply with {reason!r}")


def _token(entry: Mapping[str, Any]) -> int:
    """Return the id of an entry: a number, or ``token_id:7`` in answers with text."""
    return int(entry["token_id"]) if "token_id" in entry else int(entry["token"].removeprefix(TOKEN))


def _entry(entry: Mapping[str, Any]) -> list[Any]:
    return [float(entry["logprob"]), _token(entry), None]


def _best(entries: Sequence[Mapping[str, Any]], count: int) -> list[list[Any]]:
    """Return the ``count`` most likely of the entries, the likeliest first."""
    return sorted(map(_entry, entries), key=lambda entry: -entry[0])[:count]
