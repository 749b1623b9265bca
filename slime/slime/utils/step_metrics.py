"""The metrics that a run logs about its steps, each declared once with its unit and meaning.

Guarantee: a test fails if a run logs a metric that neither this table nor that of `openclaw.training.step_metrics` has. The
reference page is written from both. Plugins add metrics of their own. Imports nothing heavy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Metric(NamedTuple):
    """A metric, or several whose names differ in one place.

    Attributes:
        name: with its prefix; a word in braces stands for the part that differs, such as ``eval/{set}``.
        unit: of the value; ``share`` is from 0 to 1, ``count`` a whole number, ``ratio`` a quotient without a unit.
        meaning: a line for people.
    """

    name: str
    unit: str
    meaning: str

    def covers(self, name: str) -> bool:
        """Return whether ``name`` is this metric.

        Example:
            >>> Metric("eval/{set}", "reward", "Mean reward").covers("eval/gsm8k")
            True
        """
        parts = re.split(r"\{\w+\}", self.name)
        return re.fullmatch("[^/]+".join(map(re.escape, parts)), name) is not None


AXES = ("train/step", "rollout/step", "eval/step")
PREFIXES = ("train", "rollout", "perf", "eval", "multi_turn", "passrate", "error_cat")

STEPS = (
    Metric("train/loss", "loss", "Loss of the step"),
    Metric("train/pg_loss", "loss", "Policy-gradient term of the loss"),
    Metric("train/pg_clipfrac", "share", "Tokens whose ratio the loss clipped"),
    Metric("train/ppo_kl", "nats/token", "Mean of old minus new log probability"),
    Metric("train/ois", "ratio", "Mean ratio of the new to the old policy"),
    Metric("train/entropy_loss", "nats/token", "Mean entropy of the policy; larger is more random"),
    Metric("train/kl_loss", "nats/token", "KL to the reference, with `--use-kl-loss`"),
    Metric("train/opsm_clipfrac", "share", "Tokens that `--use-opsm` masks"),
    Metric(
        "train/train_rollout_logprob_abs_diff",
        "nats/token",
        "Mean distance of the trainer's from the engine's logprobs",
    ),
    Metric(
        "train/train_rollout_logprob_diff_max", "nats", "Largest distance of the trainer's from the engine's logprobs"
    ),
    Metric("train/train_rollout_kl", "nats/token", "KL of engine to trainer on the sampled tokens"),
    Metric("train/tis", "ratio", "Mean importance weight of trainer to engine, before truncation"),
    Metric("train/tis_abs", "ratio", "Mean distance of that weight from 1"),
    Metric("train/tis_clipfrac", "share", "Tokens whose weight was truncated or rejected"),
    Metric("train/opd_loss", "loss", "Distillation term of the hybrid loss"),
    Metric("train/opd_clipfrac", "share", "Tokens of the teacher's support that the hybrid loss clipped"),
    Metric("train/opd_share", "share", "Tokens with a teacher, in the hybrid loss"),
    Metric("train/topk_kl", "nats/token", "Divergence of policy and teacher on the top K tokens"),
    Metric("train/topk_tail", "share", "Probability of the policy outside the top K tokens"),
    Metric("train/with_teacher", "share", "Tokens with a teacher, in a loss of named values"),
    Metric("train/value_loss", "loss", "Loss of the critic"),
    Metric("train/value_clipfrac", "share", "Values that the critic's loss clipped"),
    Metric("train/grad_norm", "norm", "Norm of the gradient before clipping"),
    Metric("train/lr-pg_0", "rate", "Learning rate of the step"),
    Metric("train/skipped_steps", "count", "1 if the step was skipped for a gradient that is not finite, or by a fuse"),
    Metric("train/fuse_held", "count", "1 if a fuse held the step back"),
    Metric("train/critic-grad_norm", "norm", "Norm of the critic's gradient"),
    Metric("train/critic-lr-pg_0", "rate", "Learning rate of the critic"),
    Metric("train/critic-skipped_steps", "count", "1 if the critic's step was skipped"),
    Metric("train/critic-fuse_held", "count", "1 if a fuse held the critic's step back"),
)
"""One record per optimizer step, on the axis ``train/step``."""

ROLLOUTS = (
    Metric("rollout/reward", "reward", "Mean reward of the samples"),
    Metric("rollout/raw_reward", "reward", "Mean reward before normalisation"),
    Metric("rollout/rewards", "reward", "Mean reward that the trainer gets, after normalisation"),
    Metric("rollout/score", "score", "Mean score of the judge, from -1 to 1"),
    Metric("rollout/liked_share", "share", "Samples with a positive score"),
    Metric("rollout/samples", "count", "Samples of the batch"),
    Metric("rollout/tokens", "tokens", "Tokens of prompts and responses"),
    Metric("rollout/loss_tokens", "tokens", "Tokens with loss"),
    Metric("rollout/signal_share", "share", "Samples with an advantage that is not zero, or with a teacher"),
    Metric(
        "rollout/update_rms", "weight", "Root mean square of what the steps changed each trained weight by, with a gate"
    ),
    Metric("rollout/response_len/{statistic}", "tokens", "Trained tokens of a response: mean, median, max, min"),
    Metric("rollout/response_len/of_limit", "share", "Mean response length over `--rollout-max-response-len`"),
    Metric("rollout/response_lengths", "tokens", "Mean response length, with observations"),
    Metric("rollout/total_lengths", "tokens", "Mean length of prompt and response"),
    Metric("rollout/truncated_ratio", "share", "Responses that reached their limit"),
    Metric("rollout/truncated", "share", "The same, as the trainer gets it"),
    Metric("rollout/repetition_frac", "share", "Long responses that compress to less than a tenth"),
    Metric("rollout/constant_groups", "count", "Groups whose rewards are all equal"),
    Metric("rollout/zero_std/count_{reward}", "count", "Of them, groups with this reward"),
    Metric("rollout/grader_{reason}", "count", "Responses that no grader could read, by reason"),
    Metric("rollout/cut_at_placeholder", "count", "Responses that were cut where they wrote an image placeholder"),
    Metric("rollout/prefix_cache_hit_rate", "share", "Prompt tokens from the engine's cache"),
    Metric("rollout/avg_cached_tokens_per_sample", "tokens", "Prompt tokens from the cache, per sample"),
    Metric("rollout/correct_samples", "count", "Samples with a reward above 0, with `--log-correct-samples`"),
    Metric("rollout/correct_response_lengths", "tokens", "Mean response length of them"),
    Metric("rollout/correct_total_lengths", "tokens", "Mean length of prompt and response of them"),
    Metric("rollout/dynamic_filter/drop_{reason}", "count", "Groups that the dynamic filter dropped, by reason"),
    Metric("rollout/aborted_groups", "count", "Groups that a finished rollout left unfinished"),
    Metric("rollout/queued_groups", "count", "Finished groups that wait for the next rollout"),
    Metric("rollout/groups_under_way", "count", "Groups that are being sampled when the rollout ends"),
    Metric("rollout/dropped_stale_groups", "count", "Groups dropped for `--max-weight-staleness`"),
    Metric("rollout/corrected_stale_groups", "count", "Groups beyond it that are trained with correction"),
    Metric("rollout/masked_stale_tokens", "tokens", "Tokens of them without loss"),
    Metric("rollout/oldest_version_{statistic}", "version", "Oldest weights of a sample: mean, min, max"),
    Metric("rollout/token_version_mean", "version", "Mean weight version of the sampled tokens"),
    Metric("rollout/staleness_{statistic}", "updates", "Updates since a sample's oldest token: min, mean, max"),
    Metric("rollout/token_staleness_mean", "updates", "Updates since a token was sampled, mean over tokens"),
    Metric("rollout/weight_version", "version", "Weights that serve after the rollout"),
    Metric("rollout/paused", "count", "1 if a fuse has paused training"),
    Metric("rollout/entropy_of_{n}_steps", "nats/token", "Mean of `train/entropy_loss` over the last n steps"),
    Metric("rollout/rollout_log_probs", "nats/token", "Mean logprob that the engine gave the tokens"),
    Metric("rollout/log_probs", "nats/token", "Mean logprob of the policy before the steps"),
    Metric("rollout/ref_log_probs", "nats/token", "Mean logprob of the reference"),
    Metric("rollout/teacher_log_probs", "nats/token", "Mean logprob of the teacher"),
    Metric("rollout/advantages", "advantage", "Mean advantage of the trained tokens"),
    Metric("rollout/returns", "return", "Mean return of the trained tokens"),
    Metric("rollout/values", "return", "Mean value of the critic"),
    Metric("rollout/kl", "nats/token", "KL to the reference in the reward, with `--kl-coef`"),
    Metric("rollout/entropy", "nats/token", "Mean entropy of the policy before the steps"),
    Metric("multi_turn/{length}/{statistic}", "tokens", "Response lengths or rounds, with `--log-multi-turn`"),
    Metric("passrate/pass@{k}", "share", "Chance that one of k responses is right, with `--log-passrate`"),
    Metric("error_cat/{value}", "share", "Samples with this value of `--log-reward-category`"),
)
"""One record per rollout, on the axis ``rollout/step``."""

SPEED = (
    Metric("perf/rollout_time", "seconds", "Collecting the batch"),
    Metric("perf/step_time", "seconds", "Training the batch and publishing the weights"),
    Metric("perf/train_wait_time", "seconds", "The trainer's wait for the batch"),
    Metric("perf/wait_time_ratio", "share", "Time that the trainer waits"),
    Metric("perf/{phase}_time", "seconds", "A phase of the trainer or of the gate, such as `actor_train` or `probe`"),
    Metric("perf/{phase}_tflops", "TFLOP/s", "Speed of a rank in a phase"),
    Metric("perf/actor_train_tok_per_s", "tokens/s", "Tokens that a copy of the model trains"),
    Metric("perf/tokens_per_gpu_per_sec", "tokens/s", "Response tokens per GPU of the engines"),
    Metric("perf/effective_tokens_per_gpu_per_sec", "tokens/s", "The same, trained tokens only"),
    Metric("perf/longest_sample_tokens_per_sec", "tokens/s", "Speed of the longest response"),
    Metric("perf/effective_longest_sample_tokens_per_sec", "tokens/s", "The same, trained tokens only"),
    Metric("perf/non_generation_time/{statistic}", "seconds", "A sample's time outside the engine"),
)
"""Beside the metrics of a rollout."""

EVALUATIONS = (
    Metric("eval/{set}", "reward", "Mean reward of an evaluation set"),
    Metric("eval/{set}/answers", "count", "Its answers"),
    Metric("eval/{set}-{kind}_ratio", "share", "Answers that were truncated or aborted"),
    Metric("eval/{set}-pass@{k}", "share", "Chance that one of k answers is right"),
    Metric("eval/{set}/response_len/{statistic}", "tokens", "Length of an answer: mean, median, max, min"),
    Metric("eval/{set}/grader_{reason}", "count", "Answers that no grader could read, by reason"),
)
"""One record per evaluation, on the axis ``eval/step``."""

TABLES = (
    ("Optimizer steps", "train/step", STEPS),
    ("Rollouts", "rollout/step", ROLLOUTS),
    ("Speed", "rollout/step", SPEED),
    ("Evaluations", "eval/step", EVALUATIONS),
)
"""Title, step axis and metrics."""


def undeclared(names: Iterable[str], prefixes: Sequence[str], declared: Sequence[Metric]) -> list[str]:
    """Return those of ``names`` under the ``prefixes`` that no metric of ``declared`` covers; names of plugins' prefixes are none."""
    own = [name for name in {*names}.difference(AXES) if name.partition("/")[0] in prefixes]
    return sorted(name for name in own if not any(metric.covers(name) for metric in declared))
