"""What a rank does in the tests of Megatron's critic; at module level, so that new processes can import it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lab.testkit import trainer
from slime.arguments import placement
from slime.backends.megatron_utils import train_step
from slime.backends.megatron_utils.backend import MegatronCritic, MegatronTrainActor
from slime.backends.megatron_utils.config import read_config, shape_of
from slime.backends.megatron_utils.model import unwrapped
from slime.backends.megatron_utils.weights import full_weights
from slime.backends.trainer.rank import CriticRank
from tests.helpers.idle_ranks import Alone
from tests.helpers.megatron_ranks import CPU, gradient_of, megatron_args, share_gradients
from tests.helpers.ppo_ranks import from_all_ranks, ppo_rollout

STEPS = 3


class CriticBesidePolicy(MegatronCritic):
    """A critic whose groups the policy has joined."""

    def _join_groups(self) -> None:
        """They are there."""

    def close(self) -> None:
        """They are the policy's to leave."""


class Beside(Alone):
    """The process of a critic in that of a policy's rank."""

    def join(self, args: Any) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device()) if args.device == "cuda" else CPU


class CriticBesideActor(CriticRank):
    """A critic in the process of a policy's rank, whose groups it shares."""

    make_backend = CriticBesidePolicy

    def __init__(self, world_size: int, rank: int) -> None:
        super().__init__(world_size, rank, "")
        self.process = Beside(world_size, rank, "")


def start(args: Any, rank: int, world_size: int, place: str) -> tuple[MegatronTrainActor, CriticBesideActor, int]:
    """Return a ready policy, its critic, and the rollout they start with."""
    actor = MegatronTrainActor(world_size, rank, "127.0.0.1", trainer.meeting_port(rank, place))
    first = actor.init(args)
    critic = CriticBesideActor(world_size, rank)
    critic.init(args)
    critic.load_checkpoint(first)
    return actor, critic, first


def shard_of(args: Any, rank: int, world_size: int, seed: int = 0) -> dict[str, Any]:
    """This rank's part of the training data."""
    copies = placement.data_parallel_size(args, world_size)
    return trainer.shards(args, trainer.train_data(seed=seed), copies)[
        placement.data_parallel_rank(args, rank, world_size)
    ]


def critic_tensors(
    critic: CriticBesideActor, of: Callable[[Tensor], Tensor] = torch.Tensor.detach
) -> dict[str, Tensor]:
    """Whole copies of the critic's parameters (or of what ``of`` makes of them), backbone under the checkpoint's names."""
    model = unwrapped(critic.backend.model)
    head = model._modules.pop("output_layer", None)  # which no Hugging Face name is known of
    shape = shape_of(read_config(critic.args.hf_checkpoint))
    found = {f"hf.{name.removeprefix('model.')}": value.clone() for name, value in full_weights(model, shape, of=of)}
    if head is not None:
        model.output_layer = head
    own = {} if head is None else {f"head.{name}": of(value).clone() for name, value in head.named_parameters()}
    return found | train_step.from_last_stage(own)


def randomise_head(critic: CriticBesideActor) -> None:
    """Give the value head the same random values on every rank that has it."""
    head = getattr(unwrapped(critic.backend.model), "output_layer", None)
    generator = torch.Generator().manual_seed(5)
    if head is not None:
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    critic.backend.optimizer.reload_model_params()


def gradients(rank: int, world_size: int, cases: list[tuple[str, dict[str, Any]]], out: str) -> None:
    """For each ``(model folder, changes)`` write what a step of the policy and three of the critic on one rollout give."""
    warnings.filterwarnings("ignore")
    results = [_one_rollout(rank, world_size, *case, f"{out}.{number}") for number, case in enumerate(cases)]
    if rank == 0:
        torch.save(results, out)


def _one_rollout(rank: int, world_size: int, model: str, changes: dict[str, Any], place: str) -> dict[str, Any]:
    args = megatron_args(model, **changes)
    actor, critic, _ = start(args, rank, world_size, place)
    randomise_head(critic)
    captured: dict[str, dict[str, Tensor]] = {}
    original = train_step.apply_gradients

    def capture(wrapped: Any, *rest: Any, **named: Any) -> Any:
        share_gradients(wrapped)
        if wrapped is actor.backend.model:
            weights = full_weights(unwrapped(wrapped), actor.backend.shape, of=gradient_of)
            captured["policy"] = {name: value.clone() for name, value in weights}
        elif "critic" not in captured:
            captured["critic"] = critic_tensors(critic, gradient_of)
        return original(wrapped, *rest, **named)

    head = {name: value for name, value in critic_tensors(critic).items() if name.startswith("head.")}
    values = from_all_ranks(critic.values(0, shard_of(args, rank, world_size)))
    data = critic._data
    assert data is not None
    returns = from_all_ranks(actor.prepare(0, shard_of(args, rank, world_size), values))
    train_step.apply_gradients = capture
    try:
        logged = [critic.step(0, returns), actor.step(0)]
        steps = [critic.backend.optimizer_step(data, 0, 0) for _ in range(1, STEPS)]
    finally:
        train_step.apply_gradients = original
    after = critic_tensors(critic)
    actor.shutdown()
    merged = {position: value for part in values for position, value in part.items()}
    return {
        "head": {name.removeprefix("head."): value for name, value in head.items()},
        "values": [merged[position] for position in sorted(merged)],
        "metrics": {**(logged[0] or {}), **(logged[1] or {})},
        "steps": steps,
        "gradients": captured,
        "after": after,
    }


def runs(rank: int, world_size: int, plans: list[dict[str, Any]], model: str, out: str) -> None:
    """Policy and critic train the rollouts of each plan, with checkpoints after each one; write what became of them.

    A plan has ``rollouts``, and changes of the arguments under ``changes``. In one that ``leaves`` the critic's memory is on the
    host between rollouts.
    """
    warnings.filterwarnings("ignore")
    results = []
    for number, plan in enumerate(plans):
        args = megatron_args(model, **plan["changes"])
        actor, critic, first = start(args, rank, world_size, f"{out}.{number}")
        found: dict[str, Any] = {"start": first, "before": critic_tensors(critic), "metrics": []}
        for rollout in plan["rollouts"]:
            if plan.get("leaves"):
                critic.offload()
                critic.onload()
            shard = shard_of(args, rank, world_size, seed=rollout)
            found["metrics"].append(ppo_rollout(actor, critic, rollout, shard, rollout >= args.num_critic_only_steps))
            if args.save:
                for part in (critic, actor):
                    part.save(rollout)
                for part in (actor, critic):
                    part.publish(rollout)
        results.append(
            found
            | {
                "critic": critic_tensors(critic),
                "policy": {name: value.clone() for name, value in actor.backend.weights()},
            }
            | {"steps": critic.backend.schedule.steps, "version": int(actor.versions()[1])}
        )
        actor.shutdown()
    if rank == 0:
        torch.save(results, out)
