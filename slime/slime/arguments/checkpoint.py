"""Folders of weights and checkpoints: the flags, whether the folders are there, and which of them go together."""

from __future__ import annotations

from pathlib import Path

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
        Option("--save-keep", "checkpoints kept in --save, the newest ones; 0 keeps all", int, 3),
        Option("--save-hf", "also write a Hugging Face folder; a path with {rollout_id}"),
        Option("--resume", "go on from the newest checkpoint in --save", bool),
        Option(
            "--max-trainer-restarts",
            "how often a run whose trainer rank or rollout manager died goes on by itself from the last checkpoint in --save, "
            "counted anew after each checkpoint; 0 ends the run",
            int,
            3,
        ),
        Option("--start-rollout-id", "first rollout id; default: from the checkpoint, else 0", int),
    ),
)


LATEST = "latest_checkpointed_iteration.txt"


def check_paths(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    problems = []
    if not args.hf_checkpoint:
        problems.append("no model: add --hf-checkpoint FOLDER")
    for flag in ("hf_checkpoint", "ref_load", "prm_model_path"):
        path = getattr(args, flag)
        if path and not Path(path).is_dir():
            problems.append(f"--{flag.replace('_', '-')} {path}: no such folder")
    if args.load and not args.resume and not _loadable(args):
        problems.append(
            f"--load {args.load}: no such folder with a checkpoint or a Hugging Face model; leave it out to start from "
            "--ref-load, or name --save's folder to go on there as soon as it has one"
        )
    if args.save_interval is not None and not args.save:
        problems.append("--save-interval needs --save FOLDER")
    if args.resume and not args.save:
        problems.append("--resume needs --save FOLDER, where the run to go on with wrote its checkpoints")
    if args.resume and args.save and not _goes_on(args):
        problems.append(
            f"--load {args.load} contradicts --resume, which goes on from --save {args.save}; remove one of them"
        )
    if args.resume and args.start_rollout_id is not None:
        problems.append(
            "--start-rollout-id contradicts --resume, which goes on after its checkpoint; remove one of them"
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
    """Return a line when a run that starts anew would write over the checkpoints of another one."""
    if args.resume or not args.save or _goes_on(args) or not Path(args.save, LATEST).is_file():
        return []
    return [f"--save {args.save} holds checkpoints of an earlier run; add --resume to go on, or name another folder"]


def _loadable(args: Arguments) -> bool:
    """Whether --load names a checkpoint, a model, or the folder of --save, where the first run finds nothing yet."""
    folder = Path(required("--load", args.load))
    there = any((folder / name).is_file() for name in (LATEST, "meta.json", "config.json"))
    return there or _goes_on(args)


def _goes_on(args: Arguments) -> bool:
    """Whether --load and --save are one folder, however it is written."""
    if not args.load or not args.save:
        return False
    return Path(args.load).resolve() == Path(args.save).resolve()
