"""Where numbers go. JSON lines in the run folder are always written."""

from __future__ import annotations

from slime.arguments.option import Group, Option

TRACKING = Group(
    "tracking",
    (
        Option("--use-tensorboard", "write TensorBoard events to <run-dir>/tensorboard", bool),
        Option("--use-wandb", "log to Weights & Biases; the key comes from WANDB_API_KEY or WANDB_KEY", bool),
        Option("--wandb-mode", "online, or files only", str, "online", ("online", "offline", "disabled")),
        Option("--wandb-project", "project", str, "openclaw_rl"),
        Option("--wandb-group", "group and stem of the run's name"),
        Option("--wandb-team", "entity"),
        Option("--wandb-dir", "folder of its files; default: the run folder"),
        Option("--wandb-always-use-train-step", "optimizer steps as the axis of rollout metrics", bool),
    ),
)

DEBUG = Group(
    "debugging",
    (
        Option("--debug-rollout-only", "no trainer", bool),
        Option("--debug-train-only", "no engines; needs --load-debug-rollout-data", bool),
        Option("--save-debug-rollout-data", "dump each rollout; a path with {rollout_id}"),
        Option("--load-debug-rollout-data", "replay dumped rollouts; a path with {rollout_id}"),
    ),
)
