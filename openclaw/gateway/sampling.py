"""How a reply is sampled, and whether its turn may be trained.

Guarantees: the trainer learns only from turns that were sampled from the policy as it is. The engine's log-probabilities
are those of the policy at the sampling temperature, before ``top_p``, ``top_k`` and ``min_p`` cut it, but after
penalties, ``logit_bias`` and a grammar changed it; in both cases they are not what the token was drawn with under the
plain policy. Nor does it learn from replies that do not end where the policy would end them. Such turns are served,
recorded and excluded with a reason. Pure functions of request, configuration and reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openclaw.config.runtime import RuntimeConfig
from openclaw.engine.client import GRAMMAR_PARAMETER, MIN_NEW_TOKENS
from openclaw.gateway.detokenize import Vocabulary
from openclaw.gateway.errors import bad_request, unsupported
from openclaw.gateway.schema import ChatRequest

EVALUATION = "evaluation"
GRAMMAR = "grammar"
SAMPLING_PARAMETERS = "sampling_parameters"
MIN_TOKENS = "min_tokens"
"""Until so many tokens the engine rules out every token that ends a reply: log-probabilities are those of what is left."""
IGNORE_EOS = "ignore_eos"
"""The policy was made to speak on after it had ended, which it never does by itself."""
STOP_TOKEN = "stop_token_ids"
"""The reply ended at a token of the request, where the policy would have gone on."""

NEUTRAL: dict[str, Any] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": {},
}
"""Values that leave the sampled distribution as it is; a turn with any other is served and not trained."""


@dataclass(frozen=True)
class SamplingPlan:
    """How one reply is sampled.

    Attributes:
        parameters: for the engine's `/generate`.
        temperature: of sampling.
        top_p: of sampling.
        excluded: why the turn must not be trained, or None.
        stop_tokens: tokens that end the reply and with which the policy itself ends none, see `exclusion`.
    """

    parameters: dict[str, Any]
    temperature: float
    top_p: float
    excluded: str | None
    stop_tokens: frozenset[int]


def plan_sampling(
    request: ChatRequest,
    config: RuntimeConfig,
    room: int,
    grammar: str | None = None,
    *,
    vocabulary: Vocabulary,
) -> SamplingPlan:
    """Return how a request is sampled.

    Args:
        request: as it was checked.
        config: with the defaults of what the request leaves open.
        room: tokens that the context leaves for the reply.
        grammar: the structural tag that the reply has to follow, or None.
        vocabulary: of the policy.

    Raises:
        ApiError: 400 for a ``seed`` where there is something to draw: the engine draws without one; for a stop token that
            the vocabulary does not have, which would break the engine's batch; for ``min_tokens`` beyond the longest reply,
            or where a grammar decides when the reply ends.
    """
    temperature = config.temperature if request.temperature is None else request.temperature
    top_p = config.top_p if request.top_p is None else request.top_p
    if request.seed is not None and temperature != 0 and request.top_k != 1:
        raise unsupported("seed", "replies are drawn without one; send 'temperature': 0 with it, or leave it out")
    asked = {name: getattr(request, name) for name in NEUTRAL} | {"top_p": top_p}
    unusual = {name: value for name, value in asked.items() if value not in (None, NEUTRAL[name])}
    longest = min(request.requested_tokens or config.max_tokens, room)
    _check_min_tokens(request.min_tokens or 0, longest, grammar)
    stops = frozenset(request.stop_token_ids or ())
    if unknown := [token for token in stops if token >= vocabulary.size]:
        raise bad_request(
            f"stop_token_ids: there is no token {min(unknown)}; the model has tokens 0 to {vocabulary.size - 1}",
            param="stop_token_ids",
        )
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
    excluded = next((reason for reason, found in reasons.items() if found), None)
    return SamplingPlan(parameters, float(temperature), float(top_p), excluded, stops - vocabulary.ends)


def _check_min_tokens(wanted: int, longest: int, grammar: str | None) -> None:
    """Refuse a least length that the reply cannot have."""
    if wanted > longest:
        raise bad_request(
            f"min_tokens={wanted} is more than the {longest} tokens that the reply may have; send at most {longest}",
            param="min_tokens",
        )
    if wanted and grammar:
        raise bad_request(
            "min_tokens: the reply ends where 'response_format' or the tool call does; leave it out", param="min_tokens"
        )


def exclusion(plan: SamplingPlan, ids: Sequence[int]) -> str | None:
    """Return why the turn with this reply must not be trained, as far as sampling decides it; or None.

    By field:
        ``min_tokens``: every reply, because the engine's log-probabilities are not the policy's until then.
        ``ignore_eos``: every reply. The engine alone knows all tokens that end one, so that a reply without any cannot be told.
        ``stop_token_ids``: a reply that ends at one of them, unless the policy's own replies end with it too. A reply that
            did not reach one was sampled as without the field.
        ``skip_special_tokens``: none, it changes only what the client is shown.
    """
    if plan.excluded is None and ids and ids[-1] in plan.stop_tokens:
        return STOP_TOKEN
    return plan.excluded
