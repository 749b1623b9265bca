"""The variables of the agent loop.

Guarantee: an invalid value is a `ConfigError` that names the variable and says what to type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from groundwork.variables import EnvironmentConfig, variable


@dataclass(frozen=True, kw_only=True)
class Settings(EnvironmentConfig):
    """Values of the variables; see their help."""

    pool_url: str | None = variable("AGENTRL_POOL_URL", None, "URL of the pool or router that lends environments")
    key: str | None = variable("AGENTRL_KEY", None, "key of the pool or router", secret=True)
    max_turns: int = variable("AGENTRL_MAX_TURNS", 30, "most replies of an episode", minimum=1, aliases=("MAX_TURNS",))
    max_reply_tokens: int | None = variable(
        "AGENTRL_MAX_REPLY_TOKENS", None, "most tokens of one reply; default: --rollout-max-response-len", minimum=1
    )
    max_sampled_tokens: int = variable(
        "AGENTRL_MAX_SAMPLED_TOKENS", 32768, "most tokens that the policy samples in an episode", minimum=1
    )
    episode_seconds: float = variable(
        "AGENTRL_EPISODE_SECONDS", 1800.0, "seconds of play after which no further turn begins", above=0.0
    )
    step_seconds: float = variable(
        "AGENTRL_STEP_SECONDS",
        120.0,
        "most seconds of a step unless the environment says how long one may take",
        above=0.0,
    )
    reset_seconds: float | None = variable(
        "AGENTRL_RESET_SECONDS", None, "most seconds of a reset; default: AGENTRL_STEP_SECONDS", above=0.0
    )
    reply_seconds: float | None = variable(
        "AGENTRL_REPLY_SECONDS",
        None,
        "seconds of one reply after which the engine counts as lost; default: no bound",
        above=0.0,
        aliases=("SGLANG_REQUEST_TIMEOUT",),
    )
    close_seconds: float = variable(
        "AGENTRL_CLOSE_SECONDS",
        60.0,
        "most seconds to wait until the pool takes a lease back; after that it expires by itself",
        above=0.0,
    )
    evaluate_seconds: float = variable("AGENTRL_EVALUATE_SECONDS", 600.0, "most seconds of an evaluation", above=0.0)
    wait_seconds: float = variable("AGENTRL_WAIT_SECONDS", 600.0, "most seconds to wait for a lease", above=0.0)
    ttl_seconds: float = variable(
        "AGENTRL_TTL_SECONDS", 60.0, "seconds for which a pool keeps a lease of a process that died", above=0.0
    )
    park_seconds: float = variable(
        "AGENTRL_PARK_SECONDS", 600.0, "most seconds that an aborted episode keeps its lease", above=0.0
    )
    tries: int = variable(
        "AGENTRL_TRIES", 3, "leases to try for an episode before its group is sampled again", minimum=1
    )
    context: Literal["none", "drop_middle", "elide"] = variable(
        "AGENTRL_CONTEXT", "none", "what to leave out of a conversation that has become too long"
    )
    keep_observations: int = variable(
        "AGENTRL_KEEP_OBSERVATIONS", 3, "newest observations that AGENTRL_CONTEXT=elide leaves whole", minimum=0
    )
    keep_pictures: int = variable(
        "AGENTRL_KEEP_PICTURES", 3, "newest pictures of a conversation that the policy sees again", minimum=1
    )
    reward: Literal["binary", "partial", "raw"] = variable(
        "AGENTRL_REWARD",
        "binary",
        "outcome of a score f: 1 if f is at least 1, else -1; or 2f - 1 for f from 0 to 1; or f itself",
    )
    max_malformed: int | None = variable(
        "AGENTRL_MAX_MALFORMED", None, "replies of an episode that could not be read, after which it ends", minimum=1
    )
    judge_history: Literal["last_k", "head_tail"] = variable(
        "AGENTRL_JUDGE_HISTORY", "last_k", "what the judge of a step sees of the steps before: the newest, or both ends"
    )
    judge_pictures: int = variable(
        "AGENTRL_JUDGE_PICTURES",
        0,
        "newest pictures that the judge of a step sees, that of the next state among them",
        minimum=0,
    )
    judge_steps: int = variable(
        "AGENTRL_JUDGE_STEPS", 3, "newest steps that the judge of a step sees, with last_k", minimum=0
    )
    judge_goal: int = variable("AGENTRL_JUDGE_GOAL", 10_000, "most characters of the goal that it sees", minimum=100)
    judge_output: int = variable(
        "AGENTRL_JUDGE_OUTPUT", 10_000, "most characters of what followed the step that it sees", minimum=100
    )
    judge_past: int = variable(
        "AGENTRL_JUDGE_PAST", 2_000, "most characters of a message before the step that it sees", minimum=100
    )
    judge_last: bool = variable("AGENTRL_JUDGE_LAST", True, "judge the step that ends an episode, too")
    context_oldest: float = variable(
        "AGENTRL_CONTEXT_OLDEST",
        0.3,
        "of the exchanges that AGENTRL_CONTEXT=drop_middle keeps, the share of the oldest",
        minimum=0.0,
        maximum=1.0,
    )
    judge_tokens: int | None = variable(
        "AGENTRL_JUDGE_TOKENS",
        None,
        "most tokens of the question about a step and of its answer; a longer question is shortened; default: no bound",
        minimum=1,
    )
    prompt_note: str | None = variable(
        "AGENTRL_PROMPT_NOTE", None, "words after the first user message of an episode, such as /no_think"
    )
    step_gamma: float = variable(
        "AGENTRL_STEP_GAMMA", 1.0, "discount of the outcome per step before the last", minimum=0.0, maximum=1.0
    )
    group_rubric: str | None = variable(
        "AGENTRL_GROUP_RUBRIC", None, "what makes an episode good, for a judge of groups; default: reaching the goal"
    )
    group_share: float = variable(
        "AGENTRL_GROUP_SHARE",
        1.0,
        "share of the group judge's score in an episode's reward; the rest is what the reward is without it",
        above=0.0,
        maximum=1.0,
    )
