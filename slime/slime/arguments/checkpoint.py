"""Flags of weight and checkpoint folders, with checks that the folders exist and the flags agree."""

from __future__ import annotations

from pathlib import Path

from groundwork.command_line import nearest_path
from slime.args import Arguments, required
from slime.arguments.option import Group, Option

CHECKPOINT = Group(
    "checkpoints",
    (
        Option("--hf-checkpoint", "Hugging Face folder: tokenizer, config, engine model, start weights"),
        Option(
            "--ref-load", "weights of the reference model, and start weights without --load; default: --hf-checkpoint"
        ),
        Option(
            "--load",
            "checkpoint root to start from (weights, optimizer, counters)",
            aliases=("--resume-from-checkpoint",),
        ),
        Option("--save", "checkpoint root"),
        Option("--save-interval", "rollouts between checkpoints", int),
        Option(
            "--save-keep",
            "newest checkpoints to keep in --save, those with the same weights counted once; 0 keeps all",
            int,
            3,
        ),
        Option("--save-hf", "also write a Hugging Face folder at this path, which contains {rollout_id}"),
        Option("--resume", "continue from the newest checkpoint in --save", bool),
        Option(
            "--max-trainer-restarts",
            "automatic restarts from the last checkpoint in --save after a trainer rank or the rollout manager died; "
            "the count resets with each checkpoint; 0 ends the run instead",
            int,
            3,
        ),
        Option("--start-rollout-id", "first rollout id; default: from the checkpoint, else 0", int),
    ),
)


LATEST = "latest_checkpointed_iteration.txt"
CONTINUE_VARIABLE = "SLIME_CONTINUE_WITH"
"""The variable in which a launcher gives the command that continues the run it starts."""


def check_paths(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    problems = []
    if not args.hf_checkpoint:
        problems.append("no model: add --hf-checkpoint FOLDER")
    missing: dict[str, str] = {}
    for flag in ("hf_checkpoint", "ref_load", "prm_model_path"):  # the last two default to the first
        path = getattr(args, flag)
        if path and not Path(path).is_dir():
            missing.setdefault(path, f"--{flag.replace('_', '-')} {path}: no such folder{nearest_path(path)}")
    problems += missing.values()
    if args.load and not args.resume and not _loadable(args):
        problems.append(
            f"--load {args.load}: no such folder with a checkpoint or a Hugging Face model; remove it to start from "
            "--ref-load, or name the folder of --save to continue there once it has one"
        )
    if args.save_interval is not None and not args.save:
        problems.append("--save-interval needs --save FOLDER")
    if args.resume and not args.save:
        problems.append("--resume needs --save FOLDER, the checkpoint folder of the run to continue")
    if args.resume and args.save and not _goes_on(args):
        problems.append(
            f"--load {args.load} contradicts --resume, which continues from --save {args.save}; remove one of them"
        )
    if args.resume and args.start_rollout_id is not None:
        problems.append(
            "--start-rollout-id contradicts --resume, which continues after its checkpoint; remove one of them"
        )
    if args.resume and args.save and not Path(args.save, LATEST).is_file():
        problems.append(f"--resume: {args.save} holds no checkpoint ({LATEST} is missing); start without --resume")
    problems += taken_folder(args)
    if (
        args.debug_train_only
        and not args.load_debug_rollout_data
        and args.rollout_function_path.startswith(("slime.rollout.sglang", "slime.rollout.fully_async"))
    ):
        problems.append(
            "--debug-train-only needs --load-debug-rollout-data PATH, or a rollout function that needs no engine"
        )
    return problems


def taken_folder(args: Arguments) -> list[str]:
    """Return a line if a new run would overwrite the checkpoints of another one."""
    if args.resume or not args.save or _goes_on(args) or not Path(args.save, LATEST).is_file():
        return []
    return [
        f"--save {args.save} holds checkpoints of an earlier run; add --resume to continue it, or name another folder"
    ]


def _loadable(args: Arguments) -> bool:
    """Whether --load names a checkpoint, a model, or the folder of --save, which a first run may find empty."""
    folder = Path(required("--load", args.load))
    there = any((folder / name).is_file() for name in (LATEST, "meta.json", "config.json"))
    return there or _goes_on(args)


def _goes_on(args: Arguments) -> bool:
    """Whether --load and --save name the same folder, however spelled."""
    if not args.load or not args.save:
        return False
    return Path(args.load).resolve() == Path(args.save).resolve()
