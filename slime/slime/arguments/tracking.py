"""Where numbers go. JSON lines in the run folder are always written."""

from __future__ import annotations

from slime.arguments.option import Group, Option

TRACKING = Group(
    "tracking",
    (
        Option("--use-tensorboard", "write TensorBoard events", bool),
        Option("--tensorboard-dir", "their folder; default: <run-dir>/tensorboard"),
        Option("--tb-project-name", "folder below it"),
        Option("--tb-experiment-name", "folder below that"),
        Option("--use-wandb", "log to Weights & Biases; the key comes from WANDB_API_KEY or WANDB_KEY", bool),
        Option("--wandb-key", "key; every user of the machine can see it here, WANDB_API_KEY is safer", nargs="?"),
        Option("--wandb-host", "URL of the server; default: the library's"),
        Option("--wandb-mode", "online, or files only", str, "online", ("online", "offline", "disabled")),
        Option("--wandb-project", "project, as launch scripts name it", str, "openclaw_rl"),
        Option("--wandb-group", "group and stem of the run's name"),
        Option("--wandb-run-id", "id of the run; one that exists is continued"),
        Option("--disable-wandb-random-suffix", "the run's name is the group", None, off="wandb_random_suffix"),
        Option("--wandb-team", "entity"),
        Option("--wandb-dir", "folder of its files; default: the run folder"),
        Option("--wandb-always-use-train-step", "optimizer steps as the axis of rollout metrics", bool),
        Option("--log-multi-turn", "response lengths with and without observations, and rounds: multi_turn/*", bool),
        Option("--log-passrate", "passrate/pass@k over the groups; a reward of 1 or more passes", bool),
        Option("--log-reward-category", "key of a reward dict; share of each of its values: error_cat/*"),
        Option("--log-correct-samples", "lengths of samples whose reward is above 0: rollout/correct_*", bool),
    ),
)

DEBUG = Group(
    "debugging",
    (
        Option("--dry-run", "print the placement and check the flags, start nothing", bool),
        Option("--debug-rollout-only", "no trainer", bool),
        Option("--debug-train-only", "no engines and no evaluation; needs --load-debug-rollout-data", bool),
        Option("--save-debug-rollout-data", "dump each rollout; a path with {rollout_id}"),
        Option("--save-debug-train-data", "dump what each rank trains on; a path with {rollout_id} and {rank}"),
        Option("--load-debug-rollout-data", "replay dumped rollouts; a path with {rollout_id}"),
        Option("--load-debug-rollout-data-subsample", "share of their groups to use, half from each end", float),
        Option("--use-pytorch-profiler", "traces of the trainer in <run-dir>/profile", bool),
        Option("--profile-step-start", "first rollout to trace", int, 10),
        Option("--profile-step-end", "rollout before which tracing ends", int, 12),
        Option(
            "--profile-target",
            "what to trace",
            str,
            "train_overall",
            ("train_overall", "train_actor", "train_log_probs"),
        ),
        Option("--dump-details", "folder: sets the two --save-debug paths below it"),
    ),
)
