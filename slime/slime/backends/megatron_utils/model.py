"""Build this rank's Megatron GPT model, load its weights, and wrap it for data parallelism.

Guarantees: on the last pipeline stage the model returns final hidden states, so no caller holds the logits of a whole
sequence unless it requests them. The model has the checkpoint's weights on every rank.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slime.args import Arguments
from slime.backends.megatron_utils.config import (
    padded_vocab_size,
    read_config,
    rope_theta,
    shape_of,
    transformer_config,
)
from slime.backends.megatron_utils.cpu_device import model_device
from slime.backends.megatron_utils.load_hf import load_hf_weights
from slime.backends.megatron_utils.parallel import groups
from slime.utils.misc import load_function

# There is no position table, but Megatron requires a number.
_MAX_SEQUENCE_LENGTH = 4096


def layer_spec(args: Arguments, config: Any) -> Any:
    """Return the layer specification: ``--spec``, Transformer Engine's or plain torch's.

    ``--spec MODULE NAME`` is a specification, or a function of ``(args, config, vp_stage)`` that returns one.
    """
    if args.spec:
        found = load_function(".".join(args.spec))
        return found(args, config, None) if callable(found) else found
    if args.transformer_impl == "transformer_engine":
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec

        return get_gpt_layer_with_transformer_engine_spec(
            num_experts=config.num_moe_experts,
            moe_grouped_gemm=config.moe_grouped_gemm,
            qk_layernorm=config.qk_layernorm,
        )
    from slime.backends.megatron_utils.local_layers import local_layer_spec

    return local_layer_spec(config)


def _block_spec(args: Arguments, config: Any) -> Any:
    """Return this stage's layer specification; without Transformer Engine it has our final norm."""
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

    spec = layer_spec(args, config)
    if args.transformer_impl == "transformer_engine" or isinstance(spec, TransformerBlockSubmodules):
        return spec
    from slime.backends.megatron_utils.local_layers import Norm

    norm: Any = Norm
    return TransformerBlockSubmodules(layer_specs=[spec] * get_num_layers_to_build(config), layer_norm=norm)


def build_model(
    args: Arguments, path: str, *, device: torch.device, dtype: torch.dtype | None = None, lm_head: bool = True
) -> tuple[Any, Any]:
    """Return this stage's model with the weights of the Hugging Face folder ``path``, and its configuration.

    Without ``lm_head`` the last stage has no output layer, and the embedding is not tied.
    """
    from megatron.core.models.gpt.gpt_model import GPTModel

    hf = read_config(path)
    shape = shape_of(hf)
    stage = {
        "pre_process": groups().is_pipeline_first_stage(),
        "post_process": groups().is_pipeline_last_stage(),
    }
    with model_device(device):
        config = transformer_config(args, hf, dtype)
        if args.custom_model_provider_path:
            provider = load_function(args.custom_model_provider_path)
            extra = {"vp_stage": None} if "vp_stage" in inspect.signature(provider).parameters else {}
            model = provider(**stage, **extra)
            config = model.config
        else:
            model = GPTModel(
                config,
                _block_spec(args, config),
                vocab_size=padded_vocab_size(shape.vocab_size, args.tensor_model_parallel_size),
                max_sequence_length=_MAX_SEQUENCE_LENGTH,
                position_embedding_type="rope",
                rotary_base=rope_theta(hf),  # pyright: ignore[reportArgumentType]
                share_embeddings_and_output_weights=shape.tied and lm_head,
                **stage,
            )
        if not lm_head:
            model.share_embeddings_and_output_weights = False  # one of --custom-model-provider-path may be tied
            if model.post_process:
                del model.output_layer
        model = model.to(device)
        load_hf_weights(model, Path(path), shape)
        if config.bf16:
            from megatron.core.transformer.module import Float16Module

            model = Float16Module(config, model)
    unwrapped(model)._postprocess = _hidden_states
    return model, config


def _hidden_states(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    return hidden_states


def unwrapped(model: Any) -> Any:
    """Return the GPT model inside its wrappers."""
    while hasattr(model, "module"):
        model = model.module
    return model


def data_parallel(model: nn.Module, config: Any, *, device: torch.device) -> Any:
    """Wrap ``model`` to average gradients over its copies, in one buffer that the optimizer shards."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads

    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,
        use_distributed_optimizer=True,
        check_for_nan_in_grad=False,
    )
    config.finalize_model_grads_func = finalize_model_grads
    with model_device(device):
        return DistributedDataParallel(config, ddp, model)
