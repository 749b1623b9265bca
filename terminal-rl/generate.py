"""``--custom-generate-function-path generate.generate``: terminal episodes as slime's samples.

The prompt is a task (``--input-key task``) or its name. The loop is `agentrl.rollout`. Guarantee: each sample's reward is a dict with
``score`` (what is trained), ``base_score`` (outcome), ``raw_score`` and ``accuracy`` (share of passed tests), ``prm_turn_score`` (mean of the
judged steps, None without any).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from agentrl.rollout.custom_config import (
    CustomConfig,
    Part,
    episode_settings,
    mean_step_score,
    reward_in_parts,
    sample_outcome,
    trained_score,
)
from agentrl.rollout.generate import generate_in
from agentrl.rollout.settings import Settings
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.utils.types import Sample

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
RECORDS = "AgentRunner_Output"
SAID = {
    "max_turns": {"max_iteration"},
    "max_malformed": {"max_parse_errors"},
    "reset_seconds": {"ensure_image_timeout", "reset_session_timeout"},
    "close_seconds": {"close_session_timeout"},
    "evaluate_seconds": {"eval_timeout"},
    "judge_history": {"prm_history_mode"},
    "judge_tokens": {"prm_max_total_tokens"},
}
"""Names of the file that decide about a setting, also against its variable."""
URL_VARIABLE = "ENV_SERVER_URL"
NO_THINK = "/no_think"


class TerminalConfig(CustomConfig):
    """What ``--custom-config-path`` may say about terminal episodes: attributes of the run's arguments.

    Attributes:
        max_iteration: most replies of an episode.
        max_parse_errors: replies with unreadable calls after which it ends.
        max_total_tokens: of prompt and reply, besides ``--rollout-max-context-len``; the smaller one counts.
        sglang_max_context_len: the engines' own bound; it counts in the same way.
        sglang_request_timeout: seconds of a reply, after which the episode is lost and tried again.
        non_think_mode: whether the policy shall not think; by a word in the prompt, by the chat template, or both.
        ensure_image_timeout: seconds that a container's image may take, before the start.
        reset_session_timeout: seconds that a start may take; with the image's they bound the reset.
        close_session_timeout: seconds to wait until the pool takes an environment back.
        eval_timeout: seconds that the verifier may take.
        tbench_output_root: folder of the episodes' records, in `RECORDS` below it; None: the run's folder.
        prm_turn_coef: weight of step scores; None: ``--prm-step-coef``.
        prm_max_total_tokens: of the judge's prompt and answer; a longer question is shortened.
        prm_history_mode: what the judge sees of earlier steps.
        terminal_agent_type: the loop; there is one.
        model_type: of the engine; there is one.
        chat_template_type: whose template renders prompts; there is one.
        chat_template_kwargs: for the template.
        messages_delimiter_start: of a message; the template decides, and ``<|im_start|>`` stands for it.
        messages_delimiter_end: likewise, ``<|im_end|>``.
        tool_call_parser: format of calls; the template decides, and qwen25 stands for it.
    """

    max_iteration: Count = 10
    max_parse_errors: Count = 3
    max_total_tokens: Count = 32768
    sglang_max_context_len: Count | None = None
    sglang_request_timeout: Seconds | None = None
    non_think_mode: bool = True
    non_think_mode_source: Literal["prompt", "sglang", "both"] = "prompt"
    ensure_image_timeout: Seconds = 300.0
    reset_session_timeout: Seconds = 300.0
    close_session_timeout: Seconds = 60.0
    eval_timeout: Seconds = 600.0
    tbench_output_root: Annotated[str, Field(min_length=1)] | None = None
    prm_turn_coef: float | None = None
    prm_max_total_tokens: Count = 16384
    prm_history_mode: Literal["head_tail", "last_k"] = "head_tail"
    terminal_agent_type: Literal["camel_agent"] = "camel_agent"
    model_type: Literal["slime-sglang"] = "slime-sglang"
    chat_template_type: Literal["hf"] = "hf"
    chat_template_kwargs: dict[str, Any] | None = None
    messages_delimiter_start: Literal["<|im_start|>"] = "<|im_start|>"
    messages_delimiter_end: Literal["<|im_end|>"] = "<|im_end|>"
    tool_call_parser: Literal["qwen25"] = "qwen25"

    def settings(self, environment: Mapping[str, str] = os.environ) -> Settings:
        """Return the settings of an episode."""
        usual: dict[str, Any] = {
            "max_turns": self.max_iteration,
            "max_malformed": self.max_parse_errors,
            "reset_seconds": self.ensure_image_timeout + self.reset_session_timeout,
            "close_seconds": self.close_session_timeout,
            "evaluate_seconds": self.eval_timeout,
            "judge_history": self.prm_history_mode,
            "judge_tokens": self.prm_max_total_tokens,
            "reward": "partial",
            "prompt_note": NO_THINK if self.non_think_mode and self.non_think_mode_source != "sglang" else None,
            "pool_url": environment.get(URL_VARIABLE) or None,
        }
        decided = {field: usual[field] for field, names in SAID.items() if names & self.model_fields_set}
        if self.sglang_request_timeout is not None:
            decided["reply_seconds"] = self.sglang_request_timeout
        return episode_settings(usual, decided, environment)

    def arguments(self, args: Arguments) -> Arguments:
        """Return the run's arguments with these values in them."""
        changes: dict[str, Any] = {}
        for name in ("rollout_max_context_len", "eval_max_context_len"):
            bounds = (getattr(args, name), self.max_total_tokens, self.sglang_max_context_len)
            changes[name] = min(bound for bound in bounds if bound)
        if self.tbench_output_root is not None:
            changes["run_dir"] = str(Path(self.tbench_output_root, RECORDS).absolute())
        if self.prm_turn_coef is not None:
            changes["prm_step_coef"] = self.prm_turn_coef
        keywords = {**args.apply_chat_template_kwargs, **(self.chat_template_kwargs or {})}
        if self.non_think_mode and self.non_think_mode_source != "prompt":
            keywords["enable_thinking"] = False
        return args.changed(**changes, apply_chat_template_kwargs=keywords)


async def generate(
    args: Arguments, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Play the episode of a sample; return its samples, or the sample itself, aborted.

    Raises:
        ConfigError: flags, variables, the custom config or the task are wrong.
    """
    config = TerminalConfig.of(args)
    settings = config.settings()
    sample.metadata.setdefault("task_id", task_id(sample))
    result = await generate_in(config.arguments(args), sample, sampling_params, evaluation, settings=settings)
    return reward_in_parts(result, parts_of(settings.reward))


def task_id(sample: Sample) -> str:
    """Return the task that a sample names: its ``task_path``, or the prompt itself.

    Raises:
        ConfigError: it names none.
    """
    prompt: Any = sample.prompt
    named = prompt.get("task_path") or prompt.get("task_name") if isinstance(prompt, dict) else prompt
    if not isinstance(named, str) or not named:
        raise ConfigError("the prompt names no task; give its row a task with a task_path, and --input-key task")
    return named


def parts_of(mode: str) -> dict[str, Part]:
    """Return the parts of a reward whose outcome is of a mode of ``AGENTRL_REWARD``."""

    def base(sample: Sample) -> float:
        return sample_outcome(sample) or 0.0

    def accuracy(sample: Sample) -> float:
        if mode == "raw":
            return base(sample)
        return (base(sample) + 1) / 2 if sample_outcome(sample) is not None else 0.0

    return {
        "accuracy": accuracy,
        "raw_score": accuracy,
        "base_score": base,
        "score": trained_score,
        "prm_turn_score": mean_step_score,
    }
