"""Flags of advantages, losses and the critic, and of what holds an update back: the gate and the fuses; with their checks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from slime.args import Arguments
from slime.arguments.option import Group, Option, flag_of
from slime.arguments.plugins import asked_values
from slime.utils.fuses import AFTER_THE_STEP, OF_THE_LOSS, read_fuse

ESTIMATORS = (
    "grpo",
    "gspo",
    "cispo",
    "ppo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "step_wise",
    "on_policy_distillation",
)

ALGORITHM = Group(
    "algorithm",
    (
        Option("--advantage-estimator", "estimator of each token's advantage", str, "grpo", ESTIMATORS),
        Option("--custom-advantage-function-path", "function that replaces the estimator: sets advantages and returns"),
        Option("--normalize-advantages", "whiten advantages over the unmasked tokens of all ranks", bool),
        Option("--gamma", "discount per token of reinforce_plus_plus and ppo", float, 1.0),
        Option(
            "--kl-coef",
            "coefficient of the KL to the reference in each token's reward; loads the reference",
            float,
            0.0,
        ),
        Option(
            "--dynamic-history",
            "samples of one trajectory share its reward; rewards are normalised over trajectories",
            bool,
            aliases=("--dynamic_history",),
        ),
        Option(
            "--disable-rewards-normalization", "use the raw reward as the advantage", None, off="rewards_normalization"
        ),
        Option(
            "--disable-grpo-std-normalization",
            "centre rewards without scaling them",
            None,
            off="grpo_std_normalization",
        ),
        Option(
            "--disable-compute-advantages-and-returns",
            "skip the logprob passes and the advantages",
            None,
            off="compute_advantages_and_returns",
        ),
        Option("--reward-key", "key to read from a reward that is a dict"),
        Option(
            "--use-opd", "add coef * (teacher - old) logprobs to the advantages of samples that have a teacher", bool
        ),
        Option("--opd-kl-coef", "coefficient of --use-opd", float, 1.0),
        Option("--opd-clip", "largest absolute value of the teacher's term of a token, before its coefficient", float),
        Option(
            "--opd-teacher",
            "teacher that scores hinted replies: the policy itself or the judge's model",
            str,
            "policy",
            ("policy", "prm"),
        ),
        Option(
            "--distill-topk",
            "teacher probabilities per position, under the hinted prompt, for a top-K loss; 0: none",
            int,
            0,
        ),
        Option("--loss-type", "loss", str, "policy_loss", ("policy_loss", "sft_loss", "custom_loss")),
        Option("--custom-loss-function-path", "loss function; selects --loss-type custom_loss"),
        Option("--eps-clip", "lower clip of the ratio", float, 0.2, aliases=("--ppo-clip-ratio",)),
        Option("--eps-clip-high", "upper clip; default: --eps-clip", float),
        Option("--eps-clip-c", "dual clip: bound on the loss for negative advantages", float),
        Option("--use-kl-loss", "add the KL to the reference as a loss term; loads the reference", bool),
        Option("--kl-loss-coef", "coefficient of --use-kl-loss; 0 only logs the KL", float, 0.0),
        Option("--kl-loss-type", "estimator of both KL terms", str, "k1", ("k1", "k2", "k3", "low_var_kl")),
        Option("--use-unbiased-kl", "weight the KL estimator by the importance ratio", bool),
        Option("--entropy-coef", "entropy bonus", float, 0.0),
        Option(
            "--use-rollout-entropy",
            "compute entropies of the old policy for losses; logs their mean as rollout/entropy",
            bool,
        ),
        Option("--ref-update-interval", "copy the policy's weights to the reference every N rollouts", int),
        Option("--use-rollout-logprobs", "use the engine's logprobs as the old policy; saves a forward pass", bool),
        Option(
            "--use-routing-replay",
            "mixture of experts: training routes tokens to the experts of the old-logprob pass (Megatron)",
            bool,
        ),
        Option(
            "--use-rollout-routing-replay",
            "mixture of experts: every pass routes tokens to the experts that the engines used (Megatron)",
            bool,
        ),
        Option("--use-tis", "truncated importance weights between trainer and engine", bool),
        Option("--tis-clip", "upper bound of the weights of --use-tis", float, 2.0),
        Option("--tis-clip-low", "lower bound of the weights of --use-tis", float, 0.0),
        Option(
            "--custom-tis-function-path", "function that weighs and masks the policy loss instead of --use-tis weights"
        ),
        Option("--get-mismatch-metrics", "log metrics of the custom TIS function even without --use-tis", bool),
        Option("--use-opsm", "mask sequences with negative advantage that the policy has moved away from", bool),
        Option("--opsm-delta", "threshold of --use-opsm: mean old minus new logprob", float, 1e-4),
        Option("--custom-pg-loss-reducer-function-path", "function that reduces the policy loss of a micro-batch"),
    ),
)


GROUP_STANDARDISED = ("grpo", "gspo", "cispo")
WHITENED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")
# Terms of the policy loss and of the advantages: attribute and its neutral value.
_POLICY_TERMS = {
    "use_opd": False,
    "use_kl_loss": False,
    "kl_coef": 0.0,
    "entropy_coef": 0.0,
    "normalize_advantages": False,
    "eps_clip_c": None,
    "use_tis": False,
    "use_opsm": False,
    "use_rollout_logprobs": False,
    "custom_advantage_function_path": None,
    "custom_pg_loss_reducer_function_path": None,
}
# Flags that need another flag to have an effect: attribute, default, needed attribute.
_NEEDS = (
    ("kl_loss_coef", 0.0, "use_kl_loss"),
    ("use_unbiased_kl", False, "use_kl_loss"),
    # A custom loss may read these.
    ("opd_kl_coef", 1.0, "use_opd"),
    ("opsm_delta", 1e-4, "use_opsm"),
    ("tis_clip", 2.0, "use_tis"),
    ("tis_clip_low", 0.0, "use_tis"),
)

LORA_RATE = 1e-4
"""Smallest learning rate at which a LoRA adapter learns about as fast as full weights at a tenth of it (Schulman et al., "LoRA
Without Regret", 2025; for runs of fewer than 100 steps it finds 1.5 times as much)."""
ONE_SIDED = ("icepop_function", "token_rejection", "sequence_rejection")


def derive_loss(args: Arguments, words: Sequence[str]) -> None:
    """Select the custom loss that ``--custom-loss-function-path`` names, unless ``words`` have another ``--loss-type``."""
    typed = {word.partition("=")[0] for word in words}
    if args.custom_loss_function_path and args.loss_type == "policy_loss" and "--loss-type" not in typed:
        args.loss_type = "custom_loss"


def check_algorithm(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    return [*_check_loss(args), *_check_terms(args), *_check_advantages(args), *_check_correction(args)]


def algorithm_warnings(args: Arguments) -> list[str]:
    """Return one line for each setting that works and has no effect, or hardly the one that it is known for."""
    warnings = [*args.unused_flags]
    if args.use_lora and args.lr < LORA_RATE:
        warnings.append(
            f"--lr {args.lr:g} with --use-lora: an adapter needs about ten times the rate of full weights; "
            f"use --lr {LORA_RATE:g} to {1.5 * LORA_RATE:g}"
        )
    if args.advantage_estimator == "gspo" and args.eps_clip >= 0.01:
        warnings.append(
            f"--eps-clip {args.eps_clip:g} with --advantage-estimator gspo hardly ever clips the ratio of a whole "
            "sequence; the paper has --eps-clip 3e-4 --eps-clip-high 4e-4"
        )
    rejection = (args.custom_tis_function_path or "").rpartition(".")[2] in ONE_SIDED
    if rejection and args.use_tis and args.tis_clip_low == 0.0:
        warnings.append(
            f"--tis-clip-low 0 with {args.custom_tis_function_path}: tokens that the trainer finds less likely than the "
            "engine are never rejected; IcePop's paper has --tis-clip-low 0.5 --tis-clip 5"
        )
    return warnings


def _check_loss(args: Arguments) -> list[str]:
    problems = []
    if args.loss_type == "custom_loss" and not args.custom_loss_function_path:
        problems.append("--loss-type custom_loss needs --custom-loss-function-path module.attr")
    if args.custom_loss_function_path and args.loss_type != "custom_loss":
        problems.append(
            f"--custom-loss-function-path has no effect with --loss-type {args.loss_type}; remove one of them"
        )
    if args.distill_topk < 0:
        problems.append(f"--distill-topk {args.distill_topk}: give 0 or more")
    if args.distill_topk and args.loss_type != "custom_loss":
        problems.append(
            "--distill-topk has no effect on a built-in loss; add --loss-type custom_loss --custom-loss-function-path "
            "slime.algorithms.losses.topk_distillation.topk_distillation_loss"
        )
    if args.loss_type == "sft_loss":
        useless = [flag_of(name) for name, off in _POLICY_TERMS.items() if getattr(args, name) != off]
        if useless:
            problems.append(f"{', '.join(useless)} has no effect with --loss-type sft_loss; remove it")
    if not args.compute_advantages_and_returns:
        if lacking := sorted({"advantages", "reference_logits"} & set(asked_values(args))):
            problems.append(
                f"--custom-loss-function-path {args.custom_loss_function_path} asks for {', '.join(lacking)}; remove "
                "--disable-compute-advantages-and-returns"
            )
        if args.loss_type == "policy_loss":
            problems.append(
                "--disable-compute-advantages-and-returns leaves --loss-type policy_loss without advantages; remove it, or "
                "use --loss-type sft_loss or custom_loss"
            )
        if args.use_kl_loss or args.kl_coef:
            problems.append(
                "--use-kl-loss and --kl-coef need the passes that --disable-compute-advantages-and-returns skips; remove one"
            )
    if not args.rollout_temperature > 0:
        problems.append("--rollout-temperature must be above 0: greedy sampling does not explore")
    return problems


def _check_terms(args: Arguments) -> list[str]:
    problems = []
    for name, off, needed in _NEEDS[:2] if args.loss_type == "custom_loss" else _NEEDS:
        there = getattr(args, needed) or (needed == "use_tis" and args.get_mismatch_metrics)
        if getattr(args, name) != off and not there:
            problems.append(f"{flag_of(name)} has no effect without {flag_of(needed)}")
    if args.opd_teacher == "prm" and not (args.prm_enable or args.prm_router_ip):
        problems.append(
            "--opd-teacher prm needs a judge: add --prm-enable --prm-num-gpus N, or use --opd-teacher policy"
        )
    if args.opd_clip is not None and args.opd_clip <= 0.0:
        problems.append(f"--opd-clip {args.opd_clip:g}: give a value above 0, or leave it out for no bound")
    distils = args.use_opd or args.advantage_estimator == "on_policy_distillation" or args.loss_type == "custom_loss"
    if args.opd_clip is not None and not distils:
        problems.append("--opd-clip has no effect without a teacher's term; add --use-opd, or remove it")
    if args.kl_coef and args.kl_loss_coef:
        problems.append("--kl-coef and --kl-loss-coef would count the KL twice; set one of them to 0")
    if args.use_kl_loss and args.kl_loss_coef and args.kl_loss_type == "k1" and not args.use_unbiased_kl:
        problems.append(
            f"--kl-loss-coef {args.kl_loss_coef:g} with --kl-loss-type k1: the gradient of k1 does not depend on the "
            "reference; use --kl-loss-type k3, or add --use-unbiased-kl"
        )
    if args.eps_clip_c is not None and args.eps_clip_c <= 1.0:
        problems.append(f"--eps-clip-c {args.eps_clip_c}: the dual clip needs a value above 1, such as 3.0")
    if args.eps_clip_c is not None and args.advantage_estimator == "cispo":
        problems.append(
            "--eps-clip-c has no effect with --advantage-estimator cispo, which already clips both sides; remove it"
        )
    if args.use_opd and args.advantage_estimator == "on_policy_distillation":
        problems.append("--use-opd would add the teacher's term twice; remove it, or use --advantage-estimator grpo")
    path = args.custom_pg_loss_reducer_function_path or ""
    if path.endswith("reduce.constant_denominator"):
        if args.calculate_per_token_loss:
            problems.append("Dr.GRPO divides by a constant: remove --calculate-per-token-loss")
        if not args.rollout_max_response_len:
            problems.append("Dr.GRPO divides by the maximum response length: add --rollout-max-response-len N")
    return problems


def _check_advantages(args: Arguments) -> list[str]:
    problems = []
    estimator, custom = args.advantage_estimator, args.custom_advantage_function_path
    if estimator in WHITENED and not (args.normalize_advantages or custom):
        problems.append(f"--advantage-estimator {estimator} requires whitened advantages: add --normalize-advantages")
    if args.normalize_advantages and estimator == "step_wise":
        problems.append("--normalize-advantages would standardise the step advantages twice; remove it")
    if args.kl_coef and estimator not in (*WHITENED, "ppo") and not custom:
        problems.append(
            f"--kl-coef has no effect with --advantage-estimator {estimator}; use --use-kl-loss --kl-loss-coef, or "
            "--advantage-estimator reinforce_plus_plus"
        )
    if args.gamma != 1.0 and estimator not in ("reinforce_plus_plus", "ppo") and not custom:
        problems.append(f"--gamma has no effect with --advantage-estimator {estimator}; use reinforce_plus_plus or ppo")
    if not 0.0 <= args.gamma <= 1.0:
        problems.append(f"--gamma {args.gamma}: give a discount between 0 and 1")
    if not args.rewards_normalization and estimator == "reinforce_plus_plus_baseline":
        problems.append(
            "--disable-rewards-normalization removes the baseline of reinforce_plus_plus_baseline; "
            "use --advantage-estimator reinforce_plus_plus"
        )
    if not args.grpo_std_normalization and estimator not in GROUP_STANDARDISED:
        problems.append(
            f"--disable-grpo-std-normalization has no effect with --advantage-estimator {estimator}; remove it"
        )
    return problems


def _check_correction(args: Arguments) -> list[str]:
    problems = []
    if args.use_rollout_logprobs and (args.use_tis or args.get_mismatch_metrics):
        flag = "--use-tis" if args.use_tis else "--get-mismatch-metrics"
        problems.append(
            f"{flag} compares the trainer's old policy with the engine's; with --use-rollout-logprobs they are the "
            "same: remove one of them"
        )
    if args.get_mismatch_metrics and not args.custom_tis_function_path:
        problems.append(
            "--get-mismatch-metrics needs --custom-tis-function-path; train_rollout_logprob_abs_diff is always logged"
        )
    if args.custom_tis_function_path and not (args.use_tis or args.get_mismatch_metrics):
        problems.append("--custom-tis-function-path has no effect without --use-tis or --get-mismatch-metrics")
    if args.tis_clip_low > args.tis_clip:
        problems.append(f"--tis-clip-low {args.tis_clip_low} is above --tis-clip {args.tis_clip}; swap them")
    return problems


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


GATE = Group(
    "gate",
    (
        Option(
            "--before-push-path",
            "function decide(args, rollout_id, data_source, policies) that accepts or refuses each update before it serves; "
            "a refusal undoes its steps",
        ),
        Option(
            "--canary-engine",
            "the plugin of --before-push-path may try an update on the last engine before the others get it; needs two engines",
            bool,
        ),
    ),
)
MIN_ENGINES = 2
STATE_ELSEWHERE = ("optimizer_cpu_offload", "use_precision_aware_optimizer")


def check_gate(args: Arguments) -> list[str]:
    """Return the problems, one line each; pass derived ``args``."""
    if not args.before_push_path:
        return ["--canary-engine has no effect without --before-push-path; add it"] if args.canary_engine else []
    problems = check_canary(args) if args.canary_engine else []
    if args.debug_train_only or args.debug_rollout_only:
        what = "--debug-train-only or replayed rollouts" if args.debug_train_only else "--debug-rollout-only"
        problems.append(f"--before-push-path has no effect with {what}: no update would serve; remove one of them")
    if args.update_weights_interval != 1:
        problems.append(
            f"--before-push-path decides about every update, but --update-weights-interval "
            f"{args.update_weights_interval} joins several; remove one of them"
        )
    for name in STATE_ELSEWHERE:
        if getattr(args, name):
            problems.append(
                f"--before-push-path cannot undo the steps of {flag_of(name)}, whose state it cannot copy; "
                "remove one of them"
            )
    return problems


def check_canary(args: Arguments) -> list[str]:
    """Return why no engine can have an update before the others, one line each."""
    if args.colocate:
        return ["--canary-engine needs engines that serve while the trainer works; remove it or --colocate"]
    if args.rollout_external_engine_addrs:
        return ["--canary-engine needs the run's own engines; remove it or --rollout-external-engine-addrs"]
    if not args.use_fault_tolerance:
        return ["--canary-engine needs a run that restarts engines; remove it or --no-use-fault-tolerance"]
    per_engine = args.rollout_num_gpus_per_engine
    if args.rollout_num_gpus < MIN_ENGINES * per_engine:
        return [
            f"--canary-engine needs {MIN_ENGINES} engines, but there is one: give --rollout-num-gpus "
            f"{MIN_ENGINES * per_engine} or more, or remove it"
        ]
    return []


FUSES = Group(
    "fuses",
    (
        Option(
            "--fuses",
            "bounds on metrics, METRIC>NUMBER or METRIC<NUMBER: a metric beyond its bound pauses training before the step",
            nargs="+",
        ),
        Option("--resume-training", "continue a run that a fuse has paused; needs --resume", bool),
    ),
)


def check_fuses(args: Arguments) -> list[str]:
    """Return the problems, one line each; pass derived ``args``."""
    problems: list[str] = []
    fuses = []
    for text in args.fuses or []:
        try:
            fuses.append(read_fuse(text))
        except ValueError as error:
            problems.append(f"--fuses: {error}")
    for fuse in fuses:
        if fuse.metric in AFTER_THE_STEP:
            problems.append(f"--fuses {fuse}: {fuse.metric} is only known after the step; choose another metric")
    whole = (args.rollout_batch_size or 0) * args.n_samples_per_prompt
    steps = whole // args.global_batch_size if args.global_batch_size else 1
    if steps > 1 and any(fuse.metric.startswith(OF_THE_LOSS) for fuse in fuses):
        problems.append(
            f"--fuses on {OF_THE_LOSS}* hold back a rollout's only step, but a rollout has {steps} steps of "
            f"--global-batch-size {args.global_batch_size}; give {whole}, or remove these fuses"
        )
    if args.resume_training and not args.resume:
        problems.append("--resume-training has no effect without --resume; add it")
    return problems
