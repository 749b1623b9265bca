"""What ``--custom-config-path`` may say about terminal episodes, with the documented defaults.

The names are attributes of the run's arguments, which the file sets. A variable of `agentrl.rollout.settings` that is set wins
over a default here, and the file wins over both. Guarantee: a value that would change nothing is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.rollout.settings import Settings
from slime.args import Arguments
from slime.exceptions import ConfigurationError

Seconds = Annotated[float, Field(gt=0)]
URL_VARIABLE = "ENV_SERVER_URL"
NO_THINK = "/no_think"


class TerminalConfig(BaseModel):
    """Attributes of the run's arguments that terminal episodes read.

    Attributes:
        max_iteration: most replies of an episode.
        max_parse_errors: replies with unreadable calls after which it ends.
        max_total_tokens: of prompt and reply, besides ``--rollout-max-context-len``; the smaller one counts.
        non_think_mode: whether the policy shall not think; by a word in the prompt, by the chat template, or both.
        reset_session_timeout: seconds that a start may take.
        eval_timeout: seconds that the verifier may take.
        prm_turn_coef: weight of step scores; None: ``--prm-step-coef``.
        prm_history_mode: what the judge sees of earlier steps.
        terminal_agent_type: the loop; there is one.
        model_type: of the engine; there is one.
        chat_template_type: whose template renders prompts; there is one.
        chat_template_kwargs: for the template.
        tool_call_parser: format of calls; the template decides, and qwen25 stands for it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")
    max_iteration: Annotated[int, Field(ge=1)] = 10
    max_parse_errors: Annotated[int, Field(ge=1)] = 3
    max_total_tokens: Annotated[int, Field(ge=1)] = 32768
    non_think_mode: bool = True
    non_think_mode_source: Literal["prompt", "sglang", "both"] = "prompt"
    reset_session_timeout: Seconds = 300.0
    eval_timeout: Seconds = 600.0
    prm_turn_coef: float | None = None
    prm_history_mode: Literal["head_tail", "last_k"] = "head_tail"
    terminal_agent_type: Literal["camel_agent"] = "camel_agent"
    model_type: Literal["slime-sglang"] = "slime-sglang"
    chat_template_type: Literal["hf"] = "hf"
    chat_template_kwargs: dict[str, Any] | None = None
    tool_call_parser: Literal["qwen25"] = "qwen25"

    @classmethod
    def of(cls, args: Arguments) -> TerminalConfig:
        """Return what the run's arguments say.

        Raises:
            ConfigurationError: a value is unusable.
        """
        given = vars(args)
        try:
            return cls.model_validate({name: given[name] for name in cls.model_fields if name in given})
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise ConfigurationError(f"--custom-config-path {args.custom_config_path}: {problems}") from None

    def settings(self, environment: Mapping[str, str] = os.environ) -> Settings:
        """Return the settings of an episode."""
        read = Settings.from_env(environment)
        own = {
            "AGENTRL_MAX_TURNS": ("max_turns", self.max_iteration),
            "AGENTRL_MAX_MALFORMED": ("max_malformed", self.max_parse_errors),
            "AGENTRL_STEP_SECONDS": ("step_seconds", self.reset_session_timeout),
            "AGENTRL_EVALUATE_SECONDS": ("evaluate_seconds", self.eval_timeout),
            "AGENTRL_JUDGE_HISTORY": ("judge_history", self.prm_history_mode),
            "AGENTRL_REWARD": ("reward", "partial"),
            "AGENTRL_PROMPT_NOTE": ("prompt_note", self._note()),
            "AGENTRL_POOL_URL": ("pool_url", environment.get(URL_VARIABLE) or None),
        }
        said = {
            "max_turns": "max_iteration",
            "max_malformed": "max_parse_errors",
            "step_seconds": "reset_session_timeout",
            "evaluate_seconds": "eval_timeout",
            "judge_history": "prm_history_mode",
        }
        changes = {
            field: value
            for variable, (field, value) in own.items()
            if not environment.get(variable) or said.get(field) in self.model_fields_set
        }
        return replace(read, **changes)

    def _note(self) -> str | None:
        return NO_THINK if self.non_think_mode and self.non_think_mode_source != "sglang" else None

    def arguments(self, args: Arguments) -> Arguments:
        """Return the run's arguments with these values in them."""
        changes: dict[str, Any] = {}
        for name in ("rollout_max_context_len", "eval_max_context_len"):
            context = getattr(args, name)
            changes[name] = min(context or self.max_total_tokens, self.max_total_tokens)
        if self.prm_turn_coef is not None:
            changes["prm_step_coef"] = self.prm_turn_coef
        keywords = {**args.apply_chat_template_kwargs, **(self.chat_template_kwargs or {})}
        if self.non_think_mode and self.non_think_mode_source != "prompt":
            keywords["enable_thinking"] = False
        return args.changed(**changes, apply_chat_template_kwargs=keywords)
