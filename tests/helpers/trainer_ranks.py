"""What a rank does in the tests of the trainer; at module level, so that new processes can import it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from lab.testkit import trainer
from slime.backends.fsdp_utils import backend
from slime.backends.fsdp_utils.backend import FSDPCriticActor, FSDPTrainActor
from slime.backends.fsdp_utils.model import gather
from slime.backends.trainer.host_memory import storage_of
from slime.exceptions import TrainerError
from tests.helpers import gradient_cases
from tests.helpers.idle_ranks import Alone
from tests.helpers.ppo_ranks import ppo_rollout

CPU = torch.device("cpu")


def start_actor(args: Any, rank: int = 0, world_size: int = 1, port: int = 0) -> tuple[FSDPTrainActor, int]:
    """Return a ready actor and the rollout it starts with; one that is alone needs no ``port``."""
    actor = FSDPTrainActor(world_size, rank, "127.0.0.1", port)
    return actor, actor.init(args)


@torch.no_grad()
def assign(parameter: Tensor, value: Tensor) -> None:
    """Give a parameter the whole ``value``, on any number of ranks."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(parameter, DTensor):
        value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
    parameter.copy_(value)


def randomise_lora(actor: FSDPTrainActor) -> None:
    """Fill the adapters with the same random values on any number of ranks."""
    generator = torch.Generator().manual_seed(5)
    for name, parameter in actor.backend.model.hf.named_parameters():
        if ".lora_" in name:
            assign(parameter, torch.randn(parameter.shape, generator=generator) * 0.1)


def full_parameters(actor: FSDPTrainActor, of: Callable[[Tensor], Tensor | None] = lambda p: p) -> dict[str, Tensor]:
    """Return whole copies of the trainable parameters (or of what ``of`` makes of them), by name."""
    result = {}
    for name, parameter in actor.backend.model.hf.named_parameters():
        value = of(parameter)
        if parameter.requires_grad and value is not None:
            result[name.replace(".default.weight", "")] = gather(value, CPU).clone()
    return result


def gradients_of_cases(rank: int, world_size: int, cases: list[dict[str, Any]], model: str, out: str) -> None:
    """For each case write loss, gradients, and adapters: ``{case index: (metrics, gradients, adapters)}``."""
    results = {}
    original = backend.apply_gradients
    for index, changes in enumerate(cases):
        args = trainer.trainer_args(model, **changes)
        actor, _ = start_actor(args, rank, world_size, trainer.meeting_port(rank, f"{out}.{index}"))
        if args.use_lora:
            randomise_lora(actor)
        captured: dict[str, Tensor] = {}

        def capture(policy, optimizer, schedule, clip_grad, actor=actor, captured=captured, **hold):
            captured |= full_parameters(actor, lambda parameter: parameter.grad)
            return original(policy, optimizer, schedule, clip_grad, **hold)

        adapters = full_parameters(actor) if args.use_lora else {}
        backend.apply_gradients = capture
        metrics = actor.train(0, trainer.shards(args, gradient_cases.data_of(args), world_size)[rank])
        backend.apply_gradients = original
        results[index] = (metrics, captured, adapters)
        actor.shutdown()
    if rank == 0:
        torch.save(results, out)


def gradients_of_models(rank: int, world_size: int, work: list[tuple[list[dict[str, Any]], str, str]]) -> None:
    """Do `gradients_of_cases` for one model after the other."""
    for arguments in work:
        gradients_of_cases(rank, world_size, *arguments)


def train_save_train(
    rank: int, world_size: int, port: int, changes: dict[str, Any], model: str, steps: list[int], out: str
) -> None:
    """Start (or resume), train the rollouts ``steps`` and save after each; write start, parameters, and versions."""
    args = trainer.trainer_args(model, **changes)
    actor, start = start_actor(args, rank, world_size, port)
    before = full_parameters(actor)
    metrics = []
    for step in steps:
        shard = trainer.shards(args, trainer.train_data(seed=step), world_size)[rank]
        metrics.append(actor.train(step, shard))
        actor.save(step)
        actor.publish(step)
    after = full_parameters(actor)
    random_number = float(torch.rand(()))
    if dist.get_rank() == 0:
        torch.save(
            {
                "start": start,
                "before": before,
                "after": after,
                "version": int(actor.versions()[0]),
                "lr_steps": actor.backend.schedule.steps,
                "random": random_number,
                "metrics": metrics,
            },
            out,
        )
    actor.shutdown()


def stay_and_leave(rank: int, world_size: int, changes: dict[str, Any], model: str, place: str) -> None:
    """Train as a rank that stays on its device and as one that leaves it between rollouts; fail unless they are equal.

    While it is away none of its tensors has memory; what a push sends is the same, and so are weights and moments after every step.
    """
    outcomes = []
    for leaves in (False, True):
        args = trainer.trainer_args(model, **changes)
        actor, _ = start_actor(args, rank, world_size, trainer.meeting_port(rank, f"{place}.{leaves}"))
        found: dict[str, Tensor] = {}
        for step in range(3):
            if leaves:
                actor.offload()
                left = [tensor for tensors in actor.backend.device_tensors() for tensor in tensors]
                assert len(left) > len(list(actor.backend.model.parameters()))
                assert not any(storage_of(tensor).nbytes() for tensor in left)
                with pytest.raises(TrainerError, match="call onload first"):
                    actor.train(step, {})
            sent = {**dict(actor.backend.pushed_weights()), **dict(actor.backend.weights())}
            found |= {f"push {step} {name}": value.clone() for name, value in sent.items()}
            if leaves:
                actor.onload()
            actor.train(step, trainer.shards(args, trainer.train_data(seed=step), world_size)[rank])
        for number, state in enumerate(actor.backend.optimizer.state.values()):
            found |= {f"{number} {name}": gather(value, CPU).clone() for name, value in state.items()}
        outcomes.append(found | full_parameters(actor))
        actor.shutdown()
    stayed, left = outcomes
    assert set(stayed) == set(left)
    different = [name for name, value in stayed.items() if not torch.equal(value, left[name])]
    assert not different, different


class CriticBesideActor(FSDPCriticActor):
    """A critic in the process of a policy's rank, whose group it shares."""

    def __init__(self, world_size: int, rank: int) -> None:
        super().__init__(world_size, rank, "")
        self.process = Alone(world_size, rank, "")


def start_critic(args: Any, rank: int, world_size: int, start: int) -> CriticBesideActor:
    """Return a ready critic; an actor must have been started."""
    critic = CriticBesideActor(world_size, rank)
    critic.init(args)
    critic.load_checkpoint(start)
    return critic


def whole(model: Any, of: Callable[[Tensor], Tensor | None] = lambda p: p) -> dict[str, Tensor]:
    """Return whole copies of a model's parameters (or of what ``of`` makes of them), by name."""
    found = {name: of(parameter) for name, parameter in model.named_parameters()}
    return {name: gather(value, CPU).clone() for name, value in found.items() if value is not None}


def ppo_gradients(rank: int, world_size: int, port: int, changes: dict[str, Any], model: str, out: str) -> None:
    """Take one step with a random value head; write metrics, head, and the gradients of critic and policy."""
    args = trainer.trainer_args(model, **changes)
    actor, start = start_actor(args, rank, world_size, port)
    critic = start_critic(args, rank, world_size, start)
    generator = torch.Generator().manual_seed(5)
    for parameter in critic.backend.model.head.parameters():
        assign(parameter, torch.randn(parameter.shape, generator=generator) * 0.1)
    head = whole(critic.backend.model.head)
    captured: list[dict[str, Tensor]] = []
    original = backend.apply_gradients

    def capture(model, optimizer, schedule, clip_grad, **hold):
        captured.append(whole(model, lambda parameter: parameter.grad))
        return original(model, optimizer, schedule, clip_grad, **hold)

    backend.apply_gradients = capture
    try:
        shard = trainer.shards(args, trainer.train_data(), world_size)[rank]
        metrics = ppo_rollout(actor, critic, 0, shard)
    finally:
        backend.apply_gradients = original
    if rank == 0:
        torch.save((metrics, head, *captured), out)
    actor.shutdown()
