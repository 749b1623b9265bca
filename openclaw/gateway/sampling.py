"""Plans the sampling of a reply, and decides whether its turn may be trained.

Guarantees: the trainer learns only from turns that were sampled from the unchanged policy and end where the policy would
end them. Other turns are served, recorded, and excluded from training with a reason.

The engine's log-probabilities are the policy's at the sampling temperature, before ``top_p``, ``top_k`` and ``min_p``
cut the distribution, but after penalties, ``logit_bias`` and a grammar change it. In both cases the plain policy would
draw the token with another probability. Pure functions of request, configuration and reply.

What the engine takes (SGLang 0.5: `SamplingParams.verify` and its tensors), and what it gets from here:

================== =============================== ==========================================================
parameter          engine                          here
================== =============================== ==========================================================
temperature        float32, >= 0, < 1e-6 is greedy 0 or [1e-6, 2]
top_p              float32, (0, 1]                 [1e-6, 1]: smaller ones are 0 in float32
top_k              int32, -1 or >= 1               -1, or 1 up to the vocabulary; 0 and larger ones mean off
min_p              float32, [0, 1]                 the same
frequency/presence float32, [-2, 2], summed up     the same; at most 2 x context, finite
repetition_penalty float32, (0, 2], divides logits [0.01, 2]
logit_bias         float32 at ids < vocabulary     [-100, 100], ids < vocabulary, a bounded number
stop_token_ids     int64, index of a tensor        ids < vocabulary, a bounded number
min_new_tokens     int32, <= max_new_tokens        at most the reply's limit
max_new_tokens     int                             1 up to the room in the context
stop               up to 32, decoded at each step  up to 16, of a bounded number of characters together
seed               not sent                        int64, needs greedy sampling
================== =============================== ==========================================================

`reply_grammar` gives the form that a reply must have, as a structural tag of xgrammar, SGLang's grammar back end. The
engine enforces ``response_format``, a ``tool_choice`` that requires a call, ``parallel_tool_calls: false`` and ``strict``
functions. A thought before the answer stays free. A request without these parameters has no grammar.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from chat_codec.detokenize import Vocabulary
from chat_codec.formats import ReasoningFormat, ToolFormat
from openclaw.config.runtime import RuntimeConfig
from openclaw.engine.client import GRAMMAR_PARAMETER, MIN_NEW_TOKENS
from openclaw.gateway.errors import bad_request, unsupported
from openclaw.gateway.schema import ChatRequest, Tool

EVALUATION = "evaluation"
GRAMMAR = "grammar"
SAMPLING_PARAMETERS = "sampling_parameters"
MIN_TOKENS = "min_tokens"
"""Before ``min_tokens`` the engine excludes all end tokens, so log-probabilities are those of the rest."""
IGNORE_EOS = "ignore_eos"
"""The policy had to continue after its own end token, which it never does by itself."""
STOP_TOKEN = "stop_token_ids"
"""The reply ended at a token of the request, where the policy would have continued."""
STOP_STRING = "stop"
"""The reply ended at a string of the request, where the policy would have continued."""

NEUTRAL: dict[str, Any] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": {},
}
"""Values that do not change the sampled distribution; a turn with another value is served, but not trained."""

GREEDY_BELOW = 1e-6
"""Temperatures that SGLang takes for 0; divided by them, logits overflow."""


@dataclass(frozen=True)
class SamplingPlan:
    """The sampling of one reply.

    Attributes:
        parameters: for the engine's `/generate`.
        temperature: sampling temperature.
        top_p: nucleus of the sampling.
        excluded: why the turn must not be trained, or None.
        stop_tokens: tokens that end this reply but are not the policy's own end tokens, see `exclusion`.
    """

    parameters: dict[str, Any]
    temperature: float
    top_p: float
    excluded: str | None
    stop_tokens: frozenset[int]


NO_SAMPLING = SamplingPlan({}, temperature=0.0, top_p=1.0, excluded="command", stop_tokens=frozenset())
"""Of an answer that no model writes."""


def plan_sampling(
    request: ChatRequest,
    config: RuntimeConfig,
    room: int,
    grammar: str | None = None,
    *,
    vocabulary: Vocabulary,
) -> SamplingPlan:
    """Return the sampling plan of a request.

    Args:
        request: the validated request.
        config: with the defaults.
        room: tokens that the context leaves for the reply.
        grammar: the structural tag that the reply must follow, or None.
        vocabulary: of the policy.

    Raises:
        ApiError: 400 for a ``seed`` with random sampling, because the engine ignores seeds; for a stop token or bias
            outside the vocabulary, which would break the engine's batch; for ``min_tokens`` above the longest reply or
            together with a grammar.
    """
    temperature = config.temperature if request.temperature is None else request.temperature
    temperature = 0.0 if temperature < GREEDY_BELOW else temperature
    top_p = config.top_p if request.top_p is None else request.top_p
    if request.seed is not None and temperature != 0 and request.top_k != 1:
        raise unsupported("seed", "sampling is not seeded; send 'temperature': 0 with it, or leave it out")
    asked = {name: getattr(request, name) for name in NEUTRAL} | {"top_p": top_p}
    if request.top_k is not None and not 1 <= request.top_k < vocabulary.size:
        asked["top_k"] = NEUTRAL["top_k"]
    if request.logit_bias:
        asked["logit_bias"] = {str(int(token)): value for token, value in request.logit_bias.items()}
        _check_tokens("logit_bias", map(int, request.logit_bias), vocabulary)
    unusual = {name: value for name, value in asked.items() if value not in (None, NEUTRAL[name])}
    longest = min(request.requested_tokens or config.max_tokens, room)
    _check_min_tokens(request.min_tokens or 0, longest, grammar)
    stops = frozenset(request.stop_token_ids or ())
    _check_tokens("stop_token_ids", stops, vocabulary)
    parameters: dict[str, Any] = {
        "temperature": temperature,
        "top_p": top_p,
        "max_new_tokens": longest,
        **unusual,
    }
    ending = {"ignore_eos": request.ignore_eos, MIN_NEW_TOKENS: request.min_tokens, "stop_token_ids": sorted(stops)}
    parameters |= {name: value for name, value in ending.items() if value}
    if request.stops:
        parameters["stop"] = request.stops
    if grammar:
        parameters[GRAMMAR_PARAMETER] = grammar
    reasons = {
        EVALUATION: config.eval_mode,
        GRAMMAR: grammar,
        SAMPLING_PARAMETERS: unusual,
        MIN_TOKENS: request.min_tokens,
        IGNORE_EOS: request.ignore_eos,
    }
    excluded = next((reason for reason, result in reasons.items() if result), None)
    return SamplingPlan(parameters, float(temperature), float(top_p), excluded, stops - vocabulary.ends)


def _check_tokens(name: str, tokens: Iterable[int], vocabulary: Vocabulary) -> None:
    """Refuse ids outside the vocabulary."""
    if (largest := max(tokens, default=0)) >= vocabulary.size:
        raise bad_request(
            f"{name}: there is no token {largest}; the model has tokens 0 to {vocabulary.size - 1}", param=name
        )


def _check_min_tokens(wanted: int, longest: int, grammar: str | None) -> None:
    """Refuse a minimum length that the reply cannot have."""
    if wanted > longest:
        raise bad_request(
            f"min_tokens={wanted} is more than the reply's limit of {longest} tokens; send at most {longest}",
            param="min_tokens",
        )
    if wanted and grammar:
        raise bad_request(
            "min_tokens does not work with 'response_format' or a required tool call; leave it out", param="min_tokens"
        )


def exclusion(plan: SamplingPlan, ids: Sequence[int], *, stopped: bool) -> str | None:
    """Return why sampling excludes this reply's turn from training, or None; ``stopped``: a stop string ended it.

    By field:
        ``min_tokens``: every reply, because the first log-probabilities are not the policy's.
        ``ignore_eos``: every reply. Only the engine knows all end tokens, so we cannot tell which replies contain none.
        ``stop_token_ids``: a reply that ends at one of them, unless it is the policy's own end token. Any other reply is
        sampled as without the field.
        ``stop``: a reply that ends at one of the strings; the policy's own end token has no text.
        ``skip_special_tokens``: none; it changes only the text that the client sees.
    """
    if plan.excluded is None and ids and ids[-1] in plan.stop_tokens:
        return STOP_TOKEN
    if plan.excluded is None and stopped:
        return STOP_STRING
    return plan.excluded


Format = dict[str, Any]
MAX_WHITESPACE = 16
"""Most whitespace characters in a row within JSON; without a bound a small model may write them forever."""
ANY_OBJECT: dict[str, Any] = {"type": "object"}


def reply_grammar(
    request: ChatRequest, tool_format: ToolFormat | None, reasoning: ReasoningFormat | None, thought: str
) -> str | None:
    """Return the structural tag that the reply must follow, or None.

    Args:
        request: the validated request.
        tool_format: of the model's tool calls, or None.
        reasoning: format of its thoughts, or None.
        thought: ``open`` or ``closed`` if the prompt ends in such a thought, otherwise ``none``.

    Raises:
        ApiError: 400, if the request needs a tool format and there is none.
    """
    body = _body(request, tool_format)
    if body is None:
        return None
    return orjson.dumps({"type": "structural_tag", "format": _after_thought(body, reasoning, thought)}).decode()


def _body(request: ChatRequest, tool_format: ToolFormat | None) -> Format | None:
    schema = request.response_schema
    answer = None if schema is None else json_content(schema)
    if not request.offers_tools:
        return answer
    forced = request.must_call
    one = request.parallel_tool_calls is False or request.named_tool is not None
    strict = any(tool.function.strict for tool in request.callable_tools)
    if not (answer or forced or one or strict):
        return None
    if tool_format is None:
        raise unsupported(
            "tool_choice" if forced else "tools",
            "this server has no tool-call format for the model (TOOL_CALL_PARSER); send tool_choice 'auto', without "
            "'parallel_tool_calls': false, 'strict' and 'response_format'",
        )
    tags = [call_tag(tool, tool_format) for tool in request.callable_tools]
    calls: Format = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": "\n",
        "at_least_one": True,
        "stop_after_first": one,
    }
    if forced:
        return calls
    if answer is not None:
        return {"type": "or", "elements": [calls, answer]}
    return {
        "type": "triggered_tags",
        "triggers": [tool_format.trigger],
        "tags": tags,
        "at_least_one": False,
        "stop_after_first": one,
    }


def json_content(schema: dict[str, Any] | bool, style: str = "json") -> Format:
    """Return the format of a JSON value, or of parameters in another ``style`` of xgrammar."""
    return {"type": "json_schema", "json_schema": schema, "style": style, "max_whitespace_cnt": MAX_WHITESPACE}


def call_tag(tool: Tool, tool_format: ToolFormat) -> Format:
    """Return the format of a call to ``tool``, with arguments that follow its schema."""
    begin, end = tool_format.frame(tool.function.name)
    content = json_content(tool.function.parameters or ANY_OBJECT, tool_format.style)
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _after_thought(body: Format, reasoning: ReasoningFormat | None, thought: str) -> Format:
    """Return ``body`` preceded by an optional thought, or by the rest of an open one."""
    if reasoning is None or thought == "closed":
        return body
    inside = thought == "open" or reasoning.begins_inside
    rest: Format = {
        "type": "tag",
        "begin": "" if inside else reasoning.open,
        "content": {"type": "any_text", "excludes": [reasoning.open, reasoning.close]},
        "end": f"{reasoning.close}\n\n",
    }
    return {"type": "sequence", "elements": [rest if inside else {"type": "optional", "content": rest}, body]}
