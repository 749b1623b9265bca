"""Flags of the critic of ``--advantage-estimator ppo``, the values derived from them, and their checks."""

from __future__ import annotations

import json
from pathlib import Path

from slime.args import Arguments
from slime.arguments.option import Group, Option

CRITIC = Group(
    "critic of --advantage-estimator ppo",
    (
        Option("--lambd", "lambda of generalized advantage estimation; 1: no bias, 0: least variance", float, 1.0),
        Option("--value-clip", "clip range of a value's change per step in the value loss", float, 0.2),
        Option("--num-critic-only-steps", "train only the critic for the first N rollouts", int, 0),
        Option("--critic-lr", "learning rate of the critic; default: --lr", float),
        Option("--critic-lr-warmup-iters", "warm-up steps of the critic", int, 0),
        Option(
            "--critic-load",
            "initial critic: a critic's checkpoint root, or a Hugging Face folder for its backbone; default: "
            "the critic saved with the checkpoint that --load restores, else the policy's start weights",
        ),
        Option("--critic-save", "checkpoint root of the critic; default: the folder critic in --save"),
        Option("--critic-num-nodes", "critic nodes; default: --actor-num-nodes", int),
        Option("--critic-num-gpus-per-node", "critic GPUs on each node; default: --actor-num-gpus-per-node", int),
    ),
)


def derive_critic(args: Arguments, latest: str) -> None:
    """Set ``use_critic`` and fill missing critic flags; ``latest`` is the marker file of a checkpoint root."""
    args.use_critic = args.advantage_estimator == "ppo"
    if not args.use_critic:
        return
    for name in ("num_nodes", "num_gpus_per_node"):
        if getattr(args, f"critic_{name}") is None:
            setattr(args, f"critic_{name}", getattr(args, f"actor_{name}"))
    if args.save and not args.critic_save:
        args.critic_save = str(Path(args.save) / "critic")
    beside = _beside_policy(args, latest)
    if beside is not None and (not args.critic_load or _same(args.critic_load, beside.parent)):
        args.critic_load = str(beside)


def _same(first: str | Path, second: str | Path) -> bool:
    return Path(first).resolve() == Path(second).resolve()


def _restored(args: Arguments, latest: str) -> tuple[Path, int] | None:
    """Root and number of the policy checkpoint that --load names; None if it names no trained policy."""
    if args.resume or not args.load:
        return None
    load = Path(args.load)
    if (load / "meta.json").is_file():
        root, number = (
            load.resolve().parent,
            int(json.loads((load / "meta.json").read_text()).get("rollout_id", -1)) + 1,
        )
    elif (load / latest).is_file() and (text := (load / latest).read_text().strip()).isdigit():
        root, number = load, int(text)
    else:
        return None
    return (root, number) if number > 0 else None


def _beside_policy(args: Arguments, latest: str) -> Path | None:
    """Folder where the critic's checkpoint for the rollout of --load belongs; it may not exist."""
    restored = _restored(args, latest)
    if restored is None:
        return None
    root, number = restored
    own = Path(args.critic_save) if args.save and args.critic_save and _same(root, args.save) else root / "critic"
    return own / f"iter_{number:07d}"


def _check_folders(args: Arguments, latest: str) -> list[str]:
    """Check that the critic can start, and that its checkpoints overwrite no other critic's."""
    problems = []
    beside = _beside_policy(args, latest)
    if args.critic_load and args.resume:
        problems.append("--critic-load contradicts --resume, which continues from --critic-save; remove one of them")
    elif beside is not None and args.critic_load == str(beside) and not (beside / "meta.json").is_file():
        problems.append(
            f"--load {args.load}: the critic's checkpoint of the same rollout, {beside}, is missing; name another critic, or a Hugging "
            "Face folder for a new one, with --critic-load"
        )
    elif args.critic_load and not _holds_weights(Path(args.critic_load), latest):
        problems.append(
            f"--critic-load {args.critic_load}: neither a Hugging Face folder nor a checkpoint root of a critic"
        )
    if not args.critic_save:
        return problems
    if not args.save:
        problems.append("--critic-save needs --save FOLDER: policy and critic are saved together")
    elif _same(args.critic_save, args.save):
        problems.append(
            f"--critic-save {args.critic_save} is --save, where the policy's checkpoints go; name another folder"
        )
    elif not args.resume and (Path(args.critic_save) / latest).is_file():
        goes_on = beside is not None and _same(beside.parent, args.critic_save)
        if not goes_on:
            problems.append(
                f"--critic-save {args.critic_save} holds checkpoints of an earlier run; add --resume to continue it, or name another folder"
            )
        elif args.critic_load != str(beside):
            problems.append(
                f"--critic-load {args.critic_load} is not the critic in --critic-save that matches --load {args.load}; remove it"
            )
    return problems


def critic_gpus(args: Arguments) -> int:
    """GPUs of the critic; 0 without one."""
    return args.critic_num_nodes * args.critic_num_gpus_per_node if args.use_critic else 0


def check_critic(args: Arguments, latest: str) -> list[str]:
    """Return the problems, one line each."""
    if not args.use_critic:
        given = [option.flag for option in CRITIC.options if option.is_given(args)]
        return [f"{', '.join(given)} has no effect without --advantage-estimator ppo; remove it"] if given else []
    problems = []
    if args.use_lora:
        problems.append(
            "--use-lora cannot be combined with --advantage-estimator ppo, whose critic trains all weights; use grpo, or remove it"
        )
    if args.loss_type == "sft_loss" or not args.compute_advantages_and_returns:
        flag = "--loss-type sft_loss" if args.loss_type == "sft_loss" else "--disable-compute-advantages-and-returns"
        problems.append(f"{flag} does not support the critic of --advantage-estimator ppo; remove one of them")
    if args.share_gpu:
        problems.append("--share-gpu leaves no GPU for the critic of --advantage-estimator ppo; use grpo, or more GPUs")
    if args.critic_num_nodes > 1:
        problems.append("several nodes (--critic-num-nodes) are not supported yet; use --critic-num-nodes 1")
    if not 1 <= args.critic_num_gpus_per_node <= args.num_gpus_per_node:
        problems.append(
            f"--critic-num-gpus-per-node {args.critic_num_gpus_per_node}: give 1 to --num-gpus-per-node {args.num_gpus_per_node}"
        )
    if not 0.0 <= args.lambd <= 1.0:
        problems.append(f"--lambd {args.lambd}: give a number between 0 and 1")
    if not args.value_clip > 0.0:
        problems.append(f"--value-clip {args.value_clip}: give a number above 0, or inf for no clip")
    problems += _check_folders(args, latest)
    return problems


def _holds_weights(folder: Path, latest: str) -> bool:
    return any((folder / name).is_file() for name in ("config.json", "meta.json", latest))
