"""What ``--custom-config-path`` may say about terminal episodes, with the documented defaults.

The names are attributes of the run's arguments, which the file sets. A variable of `agentrl.rollout.settings` that is set wins
over a default here, and the file wins over both. Guarantee: a value that would change nothing is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from agentrl.rollout.custom_config import CustomConfig
from agentrl.rollout.settings import Settings
from slime.args import Arguments

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
RECORDS = "AgentRunner_Output"
SAID = {
    "max_turns": {"max_iteration"},
    "max_malformed": {"max_parse_errors"},
    "reset_seconds": {"ensure_image_timeout", "reset_session_timeout"},
    "reply_seconds": {"sglang_request_timeout"},
    "close_seconds": {"close_session_timeout"},
    "evaluate_seconds": {"eval_timeout"},
    "judge_history": {"prm_history_mode"},
    "judge_tokens": {"prm_max_total_tokens"},
}
"""Names of the file that decide about a setting, also against its variable."""
URL_VARIABLE = "ENV_SERVER_URL"
NO_THINK = "/no_think"


class TerminalConfig(CustomConfig):
    """Attributes of the run's arguments that terminal episodes read.

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
        read = Settings.from_env(environment)
        own = {
            "AGENTRL_MAX_TURNS": ("max_turns", self.max_iteration),
            "AGENTRL_MAX_MALFORMED": ("max_malformed", self.max_parse_errors),
            "AGENTRL_RESET_SECONDS": ("reset_seconds", self.ensure_image_timeout + self.reset_session_timeout),
            "AGENTRL_REPLY_SECONDS": ("reply_seconds", self.sglang_request_timeout or read.reply_seconds),
            "AGENTRL_CLOSE_SECONDS": ("close_seconds", self.close_session_timeout),
            "AGENTRL_EVALUATE_SECONDS": ("evaluate_seconds", self.eval_timeout),
            "AGENTRL_JUDGE_HISTORY": ("judge_history", self.prm_history_mode),
            "AGENTRL_JUDGE_TOKENS": ("judge_tokens", self.prm_max_total_tokens),
            "AGENTRL_REWARD": ("reward", "partial"),
            "AGENTRL_PROMPT_NOTE": ("prompt_note", self._note()),
            "AGENTRL_POOL_URL": ("pool_url", environment.get(URL_VARIABLE) or None),
        }
        changes = {
            field: value
            for variable, (field, value) in own.items()
            if not environment.get(variable) or SAID.get(field, set()) & self.model_fields_set
        }
        return replace(read, **changes)

    def _note(self) -> str | None:
        return NO_THINK if self.non_think_mode and self.non_think_mode_source != "sglang" else None

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
