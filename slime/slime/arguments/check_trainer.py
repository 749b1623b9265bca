"""Which flags of trainer, optimizer and schedule go together.

Guarantee: a flag that would have no effect beside the others is refused by name, with what to type instead.
"""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.option import flag_of
from slime.arguments.trainer import LORA


def check_trainer(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    return [
        *_check_schedule(args),
        *_check_parameters(args),
        *_check_lora(args),
        *_check_passes(args),
        *_check_profiler(args),
        *_check_attention(args),
    ]


def _check_schedule(args: Arguments) -> list[str]:
    problems = []
    if args.lr_decay_style == "WSD" and not args.lr_wsd_decay_iters:
        problems.append("--lr-decay-style WSD needs --lr-wsd-decay-iters N, the steps of its decay")
    if args.lr_decay_style != "WSD" and args.lr_wsd_decay_iters is not None:
        problems.append("--lr-wsd-decay-iters has no effect without --lr-decay-style WSD")
    if args.use_checkpoint_lr_scheduler and args.override_lr_scheduler:
        problems.append("--use-checkpoint-lr-scheduler and --override-lr-scheduler contradict each other; remove one")
    for flag in ("use_checkpoint_lr_scheduler", "override_lr_scheduler"):
        if getattr(args, flag) and not args.load:
            problems.append(f"{flag_of(flag)} has no effect without --load or --resume")
    if args.lr_warmup_fraction is not None and args.lr_warmup_iters:
        problems.append("--lr-warmup-fraction and --lr-warmup-iters both set the warm-up; remove one")
    if args.min_lr > args.lr:
        problems.append(f"--min-lr {args.min_lr:g} is above --lr {args.lr:g}")
    return problems


def _check_parameters(args: Arguments) -> list[str]:
    problems = []
    if args.only_train_params_name_list and args.freeze_params_name_list:
        problems.append("--only-train-params-name-list and --freeze-params-name-list exclude each other; remove one")
    for name in ("only_train_params_name_list", "freeze_params_name_list"):
        if getattr(args, name) and args.use_lora:
            problems.append(f"{flag_of(name)} has no effect with --use-lora; use --lora-target-modules")
    return problems


def _check_lora(args: Arguments) -> list[str]:
    if args.use_lora:
        return []
    given = [option.flag for option in LORA.options if option.is_given(args)]
    return [f"{', '.join(given)} has no effect without --use-lora"] if given else []


def _check_passes(args: Arguments) -> list[str]:
    problems = []
    if args.use_rollout_entropy and args.use_rollout_logprobs:
        problems.append(
            "--use-rollout-entropy comes from the pass that --use-rollout-logprobs skips; remove one of them"
        )
    if args.use_rollout_entropy and (args.loss_type == "sft_loss" or not args.compute_advantages_and_returns):
        problems.append("--use-rollout-entropy needs the logprob passes, which this run skips; remove it")
    if args.ref_update_interval is not None:
        if args.ref_update_interval < 1:
            problems.append(f"--ref-update-interval {args.ref_update_interval}: give 1 or more")
        if not (args.use_kl_loss or args.kl_coef):
            problems.append("--ref-update-interval has no effect without a reference: add --use-kl-loss or --kl-coef")
        if args.use_lora:
            problems.append("--ref-update-interval is not offered with --use-lora, whose reference is the base model")
    return problems


def _check_profiler(args: Arguments) -> list[str]:
    if not args.use_pytorch_profiler:
        given = (args.profile_step_start, args.profile_step_end, args.profile_target) != (10, 12, "train_overall")
        return ["--profile-* has no effect without --use-pytorch-profiler"] if given else []
    if args.profile_step_end <= args.profile_step_start:
        return [
            f"--profile-step-end {args.profile_step_end} is not after --profile-step-start {args.profile_step_start}"
        ]
    return []


def _check_attention(args: Arguments) -> list[str]:
    if args.device == "cpu" and args.attn_implementation == "flash_attention_2":
        return ["--attn-implementation flash_attention_2 needs a GPU; use sdpa"]
    return []
