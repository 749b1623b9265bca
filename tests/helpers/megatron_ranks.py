"""What a rank does in the tests of the Megatron back end; at module level, so that new processes can import it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.managers
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lab.testkit import trainer
from slime.args import Arguments
from slime.backends.trainer.host_memory import storage_of
from tests.helpers import gradient_cases, megatron_hooks

CPU = torch.device("cpu")


def megatron_args(model: str, **changes: Any) -> Arguments:
    """Return the trainer's arguments for the Megatron back end."""
    chosen = {"train_backend": "megatron", "transformer_impl": "local"}
    return trainer.trainer_args(model).changed(**chosen | changes)


def parity(rank: int, world_size: int, cases: list[tuple[str, dict[str, Any]]], out: str) -> None:
    """For each ``(model folder, changes)`` write what a run of three steps gives: a dictionary per case."""
    from megatron.core import parallel_state

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}.store", rank=rank, world_size=world_size)
    results = []
    for model, changes in cases:
        results.append(_three_steps(megatron_args(model, **changes), rank, world_size, model))
        parallel_state.destroy_model_parallel()
    if rank == 0:
        torch.save(results, out)


def _three_steps(args: Arguments, rank: int, world_size: int, path: str) -> dict[str, Any]:
    from slime.algorithms.advantages import compute_advantages
    from slime.arguments import placement
    from slime.backends.megatron_utils import parallel, train_step
    from slime.backends.megatron_utils.config import read_config, shape_of
    from slime.backends.megatron_utils.model import build_model, data_parallel, unwrapped
    from slime.backends.megatron_utils.state import apply_gradients, build_optimizer
    from slime.backends.megatron_utils.weights import full_weights
    from slime.backends.trainer.micro_batch import RolloutShard
    from slime.backends.trainer.schedule import Schedule

    parallel.join(args, CPU)
    shape = shape_of(read_config(path))
    model = data_parallel(*build_model(args, path, device=CPU), device=CPU)
    optimizer = build_optimizer(args, model, device=CPU)
    start = {name: value.clone() for name, value in full_weights(unwrapped(model), shape)}
    copies = placement.data_parallel_size(args, world_size)
    mine = trainer.shards(args, trainer.train_data(), copies)[placement.data_parallel_rank(args, rank, world_size)]
    shard = RolloutShard(mine)
    shard.set_computed("log_probs", train_step.log_prob_pass(args, model, shard, CPU, shape.vocab_size))
    if args.loss_type != "sft_loss":
        advantages, returns = compute_advantages(args, shard.fields, _no_sum)
        shard.set_computed("advantages", advantages)
        shard.set_computed("returns", returns)
    found: list[Any] = [None] * world_size
    dist.all_gather_object(found, dict(zip(mine["partition"], shard.fields["log_probs"], strict=True)))
    schedule, metrics, gradients = Schedule(args, 10), [], {}
    for number in range(3):
        loss_of = train_step.policy_loss_of(args, model, shard, CPU, shape.vocab_size)
        step = train_step.backward_pass(args, model, shard, 0, CPU, loss_of)
        if number == 0:
            share_gradients(model)
            gradients = {name: value.clone() for name, value in full_weights(unwrapped(model), shape, of=gradient_of)}
        step["grad_norm"] = apply_gradients(model, optimizer, schedule, args.clip_grad, device=CPU)[0]
        metrics.append(step)
    return {
        "start": start,
        "log_probs": {key: value for part in found for key, value in part.items()},
        "metrics": metrics,
        "gradients": gradients,
        "after": {name: value.clone() for name, value in full_weights(unwrapped(model), shape)},
    }


def _no_sum(values: Tensor) -> Tensor:
    raise AssertionError("no statistics over ranks are needed here")


def gradient_of(parameter: Tensor) -> Tensor:
    return parameter.main_grad  # pyright: ignore[reportAttributeAccessIssue]


def share_gradients(model: Any) -> None:
    """After the reduce-scatter each data-parallel rank has its slice of the gradients: gather the others'."""
    for buffer in [*model.buffers, *model.expert_parallel_buffers]:
        for bucket in buffer.buckets:
            group = buffer.data_parallel_group
            slices = list(bucket.grad_data.chunk(dist.get_world_size(group)))
            own = slices[dist.get_rank(group)].clone()
            gathered = [torch.empty_like(own) for _ in slices]
            dist.all_gather(gathered, own, group=group)
            bucket.grad_data.copy_(torch.cat(gathered))


def run_actors(rank: int, world_size: int, runs: list[dict[str, Any]], model: str, out: str) -> None:
    """One actor after the other: each trains and saves the rollouts of its run; write what became of it, per run.

    A run has ``rollouts``, and changes of the arguments under ``changes``. In one that ``leaves`` the trainer's memory is on the
    host between rollouts.
    """
    from slime.arguments import placement
    from slime.backends.megatron_utils.backend import MegatronTrainActor

    warnings.filterwarnings("ignore")
    multiprocessing.managers.BaseManager.start = _no_process_of_its_own
    results = []
    for number, plan in enumerate(runs):
        args = megatron_args(model, **plan["changes"])
        actor = MegatronTrainActor(world_size, rank, "127.0.0.1", trainer.meeting_port(rank, f"{out}.{number}"))
        start = actor.init(args)
        leaves = plan.get("leaves", False)
        before = _pushed(actor, leaves)
        metrics = []
        copies = placement.data_parallel_size(args, world_size)
        place = placement.data_parallel_rank(args, rank, world_size)
        for rollout in plan["rollouts"]:
            metrics.append(actor.train(rollout, trainer.shards(args, trainer.train_data(seed=rollout), copies)[place]))
            actor.save(rollout)
            actor.publish(rollout)
        after = _pushed(actor, leaves)
        results.append(
            {
                "start": start,
                "before": before,
                "after": after,
                "metrics": metrics,
                "steps": actor.backend.schedule.steps,
            }
            | {"sent": {name: value.clone() for name, value in actor.backend.pushed_weights()}}
            | {"calls": megatron_hooks.calls(), "left": [child.name for child in multiprocessing.active_children()]}
        )
        actor.shutdown()
    if rank == 0:
        torch.save(results, out)


def _no_process_of_its_own(*_: Any, **__: Any) -> None:
    raise AssertionError("a checkpoint needs no process that answers others")


def _pushed(actor: Any, leaves: bool) -> dict[str, Tensor]:
    """What a push sends, by name; if it ``leaves``, while nothing of the trainer has memory."""
    if leaves:
        actor.offload()
        left = [tensor for tensors in actor.backend.device_tensors() for tensor in tensors]
        assert len(left) > len(list(actor.backend.model.parameters()))
        assert not any(storage_of(tensor).nbytes() for tensor in left)
    weights = {name: value.clone() for name, value in actor.backend.weights()}
    if leaves:
        actor.onload()
    return weights


def randomise_lora(model: Any) -> None:
    """Fill the adapters with the same random values on any number of ranks."""
    from slime.backends.megatron_utils.parallel import groups

    size = groups().get_tensor_model_parallel_world_size()
    for linear in model.adapters.linears():
        for name in linear.targets:
            generator = torch.Generator().manual_seed(len(f"{linear.prefix}{name}") + int(linear.prefix.split(".")[2]))
            (rank, inner), (outer, _) = (side.shape for side in linear.pair(name))
            inner, outer = (inner * size, outer) if linear.is_row else (inner, outer * size)
            values = [torch.randn(shape, generator=generator) * 0.1 for shape in ((rank, inner), (outer, rank))]
            linear.put(name, *values)


def plain_names(adapters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Under the names of the reference: module name, ``.lora_A`` or ``.lora_B``."""
    return {
        name.removeprefix("base_model.model.").removesuffix(".weight"): value.clone()
        for name, value in adapters.items()
    }


def gradients_of_losses(rank: int, world_size: int, cases: list[dict[str, Any]], model: str, out: str) -> None:
    """For each case take a step of the actor; write ``(metrics, gradients, adapters)`` of each."""
    from slime.arguments import placement
    from slime.backends.megatron_utils import train_step
    from slime.backends.megatron_utils.backend import MegatronTrainActor
    from slime.backends.megatron_utils.model import unwrapped
    from slime.backends.megatron_utils.weights import adapter_weights, full_weights

    warnings.filterwarnings("ignore")
    original = train_step.apply_gradients
    results = []
    for number, changes in enumerate(cases):
        args = megatron_args(model, **changes)
        actor = MegatronTrainActor(world_size, rank, "127.0.0.1", trainer.meeting_port(rank, f"{out}.{number}"))
        actor.init(args)
        gradients: dict[str, Tensor] = {}
        adapters: dict[str, Tensor] = {}
        if args.use_lora:
            randomise_lora(unwrapped(actor.backend.model))
            adapters = plain_names(adapter_weights(unwrapped(actor.backend.model)))
            actor.backend.optimizer.reload_model_params()

        def capture(wrapped, *rest, actor=actor, gradients=gradients, **named):
            share_gradients(wrapped)
            if actor.args.use_lora:
                gradients |= plain_names(adapter_weights(unwrapped(wrapped), of=gradient_of))
            else:
                whole = full_weights(unwrapped(wrapped), actor.backend.shape, of=gradient_of)
                gradients |= {name: value.clone() for name, value in whole}
            return original(wrapped, *rest, **named)

        train_step.apply_gradients = capture
        shards = trainer.shards(args, gradient_cases.data_of(args), placement.data_parallel_size(args, world_size))
        metrics = actor.train(0, shards[placement.data_parallel_rank(args, rank, world_size)])
        train_step.apply_gradients = original
        results.append((metrics, gradients, adapters))
        actor.shutdown()
    if rank == 0:
        torch.save(results, out)
