"""What each built-in method adds to the command line: its plugin and the terms of its loss.

A method folder of somebody else is named by its path, ``--method openclaw-mymethod``; its launch script brings the flags,
``--rollout-function-path`` among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openclaw.config.variable import Value
from openclaw.exceptions import ConfigError

PPO = ("--eps-clip-high", "0.28")


@dataclass(frozen=True)
class MethodLines:
    """One method on the command line.

    Attributes:
        folder: relative to the repository.
        rollout_function: plugin path of the rollout function; None where the script names it.
        votes: default number of judge votes.
        flags: estimator and loss; ``{w_opd}`` is filled with ``OPENCLAW_COMBINE_W_OPD``.
        variables: defaults of launch variables; those of a profile win.
        live_method: class that says which judges run; None in a folder of somebody else.
    """

    folder: str
    rollout_function: str | None
    votes: int
    flags: tuple[str, ...]
    variables: Mapping[str, Value] = field(default_factory=dict)
    live_method: str | None = None


METHODS: dict[str, MethodLines] = {
    "rl": MethodLines(
        "openclaw-rl",
        "openclaw_rollout.generate_rollout_openclaw",
        3,
        ("--advantage-estimator", "grpo", "--disable-rewards-normalization", *PPO),
        live_method="BinaryRL",
    ),
    "opd": MethodLines(
        "openclaw-opd",
        "openclaw_opd_rollout.generate_rollout_openclaw_opd",
        1,
        ("--advantage-estimator", "on_policy_distillation", *PPO),
        live_method="OnPolicyDistillation",
    ),
    "opd_topk": MethodLines(
        "openclaw-opd",
        "openclaw_opd_rollout.generate_rollout_openclaw_opd",
        3,
        (
            *("--advantage-estimator", "on_policy_distillation", "--disable-compute-advantages-and-returns"),
            *("--distill-topk", "50", "--loss-type", "custom_loss"),
            *("--custom-loss-function-path", "topk_distillation_loss.topk_distillation_loss_function"),
        ),
        {"LEARNING_RATE": 1e-6, "BATCH_SIZE": 4},
        live_method="OnPolicyDistillation",
    ),
    "combine": MethodLines(
        "openclaw-combine",
        "openclaw_combine_rollout.generate_rollout_openclaw_combine",
        1,
        (
            *("--advantage-estimator", "grpo", "--disable-rewards-normalization"),
            *("--use-opd", "--opd-kl-coef", "{w_opd}", *PPO),
        ),
        live_method="Combine",
    ),
}


def find_method(name: str, repository: Path) -> MethodLines:
    """Return a built-in method by its name, or the folder of another one by its path.

    Raises:
        ConfigError: when there is neither.
    """
    if name in METHODS:
        return METHODS[name]
    for folder in (Path(name), repository / name):
        if folder.is_dir():
            return MethodLines(str(folder.resolve()), None, 1, ())
    raise ConfigError(f"--method {name}: use {', '.join(sorted(METHODS))}, or the path of a method folder")
