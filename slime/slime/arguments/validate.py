"""Derive the missing values, then check everything that must hold before a run starts.

Guarantees: only file-system checks, no GPU and no import of torch. All problems are found in one pass, each with what
to change.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import slime.arguments.evaluation as evaluation
from slime.args import Arguments
from slime.arguments.algorithm import check_algorithm
from slime.arguments.backend import derive_backend
from slime.arguments.batches import check_batches, check_counts, check_lengths, check_staleness, check_steps
from slime.arguments.checkpoint import LATEST, check_paths
from slime.arguments.cluster import check_colocate, check_roles, derive_colocate
from slime.arguments.critic import check_critic, derive_critic
from slime.arguments.derive import derive_batches, derive_paths, derive_roles, derive_rollout
from slime.arguments.engines import check_engines, check_judge
from slime.arguments.environments import check_environments
from slime.arguments.evaluation import check_evaluation
from slime.arguments.fuses import check_fuses
from slime.arguments.gate import check_gate
from slime.arguments.machines import check_given, derive_machines
from slime.arguments.megatron import check_megatron, check_megatron_shape, derive_megatron
from slime.arguments.model_shape import check_model_shape, check_trainable
from slime.arguments.process_environment import check_shared
from slime.arguments.refused import check_fixed
from slime.arguments.resume import check_resumed
from slime.arguments.rewards import check_rewards
from slime.arguments.routing_replay import check_routing_replay, derive_routing_replay
from slime.arguments.tracking import check_memory_history, check_tracking
from slime.arguments.trainer import check_trainer
from slime.arguments.weight_sync import check_weight_sync, derive_weight_sync
from slime.arguments.written import check_written
from slime.utils.model_config import config_or_none


def validate(args: Arguments, words: Sequence[str] = ()) -> list[str]:
    """Derive missing values and return the problems; empty if the run can start.

    Args:
        args: arguments as parsed.
        words: words of the command line and of its ``--config`` file, see `derive_backend`.
    """
    if problems := check_counts(args):
        return problems
    as_given = [
        *check_given(args),
        *check_judge(args),
        *check_evaluation(args),
        *check_steps(args),
    ]  # before derivations fill in missing values
    derive_backend(args, words)
    derive_paths(args)
    derive_critic(args, LATEST)
    derive_roles(args)
    derive_colocate(args)
    derive_machines(args)
    derive_megatron(args)
    derive_batches(args)
    derive_rollout(args)
    derive_routing_replay(args)
    derive_weight_sync(args)
    problems = [
        *as_given,
        *check_paths(args),
        *check_resumed(args),
        *check_written(args),
        *check_roles(args),
        *check_colocate(args),
        *check_engines(args),
        *check_batches(args),
        *check_lengths(args),
        *check_algorithm(args),
        *check_critic(args, LATEST),
        *check_rewards(args),
        *check_staleness(args),
        *evaluation.check_eval_datasets(args),
        *check_tracking(args),
        *check_trainer(args),
        *check_memory_history(args),
        *check_weight_sync(args),
        *check_environments(args),
        *check_fixed(args),
        *check_fuses(args),
        *check_gate(args),
        *check_megatron(args),
        *check_shared(args, os.environ),
    ]
    config = config_or_none(args.hf_checkpoint)
    problems += [*check_model_shape(args, config)] if config is not None else []
    problems += check_routing_replay(args, config)
    for folder in (args.hf_checkpoint, args.critic_load if args.use_critic else None):
        if (config := config_or_none(folder)) is not None:
            of_folder = args.changed(hf_checkpoint=folder)
            problems += [*check_trainable(of_folder, config), *check_megatron_shape(of_folder, config)]
    return problems
