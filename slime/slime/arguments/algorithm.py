"""Advantages, losses and their terms."""

from __future__ import annotations

from slime.arguments.option import Group, Option

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
        Option("--advantage-estimator", "advantage of a token", str, "grpo", ESTIMATORS),
        Option("--custom-advantage-function-path", "sets advantages and returns in place of the estimator"),
        Option("--normalize-advantages", "whiten advantages over the unmasked tokens of all ranks", bool),
        Option("--gamma", "discount per token of reinforce_plus_plus and ppo", float, 1.0),
        Option("--kl-coef", "KL to the reference in the reward of each token; loads the reference", float, 0.0),
        Option(
            "--dynamic-history",
            "samples of one trajectory share its reward, which is normalised among trajectories",
            bool,
            aliases=("--dynamic_history",),
        ),
        Option("--disable-rewards-normalization", "the raw reward is the advantage", None, off="rewards_normalization"),
        Option(
            "--disable-grpo-std-normalization", "centre rewards, do not scale them", None, off="grpo_std_normalization"
        ),
        Option(
            "--disable-compute-advantages-and-returns",
            "no logprob passes, no advantages",
            None,
            off="compute_advantages_and_returns",
        ),
        Option("--reward-key", "key of a reward dict"),
        Option("--use-opd", "add coef * (teacher - old) logprobs to the advantages of samples with a teacher", bool),
        Option("--opd-kl-coef", "coefficient of --use-opd", float, 1.0),
        Option(
            "--opd-teacher",
            "who scores hinted replies: the policy itself or the judge's model",
            str,
            "policy",
            ("policy", "prm"),
        ),
        Option(
            "--distill-topk",
            "tokens per position whose probabilities the teacher gives with its hinted prompt, for a top-K loss; 0: none",
            int,
            0,
        ),
        Option("--loss-type", "loss", str, "policy_loss", ("policy_loss", "sft_loss", "custom_loss")),
        Option("--custom-loss-function-path", "loss for --loss-type custom_loss"),
        Option("--eps-clip", "lower clip of the ratio", float, 0.2),
        Option("--eps-clip-high", "upper clip; default: --eps-clip", float),
        Option("--eps-clip-c", "dual clip: bound of the loss under negative advantages", float),
        Option("--use-kl-loss", "KL to the reference as a loss term; loads the reference", bool),
        Option("--kl-loss-coef", "coefficient of --use-kl-loss; 0 only logs the KL", float, 0.0),
        Option("--kl-loss-type", "estimator of both KL terms", str, "k1", ("k1", "k2", "k3", "low_var_kl")),
        Option("--use-unbiased-kl", "weight the KL estimator by the importance ratio", bool),
        Option("--entropy-coef", "entropy bonus", float, 0.0),
        Option(
            "--use-rollout-entropy", "entropies of the old policy for losses, and their mean: rollout/entropy", bool
        ),
        Option("--ref-update-interval", "rollouts after which the reference takes the policy's weights", int),
        Option("--use-rollout-logprobs", "the engine's logprobs are the old policy; no extra pass", bool),
        Option(
            "--use-routing-replay",
            "mixture of experts: tokens go to the experts that the pass of old logprobs chose, in training too (Megatron)",
            bool,
        ),
        Option(
            "--use-rollout-routing-replay",
            "mixture of experts: tokens go to the experts that the engines sampled with, in every pass (Megatron)",
            bool,
        ),
        Option("--use-tis", "truncated importance weights between trainer and engine", bool),
        Option("--tis-clip", "upper bound of the weights of --use-tis", float, 2.0),
        Option("--tis-clip-low", "lower bound of the weights of --use-tis", float, 0.0),
        Option("--custom-tis-function-path", "weighs and masks the policy loss in place of the truncated weights"),
        Option("--get-mismatch-metrics", "metrics of the custom TIS function, also without --use-tis", bool),
        Option("--use-opsm", "no loss under negative advantages on sequences the policy has moved away from", bool),
        Option("--opsm-delta", "threshold of --use-opsm: mean old minus new logprob", float, 1e-4),
        Option("--custom-pg-loss-reducer-function-path", "reduces the policy loss of a micro-batch"),
    ),
)
