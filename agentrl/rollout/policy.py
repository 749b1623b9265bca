"""The policy of one episode: prompt ids in, sampled ids out, through slime's own generation.

Guarantees: ids, logprobs and weight versions are the engine's. A reply that a weight update or an abort interrupts goes
on where it stopped, as soon as `Policy.go_on` is called again; nothing is sampled twice. All requests of an episode go to
the engine that has its prefix cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.rollout.generation import GenerateState, generate
from slime.rollout.segments import SampledTurn
from slime.utils.types import Sample


class Policy:
    """Samples the replies of one episode."""

    def __init__(
        self, args: Arguments, origin: Sample, sampling_params: dict[str, Any], *, evaluation: bool, session_id: str
    ) -> None:
        """Prepare.

        Args:
            args: of the run.
            origin: the sample that the episode answers.
            sampling_params: of its replies; ``max_new_tokens`` bounds one reply.
            evaluation: whether this is an evaluation.
            session_id: of the episode.

        Raises:
            ConfigError: the run replays routed experts, which segments do not carry.
        """
        if args.use_rollout_routing_replay:
            raise ConfigError("the agent loop keeps no routed experts; remove --use-rollout-routing-replay")
        self._args = args
        self._parameters = sampling_params
        self._evaluation = evaluation
        self._origin = origin
        self._session_id = session_id

    @property
    def stopping(self) -> bool:
        """Whether the rollout is being aborted, so that no request may begin."""
        return GenerateState(self._args).aborted

    @property
    def context(self) -> int | None:
        """Most tokens of prompt and reply; None without a bound."""
        return self._args.eval_max_context_len if self._evaluation else self._args.rollout_max_context_len

    @property
    def reply_tokens(self) -> int:
        """Most tokens of a reply."""
        return self._parameters["max_new_tokens"]

    def stop_after(self, texts: Sequence[str]) -> None:
        """Let replies also end with one of these texts, which stay part of them."""
        if texts:
            stops = self._parameters.get("stop") or []
            self._parameters = {**self._parameters, "stop": [*([stops] if isinstance(stops, str) else stops), *texts]}

    def ask(self, prompt_ids: list[int], images: Sequence[Any] = ()) -> Sample:
        """Return a reply that has not begun; ``images`` are those of the prompt, in order, at the model's size."""
        return Sample(
            group_index=self._origin.group_index,
            index=self._origin.index,
            session_id=self._session_id,
            tokens=list(prompt_ids),
            multimodal_inputs={"images": list(images), "videos": None} if images else None,
        )

    async def go_on(self, reply: Sample, most: int) -> bool:
        """Sample the rest of a reply, at most ``most`` tokens in all; return False if the rollout is being aborted.

        Raises:
            EngineError: the engine keeps ending the request.
        """
        parameters = {**self._parameters, "max_new_tokens": min(most, self.reply_tokens)}
        await generate(self._args, reply, parameters, self._evaluation)
        return reply.status != Sample.Status.ABORTED


def turn_of(reply: Sample) -> SampledTurn:
    """Return a finished reply with its prompt."""
    start = len(reply.tokens) - reply.response_length
    return SampledTurn(
        prompt_ids=reply.tokens[:start],
        response_ids=reply.tokens[start:],
        log_probs=reply.rollout_log_probs or [],
        weight_spans=[(str(version), int(first), int(end)) for version, first, end in reply.weight_spans],
    )
