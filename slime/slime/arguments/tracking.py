"""Where numbers go, and what is dumped for debugging. JSON lines in the run folder are always written.

Guarantee: a flag that would have no effect is refused with the flag that it needs.
"""

from __future__ import annotations

from slime.args import Arguments
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


MEMORY_HISTORY = Group(
    "memory snapshots of the trainer (GPU)",
    (
        Option(
            "--record-memory-history",
            "record who allocates GPU memory in each rank of the policy, for https://pytorch.org/memory_viz",
            bool,
        ),
        Option("--memory-snapshot-dir", "folder of the snapshots", str, "."),
        Option("--memory-snapshot-path", "their file name, after rank0_ and so on", str, "snapshot.pickle"),
        Option(
            "--memory-snapshot-num-steps",
            "rollouts to train before the snapshot; default: 1; running out of memory writes it at once",
            int,
        ),
    ),
)


def check_memory_history(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    if not args.record_memory_history:
        given = [option.flag for option in MEMORY_HISTORY.options if option.is_given(args)]
        return [f"{', '.join(given)} has no effect without --record-memory-history"] if given else []
    if args.device == "cpu":
        return ["--record-memory-history needs a GPU: it records CUDA's allocator; remove it"]
    return []


# Attribute, its value when it is not given, and the flag that it needs.
_NEEDS = (
    ("tensorboard_dir", None, "use_tensorboard"),
    ("tb_project_name", None, "use_tensorboard"),
    ("tb_experiment_name", None, "use_tensorboard"),
    ("wandb_host", None, "use_wandb"),
    ("wandb_run_id", None, "use_wandb"),
    ("wandb_dir", None, "use_wandb"),
    ("wandb_team", None, "use_wandb"),
    ("load_debug_rollout_data_subsample", None, "load_debug_rollout_data"),
)


def check_tracking(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    problems = [
        f"--{name.replace('_', '-')} has no effect without --{needed.replace('_', '-')}"
        for name, off, needed in _NEEDS
        if getattr(args, name) != off and not getattr(args, needed)
    ]
    share = args.load_debug_rollout_data_subsample
    if share is not None and not 0.0 < share <= 1.0:
        problems.append(f"--load-debug-rollout-data-subsample {share}: give a share above 0 and up to 1")
    if args.skip_eval_before_train and args.eval_interval is None:
        problems.append("--skip-eval-before-train has no effect without --eval-interval N")
    if args.debug_rollout_only and args.debug_train_only:
        problems.append(
            "--debug-rollout-only leaves out the trainer and --debug-train-only the engines; remove one of them"
        )
    return problems
