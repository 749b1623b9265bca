"""How a reply is sampled, and whether its turn may be trained.

Guarantees: the trainer learns only from turns that were sampled from the policy as it is. The engine's log-probabilities
are those of the policy at the sampling temperature, before ``top_p``, ``top_k`` and ``min_p`` cut it, but after
penalties, ``logit_bias`` and a grammar changed it; in both cases they are not what the token was drawn with under the
plain policy. Such turns are served, recorded and excluded with a reason. Pure functions of request and configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openclaw.config.runtime import RuntimeConfig
from openclaw.engine.client import GRAMMAR_PARAMETER
from openclaw.gateway.errors import unsupported
from openclaw.gateway.schema import ChatRequest

EVALUATION = "evaluation"
GRAMMAR = "grammar"
SAMPLING_PARAMETERS = "sampling_parameters"

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
    """

    parameters: dict[str, Any]
    temperature: float
    top_p: float
    excluded: str | None


def plan_sampling(request: ChatRequest, config: RuntimeConfig, room: int, grammar: str | None = None) -> SamplingPlan:
    """Return how a request is sampled.

    Args:
        request: as it was checked.
        config: with the defaults of what the request leaves open.
        room: tokens that the context leaves for the reply.
        grammar: the structural tag that the reply has to follow, or None.

    Raises:
        ApiError: 400 for a ``seed`` where there is something to draw: the engine draws without one.
    """
    temperature = config.temperature if request.temperature is None else request.temperature
    top_p = config.top_p if request.top_p is None else request.top_p
    if request.seed is not None and temperature != 0 and request.top_k != 1:
        raise unsupported("seed", "replies are drawn without one; send 'temperature': 0 with it, or leave it out")
    asked = {name: getattr(request, name) for name in NEUTRAL} | {"top_p": top_p}
    unusual = {name: value for name, value in asked.items() if value not in (None, NEUTRAL[name])}
    parameters: dict[str, Any] = {
        "temperature": temperature,
        "top_p": top_p,
        "max_new_tokens": min(request.requested_tokens or config.max_tokens, room),
        **unusual,
    }
    if request.stops:
        parameters["stop"] = request.stops
    if grammar:
        parameters[GRAMMAR_PARAMETER] = grammar
    excluded = EVALUATION if config.eval_mode else GRAMMAR if grammar else SAMPLING_PARAMETERS if unusual else None
    return SamplingPlan(parameters, float(temperature), float(top_p), excluded)
