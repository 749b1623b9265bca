"""Which plugins the contract tests are about: those that the user names, or else the ones of this repository."""

from __future__ import annotations

import os

import pytest

from slime.contract.clauses import KINDS

ARGUMENTS = "SLIME_CONTRACT_ARGS"
OWN = {
    "rollout": "slime.rollout.sglang_rollout.generate_rollout",
    "eval": "slime.rollout.sglang_rollout.generate_rollout",
    "generate": "slime.rollout.sglang_rollout.generate",
    "reward": "lab.testkit.rewards.prefer_even_ids",
    "dynamic_filter": "tests.helpers.good_plugins.keep_all",
    "buffer_filter": "slime.rollout.data_source.pop_first",
    "sample_filter": "tests.helpers.good_plugins.remove_truncated",
    "all_samples": "tests.helpers.good_plugins.count_all",
    "data_source": "slime.rollout.data_source.RolloutDataSourceWithBuffer",
    "sample_hook": "tests.helpers.good_plugins.trace",
    "rollout_log": "tests.helpers.good_plugins.log_rollout",
    "eval_log": "tests.helpers.good_plugins.log_eval",
    "reward_post_process": "tests.helpers.good_plugins.centre_rewards",
    "convert": "slime.rollout.train_data.convert",
    "data_postprocess": "tests.helpers.good_plugins.look_at_rollout",
    "loss": "tests.helpers.good_plugins.likelihood",
    "advantage": "tests.helpers.good_plugins.constant_advantage",
    "tis": "slime.algorithms.losses.rejection.icepop_function",
    "pg_loss_reducer": "slime.algorithms.losses.reduce.constant_denominator",
    "before_push": "tests.helpers.good_plugins.accept_what_scores_better",
    "arguments": "tests.helpers.good_plugins.add_custom_arguments",
    "model_provider": "tests.helpers.good_plugins.model_provider",
    "megatron_init": "tests.helpers.good_plugins.megatron_init",
    "before_log_prob": "tests.helpers.good_plugins.before_log_prob",
    "before_train_step": "tests.helpers.good_plugins.before_train_step",
}


def named(config: pytest.Config, kind: str) -> str | None:
    """The plugin that the command line or the environment names."""
    option = KINDS[kind].option
    given = config.getoption(f"plugin_{option}", default=None)
    return given or os.environ.get(f"SLIME_CONTRACT_{option.upper()}")
