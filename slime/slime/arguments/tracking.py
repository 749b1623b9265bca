"""Flags of metric tracking and debug dumps. The run folder always gets JSON lines.

Guarantee: a flag that would have no effect is refused with the flag that it needs.
"""

from __future__ import annotations

import importlib.util

from slime.args import Arguments
from slime.arguments.option import Group, Option, flag_of

NO_TRACKIO = "--use-trackio needs a package that this environment lacks; type: pip install trackio"
TRACKING = Group(
    "tracking",
    (
        Option("--use-tensorboard", "write TensorBoard events", bool),
        Option("--tensorboard-dir", "TensorBoard folder; default: <run-dir>/tensorboard"),
        Option("--tb-project-name", "folder below --tensorboard-dir"),
        Option("--tb-experiment-name", "folder below --tb-project-name"),
        Option("--use-wandb", "log to Weights & Biases; the key comes from WANDB_API_KEY or WANDB_KEY", bool),
        Option("--wandb-key", "API key; visible to every user of the machine, WANDB_API_KEY is safer", nargs="?"),
        Option("--wandb-host", "URL of the server; default: the library's"),
        Option(
            "--wandb-mode",
            "online, offline (files only), or disabled",
            str,
            "online",
            ("online", "offline", "disabled"),
        ),
        Option("--wandb-project", "project, named as in launch scripts", str, "openclaw_rl"),
        Option("--wandb-group", "group, and prefix of the run's name"),
        Option("--wandb-run-id", "id of the run; an existing run is continued"),
        Option("--disable-wandb-random-suffix", "use the group as the run's name", None, off="wandb_random_suffix"),
        Option("--wandb-team", "entity"),
        Option("--wandb-dir", "folder of wandb files; default: the run folder"),
        Option("--wandb-always-use-train-step", "use optimizer steps as the axis of rollout metrics", bool),
        Option("--use-trackio", "log to Trackio, on this machine unless its own variables name a server", bool),
        Option("--trackio-project", "project; default: openclaw_rl"),
        Option(
            "--log-multi-turn", "log response lengths with and without observations, and rounds, as multi_turn/*", bool
        ),
        Option("--log-passrate", "log passrate/pass@k over the groups; a reward of 1 or more passes", bool),
        Option("--log-reward-category", "key of a reward dict; logs the share of each of its values as error_cat/*"),
        Option("--log-correct-samples", "log lengths of samples whose reward is above 0, as rollout/correct_*", bool),
    ),
)

DEBUG = Group(
    "debugging",
    (
        Option("--dry-run", "print the placement and check the flags, start nothing", bool),
        Option("--debug-rollout-only", "no trainer", bool),
        Option("--debug-train-only", "no engines and no evaluation; needs --load-debug-rollout-data", bool),
        Option("--save-debug-rollout-data", "dump each rollout to this path, which contains {rollout_id}"),
        Option(
            "--save-debug-train-data",
            "dump each rank's training data to this path, which contains {rollout_id} and {rank}",
        ),
        Option("--load-debug-rollout-data", "replay dumped rollouts from this path, which contains {rollout_id}"),
        Option("--load-debug-rollout-data-subsample", "share of the dumped groups to use, half from each end", float),
        Option("--use-pytorch-profiler", "write traces of the trainer to <run-dir>/profile", bool),
        Option("--profile-step-start", "first rollout to trace", int, 10),
        Option("--profile-step-end", "first rollout that is no longer traced", int, 12),
        Option(
            "--profile-target",
            "what to trace",
            str,
            "train_overall",
            ("train_overall", "train_actor", "train_log_probs"),
        ),
        Option("--dump-details", "folder below which both --save-debug paths are set"),
    ),
)


MEMORY_HISTORY = Group(
    "memory snapshots of the trainer (GPU)",
    (
        Option(
            "--record-memory-history",
            "record GPU memory allocations of each policy rank, for https://pytorch.org/memory_viz",
            bool,
        ),
        Option("--memory-snapshot-dir", "folder of the snapshots", str, "."),
        Option(
            "--memory-snapshot-path",
            "file name of the snapshots, prefixed with rank0_ and so on",
            str,
            "snapshot.pickle",
        ),
        Option(
            "--memory-snapshot-num-steps",
            "rollouts to train before the snapshot; default: 1; out of memory writes it at once",
            int,
        ),
    ),
)


def check_memory_history(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    if not args.record_memory_history:
        given = [option.flag for option in MEMORY_HISTORY.options if option.is_given(args)]
        return [f"{', '.join(given)} has no effect without --record-memory-history; add it"] if given else []
    if args.device == "cpu":
        return ["--record-memory-history needs a GPU: it records CUDA's allocator; remove it"]
    return []


# Attribute, default, and the attribute of the flag that it needs.
_NEEDS = (
    ("tensorboard_dir", None, "use_tensorboard"),
    ("tb_project_name", None, "use_tensorboard"),
    ("tb_experiment_name", None, "use_tensorboard"),
    ("trackio_project", None, "use_trackio"),
    ("wandb_host", None, "use_wandb"),
    ("wandb_run_id", None, "use_wandb"),
    ("wandb_dir", None, "use_wandb"),
    ("wandb_team", None, "use_wandb"),
    ("load_debug_rollout_data_subsample", None, "load_debug_rollout_data"),
)


def check_tracking(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    problems = [NO_TRACKIO] if args.use_trackio and importlib.util.find_spec("trackio") is None else []
    problems += [
        f"{flag_of(name)} has no effect without {flag_of(needed)}"
        for name, off, needed in _NEEDS
        if getattr(args, name) != off and not getattr(args, needed)
    ]
    share = args.load_debug_rollout_data_subsample
    if share is not None and not 0.0 < share <= 1.0:
        problems.append(f"--load-debug-rollout-data-subsample {share}: give a share above 0 and up to 1")
    if args.skip_eval_before_train and args.eval_interval is None:
        problems.append("--skip-eval-before-train has no effect without --eval-interval N; add it")
    if args.debug_rollout_only and args.debug_train_only:
        problems.append(
            "--debug-rollout-only runs no trainer and --debug-train-only runs no engines; remove one of them"
        )
    return problems
