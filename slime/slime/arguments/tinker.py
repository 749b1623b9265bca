"""Flags of ``--train-backend tinker`` and ``fireworks``, and which others have no effect with it. Imports neither torch nor the package tinker."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping

from slime.args import Arguments
from slime.arguments.algorithm import ALGORITHM, CRITIC, GATE
from slime.arguments.cluster import CLUSTER, COLOCATE
from slime.arguments.option import Group, Option
from slime.arguments.placement import is_rented
from slime.arguments.rollout import JUDGE, ROLLOUT
from slime.arguments.trainer import LORA, OPTIMIZER, TRAINER, WEIGHT_SYNC

KEY, ADDRESS = "TINKER_API_KEY", "TINKER_BASE_URL"
PREFILL, SAMPLE, TRAIN = KINDS = ("prefill", "sample", "train")
LOSSES = ("ppo", "importance_sampling", "cispo")

TINKER = Group(
    "Tinker (--train-backend tinker or fireworks: a service trains and samples)",
    (
        Option("--tinker-model", "the model to train, as the service names it"),
        Option(
            "--tinker-judge-model",
            "the model that judges, and with --opd-teacher prm teaches; default: --tinker-model as it was before training",
        ),
        Option("--tinker-epochs", "how often the service trains a batch", int, 1),
        Option("--tinker-start", "state of the service to start from, tinker://...; default: a new adapter"),
        Option("--tinker-loss", "the service's loss for the advantages", str, "ppo", LOSSES),
        Option(
            "--tinker-prices",
            "dollars for a million tokens, to count what a run costs, such as prefill=0.1,sample=0.3,train=0.9",
        ),
    ),
)

_READ = frozenset(
    {
        *("train_backend", "seed", "global_batch_size", "num_steps_per_rollout", "use_dynamic_global_batch_size"),
        *("disable_rollout_trim_samples", "calculate_per_token_loss"),
        *("lr", "min_lr", "lr_decay_style", "lr_decay_iters", "lr_wsd_decay_iters", "lr_wsd_decay_style"),
        *("lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction", "lr_warmup_init", "weight_decay"),
        *("adam_beta1", "adam_beta2", "adam_eps", "clip_grad", "use_checkpoint_lr_scheduler", "override_lr_scheduler"),
        *("use_lora", "lora_rank", "device", "num_gpus", "run_dir", "num_gpus_per_node", "ray_address", "http_proxy"),
        *("forward_env", "node_timeout", "before_push_path"),
        *("advantage_estimator", "custom_advantage_function_path", "gamma", "disable_rewards_normalization"),
        *("disable_grpo_std_normalization", "grpo_std_normalization", "rewards_normalization", "reward_key"),
        *("normalize_advantages", "use_opd", "opd_kl_coef", "opd_clip", "opd_teacher"),
        *("use_rollout_logprobs", "eps_clip", "eps_clip_high", "use_kl_loss", "kl_loss_coef", "use_unbiased_kl"),
        *("prm_enable", "prm_m", "prm_temperature", "prm_max_new_tokens", "prm_model_path"),
    }
)
"""Attributes of the trainer's and the machine's flags that have an effect."""
_ESTIMATORS = ("grpo", "on_policy_distillation", "step_wise")


def check_tinker(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    own = [option.flag for option in TINKER.options if option.is_given(args)]
    if not is_rented(args):
        return (
            [f"{', '.join(own)}: only with --train-backend tinker or fireworks; add it, or remove them"] if own else []
        )
    name = args.train_backend
    groups = (ALGORITHM, CRITIC, GATE, CLUSTER, COLOCATE, JUDGE, TRAINER, WEIGHT_SYNC, LORA, OPTIMIZER)
    idle = [o.flag for group in groups for o in group.options if o.attribute not in _READ and o.is_given(args)]
    others = ("rollout_external", "rollout_external_engine_addrs", "update_weights_interval")
    idle += [o.flag for o in ROLLOUT.options if o.attribute in others and o.is_given(args)]
    problems = [f"{', '.join(idle)}: without effect where a service trains; remove them"] if idle else []
    if not args.tinker_model:
        problems.append(f"--train-backend {name} needs --tinker-model NAME, a model of the service")
    if not args.use_lora:
        problems.append(f"--train-backend {name} trains an adapter; add --use-lora")
    if not args.use_rollout_logprobs:
        problems.append(f"--train-backend {name} needs --use-rollout-logprobs: a service recomputes nothing")
    if args.advantage_estimator not in _ESTIMATORS:
        problems.append(
            f"--advantage-estimator {args.advantage_estimator}: with --train-backend {name} choose of {', '.join(_ESTIMATORS)}"
        )
    if args.loss_type != "policy_loss":
        problems.append(f"--loss-type {args.loss_type}: a service has losses of its own; see --tinker-loss")
    if args.rollout_temperature != 1.0:
        problems.append(
            f"--rollout-temperature {args.rollout_temperature:g}: a service trains at temperature 1; leave it out"
        )
    if args.use_kl_loss and not (args.use_unbiased_kl and args.kl_loss_type == "k1"):
        problems.append(f"--use-kl-loss: with --train-backend {name} add --kl-loss-type k1 --use-unbiased-kl")
    if args.tinker_judge_model not in (None, args.tinker_model) and not args.prm_model_path:
        problems.append(
            f"--tinker-judge-model {args.tinker_judge_model} needs --prm-model-path FOLDER, with its tokenizer"
        )
    if args.tinker_epochs < 1:
        problems.append(f"--tinker-epochs {args.tinker_epochs}: give 1 or more")
    try:
        read_prices(args.tinker_prices)
    except ValueError as error:
        problems.append(f"--tinker-prices {args.tinker_prices}: {error}")
    if importlib.util.find_spec("tinker") is None:
        problems.append(f"--train-backend {name} needs the package tinker; type: pip install 'openclaw-rl[tinker]'")
    return problems


def read_prices(text: str | None) -> Mapping[str, float]:
    """Return dollars for a million tokens by kind.

    Raises:
        ValueError: the text names another kind, or no number.

    Example:
        >>> read_prices("sample=0.5,train=1")
        {'sample': 0.5, 'train': 1.0}
    """
    prices: dict[str, float] = {}
    for part in filter(None, (text or "").split(",")):
        kind, _, number = part.strip().partition("=")
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if kind not in (*KINDS, "cached") or not 0 <= price < math.inf:
            raise ValueError(
                f"{part.strip()!r} is no price; write such as {PREFILL}=0.1,cached=0.01,{SAMPLE}=0.3,{TRAIN}=0.9"
            )
        prices[kind] = price
    return prices
