"""The environment variables of the gate (`openclaw.gate`): which turns are probes, and the bounds of its decisions.

Probes, memory, errors and margin were chosen with ``python -m benchmarks.gate_opinions``; the other bounds are far from what healthy
runs of the tiny model show.
"""

from __future__ import annotations

from dataclasses import dataclass

from groundwork.variables import EnvironmentConfig, variable

GATE_PATH = "openclaw.gate.plugin.decide"
"""The value of ``--before-push-path`` that switches the gate on."""


@dataclass(frozen=True, kw_only=True)
class GateVariables(EnvironmentConfig):
    """One field per variable."""

    gate_share: float = variable(
        "OPENCLAW_GATE_SHARE",
        0.1,
        "share of the judged turns that are kept out of training, as probes of the gate; 0: none",
        minimum=0.0,
        maximum=0.5,
    )
    gate_probes: int = variable(
        "OPENCLAW_GATE_PROBES", 64, "most liked and most disliked replies that the gate scores per update", minimum=1
    )
    gate_tokens: int = variable(
        "OPENCLAW_GATE_TOKENS",
        65536,
        "most tokens of prompts and stored replies that the gate reads per update and version",
        minimum=16,
    )
    gate_reply_tokens: int = variable(
        "OPENCLAW_GATE_REPLY_TOKENS",
        128,
        "longest greedy reply of the gate in tokens; 0: no greedy replies to the users' prompts",
        minimum=0,
    )
    gate_replies: int = variable(
        "OPENCLAW_GATE_REPLIES", 8, "users' prompts that both versions answer greedily per update", minimum=0
    )
    gate_tasks: str | None = variable(
        "OPENCLAW_GATE_TASKS",
        None,
        "file of tasks with answers that can be verified, as JSON lines with messages and text, number or pattern; unset: none",
    )
    gate_task_tokens: int = variable(
        "OPENCLAW_GATE_TASK_TOKENS", 512, "longest greedy reply to a task of OPENCLAW_GATE_TASKS in tokens", minimum=1
    )
    gate_fewest: int = variable(
        "OPENCLAW_GATE_FEWEST",
        4,
        "fewest parts of sessions with liked and with disliked probes; with fewer the users' opinions do not decide",
        minimum=2,
    )
    gate_errors: float = variable(
        "OPENCLAW_GATE_ERRORS",
        1.25,
        "standard errors below zero from which a margin counts as a fall",
        minimum=0.0,
    )
    gate_margin: float = variable(
        "OPENCLAW_GATE_MARGIN", 0.0005, "nats per token below zero from which a margin counts as a fall", minimum=0.0
    )
    gate_owner_margin: float = variable(
        "OPENCLAW_GATE_OWNER_MARGIN",
        0.02,
        "nats per token below zero from which the margin of one of several owners counts as a fall, if chance does not explain it",
        minimum=0.0,
    )
    gate_memory: int = variable(
        "OPENCLAW_GATE_MEMORY",
        48,
        "accepted versions that an update is compared with, so that many small falls do not add up",
        minimum=1,
    )
    gate_drift: float = variable(
        "OPENCLAW_GATE_DRIFT", 1.0, "largest mean change of a probe's score in nats per token", above=0.0
    )
    gate_jump: float = variable(
        "OPENCLAW_GATE_JUMP", 3.0, "largest fall of the score of a liked probe in nats per token", above=0.0
    )
    gate_degenerate: float = variable(
        "OPENCLAW_GATE_DEGENERATE",
        0.25,
        "largest rise of the share of degenerate greedy replies: cut off, repeating, or with broken tool calls",
        minimum=0.0,
        maximum=1.0,
    )
    gate_canary: float | None = variable(
        "GATE_CANARY",
        None,
        "share of conversations that one engine serves with an update before the others get it, see gate.md; 0: none, the gate only "
        "asks that engine; unset: all engines get an update at once",
        minimum=0.0,
        maximum=0.5,
    )
    canary_seconds: float = variable(
        "OPENCLAW_CANARY_SECONDS", 30.0, "longest time in which the first engine serves conversations alone", above=0.0
    )
    canary_turns: int = variable(
        "OPENCLAW_CANARY_TURNS",
        20,
        "replies of the first engine that are enough to decide, before the time is up",
        minimum=1,
    )
    canary_difference: float = variable(
        "OPENCLAW_CANARY_DIFFERENCE",
        0.1,
        "largest mean difference between the log probabilities of the first engine and the trainer, in nats per token",
        above=0.0,
    )
    canary_slowdown: float = variable(
        "OPENCLAW_CANARY_SLOWDOWN",
        3.0,
        "how many times as long per token the first engine's replies may take",
        above=1.0,
    )
    gate_offer: int = variable(
        "OPENCLAW_GATE_OFFER",
        3,
        "refusals of a series by the users' opinions after which openclaw-rl accept is offered",
        minimum=1,
    )
