"""What a Megatron rank changes and stores: its distributed AdamW, checkpoints, and host copies of its weights.

Each data-parallel rank owns a slice of the moments and of the float32 weights. Guarantees: a step with a NaN or infinite
gradient norm changes nothing (weights, moments, schedule) on any rank, because the global norm decides. Weight decay
applies to matrices only.

A checkpoint is Megatron's distributed one ("torch_dist"). Weights and optimizer are stored per parameter with their place
in the whole tensor, so any number of tensor, pipeline, context, expert and data parallel ranks can load them. A LoRA run
stores only its adapters. A checkpoint without an optimizer (a converted one) restores only weights.
"""

from __future__ import annotations

import logging
import math
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slime.args import Arguments
from slime.backends.megatron_utils.model import unwrapped
from slime.backends.megatron_utils.parallel import groups, model_device
from slime.backends.megatron_utils.weights import adapters_of
from slime.backends.trainer.schedule import Schedule
from slime.checkpoints.checkpoint_folder import read_meta
from slime.exceptions import CheckpointError

logger = logging.getLogger(__name__)


def build_optimizer(args: Arguments, model: Any, *, device: torch.device) -> Any:
    """Return the optimizer of a data-parallel wrapped ``model``."""
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides

    config = OptimizerConfig(
        optimizer="adam",
        lr=args.lr,
        min_lr=args.min_lr,
        weight_decay=args.weight_decay,
        adam_beta1=args.adam_beta1,
        adam_beta2=args.adam_beta2,
        adam_eps=args.adam_eps,
        clip_grad=args.clip_grad,
        bf16=model.config.bf16,
        params_dtype=model.config.params_dtype,
        use_distributed_optimizer=True,
        use_precision_aware_optimizer=args.use_precision_aware_optimizer,
        optimizer_cpu_offload=args.optimizer_cpu_offload,
        optimizer_offload_fraction=1.0 if args.optimizer_cpu_offload else 0.0,
        overlap_cpu_optimizer_d2h_h2d=args.overlap_cpu_optimizer_d2h_h2d,
    )
    with model_device(device):
        optimizer = get_megatron_optimizer(
            config,
            [model],
            config_overrides=get_standard_config_overrides(config),
            use_gloo_process_groups=device.type == "cuda",
        )
    for group in optimizer.param_groups:  # as Megatron's own schedule would
        group["weight_decay"] = args.weight_decay * group.get("wd_mult", 1.0)
    return optimizer


def apply_gradients(
    model: Any, optimizer: Any, schedule: Schedule, clip_grad: float, *, device: torch.device, hold: bool = False
) -> tuple[float, float, bool]:
    """Clip to the global norm ``clip_grad`` (0 or less: no clipping), step, and clear the gradients.

    ``hold``: take no step.

    Returns:
        The norm before clipping, the learning rate, and whether the step was taken.
    """
    from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

    rate = schedule.lr()
    with model_device(device):
        optimizer.prepare_grads()
        norm = float(optimizer.get_grad_norm())
        taken = math.isfinite(norm) and not hold
        if taken:
            for part in getattr(optimizer, "chained_optimizers", [optimizer]):
                decoupled = part.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8
                if clip_grad > 0:
                    clip_grad_by_total_norm_fp32(part.get_parameters(), clip_grad, norm, decoupled)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step_with_ready_grads()
            schedule.steps += 1
        elif not math.isfinite(norm):
            logger.error("gradient norm is %s: skipping this optimizer step, the weights stay unchanged", norm)
        optimizer.zero_grad()
        model.zero_grad_buffer()
    return norm, rate, taken


BACKEND = "megatron"
_FORMAT = "fully_reshardable"


def _metadata() -> dict[str, Any]:
    """Return metadata that stores optimizer tensors whole, so that any other split can read them."""
    copies = groups().get_data_parallel_group(with_context_parallel=True)
    return {
        "distrib_optim_sharding_type": _FORMAT,
        "chained_optim_avoid_prefix": True,
        "dp_cp_group": copies,
    }


def save_state(path: Path, model: Any, optimizer: Any | None, device: torch.device) -> None:
    """Write the weights of the unwrapped ``model``, and ``optimizer`` if given, to the empty folder ``path``; collective."""
    from megatron.core import dist_checkpointing

    with model_device(device):
        state = {"model": _trained(model).sharded_state_dict(metadata=_metadata())}
        if optimizer is not None:
            start_moments(optimizer)
            state["optimizer"] = optimizer.sharded_state_dict(state["model"], metadata=_metadata())
        with _results_in_this_process():
            dist_checkpointing.save(state, str(path))


def _trained(model: Any) -> Any:
    """Return the part of the unwrapped ``model`` that a checkpoint stores: all of it, or its adapters."""
    adapters = adapters_of(model)
    return model if adapters is None else adapters


@contextmanager
def _results_in_this_process() -> Iterator[None]:
    """Give Megatron-core a plain queue for its writers' results.

    By default it starts a process for the queue, which takes seconds and survives a killed rank. Only an asynchronous
    save needs that.
    """
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    results: Any = queue.Queue()
    filesystem_async._results_queue = results
    try:
        yield
    finally:
        filesystem_async._results_queue = None


def load_state(folder: Path, model: Any, optimizer: Any | None, device: torch.device) -> dict[str, Any]:
    """Load checkpoint ``folder`` into the unwrapped ``model`` and ``optimizer``; return its metadata; collective.

    Raises:
        CheckpointError: another back end wrote it, or only one of checkpoint and model has adapters.
    """
    meta = read_meta(folder)
    if meta.get("backend") != BACKEND:
        other = (
            "start a new critic from a Hugging Face folder with --critic-load"
            if meta.get("role") == "critic"
            else "convert it to a Hugging Face folder with slime/tools/convert_fsdp_to_hf.py"
        )
        raise CheckpointError(f"{folder} was not written by Megatron: use --train-backend fsdp, or {other}")
    if meta["lora"] != (adapters_of(model) is not None):
        kind = "LoRA adapters" if meta["lora"] else "full weights"
        raise CheckpointError(f"{folder} holds {kind}: {'add' if meta['lora'] else 'remove'} --use-lora")
    from megatron.core import dist_checkpointing

    held: Any = optimizer if meta["optimizer"] else None
    with model_device(device):
        state: dict[str, Any] = {"model": _trained(model).sharded_state_dict(metadata=_metadata())}
        if held is not None:
            _prepare_torch_adam(held)
            state["optimizer"] = {
                number: part.sharded_state_dict(state["model"], is_loading=True, metadata=_metadata())
                for number, part in enumerate(_parts(held))
            }
        loaded: Any = dist_checkpointing.load(state, str(folder / "state"))
        _trained(model).load_state_dict(loaded["model"])
        if held is not None:
            saved = _saved_groups(loaded["optimizer"])
            for number, part in enumerate(_parts(held)):
                part.load_state_dict(
                    {
                        "optimizer": {
                            "param_groups": [_as_saved(group, saved) for group in part.optimizer.param_groups]
                        },
                        "param_state": loaded["optimizer"][number]["param_state"],
                        "param_state_sharding_type": _FORMAT,
                    }
                )
            _own_steps(held)
        elif optimizer is not None:
            optimizer.reload_model_params()
    return meta


def _parts(optimizer: Any) -> list[Any]:
    """Return the inner distributed optimizers: one, plus one for the experts with expert parallelism."""
    return getattr(optimizer, "chained_optimizers", [optimizer])


def _saved_groups(state: dict[Any, Any]) -> list[dict[str, Any]]:
    """Return the parameter groups of a checkpoint's optimizer, stored as one part or as several by number."""
    parts = [state, *(part for part in state.values() if isinstance(part, dict))]
    return [group for part in parts for group in part.get("optimizer", {}).get("param_groups", [])]


def _as_saved(group: dict[str, Any], saved: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the saved group that matches ``group``, whether or not its experts had their own ranks."""
    like = next(other for other in saved if other.get("wd_mult") == group.get("wd_mult"))
    return {**like, "is_expert_parallel": group["is_expert_parallel"]}


def _torch_adams(optimizer: Any) -> list[Any]:
    """Return the inner distributed optimizers that use torch's AdamW, as without Transformer Engine."""
    return [part for part in _parts(optimizer) if isinstance(part.optimizer, torch.optim.AdamW)]


def start_moments(optimizer: Any) -> None:
    """Create the initial state of optimizers that took no step, such as a policy waiting for its critic.

    Megatron-core's function for Transformer Engine sets no step counts, so it does not work for torch's AdamW.
    """
    for part in _parts(optimizer):
        if isinstance(part.optimizer, torch.optim.AdamW):
            _start_torch_adam(part.optimizer)
        elif part.optimizer is not None and part.init_state_fn is not None:
            part.init_state_fn(part.optimizer, part.config)


def _start_torch_adam(optimizer: torch.optim.AdamW) -> None:
    for parameter in [parameter for group in optimizer.param_groups for parameter in group["params"]]:
        if not optimizer.state[parameter]:
            moments = {name: torch.zeros_like(parameter.data) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] |= {"step": torch.zeros(()), **moments}


def _prepare_torch_adam(optimizer: Any) -> None:
    """Prepare AdamW for loading: create its initial state and provide the step per parameter that Megatron expects.

    Megatron-core 0.16.1 stores the step with the parameter groups and loses it when it loads tensor by tensor.
    """
    for part in _torch_adams(optimizer):
        _start_torch_adam(part.optimizer)
        load_one = part._set_main_param_and_optimizer_states

        def load_with_step(
            model_parameter: Any, tensors: dict[str, Any], part: Any = part, load: Any = load_one
        ) -> None:
            group, place = part.model_param_group_index_map[model_parameter]
            parameter = part.optimizer.param_groups[group]["params"][place]
            load(model_parameter, {"step": part.optimizer.state[parameter]["step"].clone(), **tensors})

        part._set_main_param_and_optimizer_states = load_with_step


def _own_steps(optimizer: Any) -> None:
    """Give each parameter its own step tensor; AdamW would increment Megatron's shared one once per parameter."""
    for part in _torch_adams(optimizer):
        for state in part.optimizer.state.values():
            state["step"] = state["step"].clone()


def tensors_of(model: Any, optimizer: Any) -> Iterator[Tensor]:
    """Yield parameters (views of Megatron's flat buffers), module buffers, and the optimizer's weights and moments."""
    yield from model.parameters()
    yield from unwrapped(model).buffers()
    for inner in optimizers_of(optimizer):
        for group in inner.param_groups:
            yield from group["params"]
        for state in inner.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def optimizers_of(optimizer: Any) -> list[Any]:
    """Return torch's optimizers inside Megatron's; none if this rank's part of the model has nothing to train."""
    parts = getattr(optimizer, "chained_optimizers", [optimizer])
    return [part.optimizer for part in parts if part.optimizer is not None]


def gradients_of(model: Any) -> Iterator[Tensor]:
    """Yield the flat gradients, which are zero between two steps."""
    for buffer in [*model.buffers, *model.expert_parallel_buffers]:
        yield buffer.grad_data


HostWeights = dict[str, Tensor]


def host_weights(model: Any) -> HostWeights:
    """Copy every parameter of ``model`` to the CPU."""
    return {name: parameter.detach().to("cpu", copy=True) for name, parameter in model.named_parameters()}


@torch.no_grad()
def put_weights(model: Any, snapshot: HostWeights) -> None:
    """Copy the values of ``snapshot`` into ``model`` in place."""
    for name, parameter in model.named_parameters():
        parameter.copy_(snapshot[name])


@contextmanager
def weights_of(model: Any, snapshot: HostWeights) -> Iterator[None]:
    """Run the block with the weights of ``snapshot``, then restore the model's own exactly."""
    own = host_weights(model)
    put_weights(model, snapshot)
    try:
        yield
    finally:
        put_weights(model, own)
