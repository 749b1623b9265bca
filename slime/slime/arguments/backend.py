"""The training back end: flags of Megatron, which back end a model gets and why, and the replay of a mixture's routing."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from slime.args import Arguments
from slime.arguments.algorithm import critic_gpus
from slime.arguments.model_shape import MODEL_SHAPE, number_of_experts, text_config
from slime.arguments.option import NOT_INSTALLED, Group, Option, flag_of
from slime.arguments.placement import pipeline_stages
from slime.arguments.plugins import asked_values

MEGATRON = Group(
    "Megatron (each flag implies --train-backend megatron)",
    (
        Option("--tensor-model-parallel-size", "ranks that split every layer", int, 1),
        Option("--sequence-parallel", "tensor-parallel ranks also split the sequence between layers", bool),
        Option("--pipeline-model-parallel-size", "ranks that each hold some layers", int, 1),
        Option("--context-parallel-size", "ranks that split every sequence; for long sequences", int, 1),
        Option("--expert-model-parallel-size", "ranks that the experts are divided among", int, 1),
        Option(
            "--expert-tensor-parallel-size", "ranks that split each expert; default: --tensor-model-parallel-size", int
        ),
        Option(
            "--transformer-impl",
            "layers in plain torch (local) or Transformer Engine (GPU); default: transformer_engine on a GPU if it is "
            "installed, otherwise and for LoRA local",
            str,
            None,
            ("local", "transformer_engine"),
        ),
        Option(
            "--attention-backend",
            "attention kernel of Transformer Engine",
            str,
            "auto",
            ("auto", "flash", "fused", "unfused"),
        ),
        Option("--recompute-granularity", "recompute activations", str, None, ("full", "selective")),
        Option(
            "--recompute-method", "layers that --recompute-granularity full recomputes", str, None, ("uniform", "block")
        ),
        Option("--recompute-num-layers", "layers per recomputed unit (uniform), or how many (block)", int),
        Option("--use-precision-aware-optimizer", "keep moments and float32 weights inside the optimizer (GPU)", bool),
        Option("--optimizer-cpu-offload", "keep optimizer state and step in host memory (GPU)", bool),
        Option("--overlap-cpu-optimizer-d2h-h2d", "overlap the copies of --optimizer-cpu-offload", bool),
        Option("--spec", "layer specification: module and name", str, None, nargs="+"),
        Option("--custom-model-provider-path", "fn(pre_process, post_process) -> GPTModel"),
        Option("--custom-megatron-init-path", "fn(args), called after Megatron creates its process groups"),
        Option(
            "--custom-megatron-before-log-prob-hook-path",
            "fn(args, model, store_prefix), called before each pass without gradients",
        ),
        Option(
            "--custom-megatron-before-train-step-hook-path",
            "fn(args, rollout_id, step_id, model, optimizer, opt_param_scheduler), called before each step",
        ),
    ),
)

TRANSFORMER_ENGINE = "transformer_engine"
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_GPU_ONLY = ("use_precision_aware_optimizer", "optimizer_cpu_offload", "overlap_cpu_optimizer_d2h_h2d")
_SIZES = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("context_parallel_size", "expert_model_parallel_size"),
)
_WHOLE_RESPONSES = ("use_opsm", "custom_tis_function_path", "custom_pg_loss_reducer_function_path")
_FSDP_ONLY = (
    *("ref_update_interval", "reset_optimizer_states", "use_rollout_entropy"),
    *("only_train_params_name_list", "freeze_params_name_list", "lora_kernel"),
    *("unchecked_layers", "kept_attention_layers"),
)


def has_transformer_engine() -> bool:
    """Return whether Transformer Engine is installed; imports nothing."""
    return importlib.util.find_spec(TRANSFORMER_ENGINE) is not None


def derive_megatron(args: Arguments) -> None:
    """Choose the layer implementation: Transformer Engine on a GPU if installed, else and for LoRA plain torch.

    ``transformer_impl_because`` says why a GPU run falls back to plain torch; otherwise empty.
    """
    args.transformer_impl_because = ""
    if args.transformer_impl is not None or args.train_backend != "megatron":
        return
    engine = args.device == "cuda" and not args.use_lora
    args.transformer_impl = "transformer_engine" if engine and has_transformer_engine() else "local"
    if engine and args.transformer_impl == "local":
        unused = (
            "" if args.attention_backend == "auto" else f", and --attention-backend {args.attention_backend} unused"
        )
        args.transformer_impl_because = f"Transformer Engine is not installed{unused}"


def check_megatron(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    if args.train_backend != "megatron":
        given = [option.flag for option in MEGATRON.options if option.is_given(args)]
        if not given:
            return []
        return [
            f"{' '.join(given)} : only with --train-backend megatron. FSDP2 shards the model over all actor GPUs; to recompute "
            "activations use --gradient-checkpointing, to save GPU memory use --fsdp-cpu-offload"
        ]
    checks = (_check_ranks, _check_parts, _check_device, _check_recompute, _check_lora, _check_not_offered)
    return [problem for check in checks for problem in check(args)]


def _check_ranks(args: Arguments) -> list[str]:
    problems = []
    tensor, pipeline = args.tensor_model_parallel_size, args.pipeline_model_parallel_size
    context, experts = args.context_parallel_size, args.expert_model_parallel_size
    sizes = {name: getattr(args, name) for name in _SIZES}
    problems += [f"{flag_of(name)} {size}: give 1 or more" for name, size in sizes.items() if size < 1]
    if problems:
        return problems
    for role, ranks in (("actor", args.actor_num_nodes * args.actor_num_gpus_per_node), ("critic", critic_gpus(args))):
        if ranks % (tensor * pipeline * context):
            problems.append(
                f"{ranks} {role} GPUs are not a multiple of {tensor} tensor x {pipeline} pipeline x {context} "
                f"context parallel ranks; change --{role}-num-gpus-per-node"
            )
        elif ranks // pipeline % (experts * (args.expert_tensor_parallel_size or tensor)):
            problems.append(
                f"--expert-model-parallel-size {experts} does not divide the {role} ranks of a pipeline stage"
            )
    return problems


def _check_parts(args: Arguments) -> list[str]:
    """Check loss options that need whole responses, which a context-parallel custom loss never sees."""
    if args.context_parallel_size < 2 or args.loss_type != "custom_loss":
        return []
    given = [flag_of(name) for name in _WHOLE_RESPONSES if getattr(args, name)]
    if args.advantage_estimator == "gspo":
        given.append("--advantage-estimator gspo")
    if asked := asked_values(args):
        given.append(f"the signature ({', '.join(asked)})")
    return [
        f"{flag} of a custom loss needs whole responses, but --context-parallel-size {args.context_parallel_size} "
        "splits them over ranks; use --context-parallel-size 1"
        for flag in given
    ]


def check_megatron_shape(args: Arguments, config: dict) -> list[str]:
    """Return one line per dimension in ``config.json`` that the ranks cannot split."""
    if args.train_backend != "megatron":
        return []
    config = config.get("text_config", config)
    return [*_check_experts(args, config), *_check_divisions(args, config)]


def _check_experts(args: Arguments, config: dict) -> list[str]:
    tensor, expert_tensor = args.tensor_model_parallel_size, args.expert_tensor_parallel_size
    ranks = args.expert_model_parallel_size
    if not number_of_experts(config):
        return [f"--expert-model-parallel-size {ranks}: {args.hf_checkpoint} has no experts; remove it"] * (ranks > 1)
    problems = [
        "--use-lora of a model with experts is not supported with megatron; use --train-backend fsdp"
    ] * args.use_lora
    if tensor > 1 and not args.sequence_parallel:
        problems.append(f"--tensor-model-parallel-size {tensor} of a model with experts needs --sequence-parallel")
    if ranks == 1 and expert_tensor not in (None, tensor):
        problems.append(
            f"--expert-tensor-parallel-size {expert_tensor} with --tensor-model-parallel-size {tensor} needs "
            "--expert-model-parallel-size 2 or more: otherwise Megatron-core does not sum expert gradients"
        )
    size = config.get("moe_intermediate_size")
    if size and size % (expert_tensor or tensor):
        problems.append(
            f"--expert-tensor-parallel-size {expert_tensor or tensor} does not divide moe_intermediate_size {size} of "
            f"{args.hf_checkpoint}/config.json"
        )
    return problems


def _check_divisions(args: Arguments, config: dict) -> list[str]:
    heads = config.get("num_attention_heads")
    divided = (
        ("num_key_value_heads", config.get("num_key_value_heads", heads), "tensor_model_parallel_size"),
        ("num_attention_heads", heads, "tensor_model_parallel_size"),
        ("intermediate_size", config.get("intermediate_size"), "tensor_model_parallel_size"),
        ("num_hidden_layers", config.get("num_hidden_layers"), "pipeline_model_parallel_size"),
        ("num_experts", number_of_experts(config), "expert_model_parallel_size"),
    )
    return [
        f"{flag_of(name)} {getattr(args, name)} does not divide {key} {value} of {args.hf_checkpoint}/config.json"
        for key, value, name in divided
        if value and getattr(args, name) > 0 and value % getattr(args, name)
    ]


def _check_device(args: Arguments) -> list[str]:
    problems = []
    if args.device == "cpu":
        problems += [f"{flag_of(name)} needs a GPU; remove it" for name in _GPU_ONLY if getattr(args, name)]
        if args.transformer_impl == "transformer_engine":
            problems.append("--transformer-impl transformer_engine needs a GPU; use --transformer-impl local")
    elif not has_transformer_engine():
        problems += _check_no_transformer_engine(args)
    derived = args.transformer_impl_because
    if args.transformer_impl == "local" and args.attention_backend != "auto" and not derived:
        problems.append("--attention-backend has no effect with --transformer-impl local; remove it")
    if args.optimizer_cpu_offload and not args.use_precision_aware_optimizer:
        problems.append("--optimizer-cpu-offload needs --use-precision-aware-optimizer")
    if args.overlap_cpu_optimizer_d2h_h2d and not args.optimizer_cpu_offload:
        problems.append("--overlap-cpu-optimizer-d2h-h2d has no effect without --optimizer-cpu-offload")
    return problems


def _check_no_transformer_engine(args: Arguments) -> list[str]:
    problems = []
    if args.transformer_impl == "transformer_engine":
        problems.append(
            f"--transformer-impl transformer_engine: Transformer Engine {NOT_INSTALLED}; use --transformer-impl local, or install it "
            "(pip install --no-build-isolation transformer_engine[pytorch])"
        )
    if args.use_precision_aware_optimizer and not args.optimizer_cpu_offload:
        problems.append(
            f"--use-precision-aware-optimizer needs the Adam of Transformer Engine: Transformer Engine {NOT_INSTALLED}; remove the flag, or "
            "add --optimizer-cpu-offload"
        )
    return problems


def _check_recompute(args: Arguments) -> list[str]:
    problems = []
    full = args.recompute_granularity == "full"
    if full and not (args.recompute_method and args.recompute_num_layers):
        problems.append("--recompute-granularity full needs --recompute-method uniform --recompute-num-layers 1")
    if not full and (args.recompute_method or args.recompute_num_layers):
        problems.append("--recompute-method and --recompute-num-layers need --recompute-granularity full")
    return problems


def _check_lora(args: Arguments) -> list[str]:
    if not args.use_lora:
        return []
    problems = []
    if args.transformer_impl == "transformer_engine":
        problems.append("--use-lora with --train-backend megatron needs --transformer-impl local")
    if args.lora_dropout:
        problems.append("--lora-dropout is for FSDP2 only; remove it, or use --train-backend fsdp")
    unknown = sorted(set(args.lora_target_modules) - set(LORA_TARGETS))
    if unknown:
        problems.append(
            f"--lora-target-modules {','.join(unknown)}: with --train-backend megatron choose from {','.join(LORA_TARGETS)}"
        )
    return problems


def _check_not_offered(args: Arguments) -> list[str]:
    only_fsdp = [flag_of(name) for name in _FSDP_ONLY if getattr(args, name) not in (None, False)]
    problems = [f"{', '.join(only_fsdp)}: Megatron does not support it; use --train-backend fsdp"] if only_fsdp else []
    if args.gradient_checkpointing:
        problems.append(
            "--gradient-checkpointing is for FSDP2 only; use --recompute-granularity full --recompute-method uniform "
            "--recompute-num-layers 1"
        )
    if args.fsdp_cpu_offload:
        problems.append(
            "--fsdp-cpu-offload is for FSDP2 only; use --use-precision-aware-optimizer --optimizer-cpu-offload"
        )
    if not args.pack_sequences:
        problems.append("--no-pack-sequences is not supported with megatron, which always packs; remove it")
    if args.fused_kernels != "none":
        problems.append("--fused-kernels is for FSDP2 only; Transformer Engine fuses Megatron's layers; remove it")
    if args.attn_implementation != "sdpa":
        problems.append("--attn-implementation is for FSDP2 only; use --attention-backend")
    if args.spec and len(args.spec) != 2:
        problems.append("--spec takes two words: a module and a name in it")
    if args.spec and args.custom_model_provider_path:
        problems.append("--spec has no effect with --custom-model-provider-path; remove one of them")
    return problems


_SHOWN = 3


def derive_backend(args: Arguments, words: Sequence[str]) -> None:
    """Set ``train_backend`` if it was not given, and ``train_backend_because`` to the flags that decided.

    Args:
        args: flag values; a value other than the default counts as given.
        words: words of the command line and of its ``--config`` file; a flag among them counts whatever its value.
    """
    args.train_backend_because = ()
    if args.train_backend is not None:
        return
    typed = {word.split("=", 1)[0] for word in words}
    args.train_backend_because = tuple(
        option.flag
        for option in (*MODEL_SHAPE.options, *MEGATRON.options)
        if option.flag in typed or option.is_given(args)
    )
    args.train_backend = "megatron" if args.train_backend_because else "fsdp"


def backend_line(args: Arguments) -> str:
    """Return the start-up line that names the back end, and the flags that implied it."""
    because = args.train_backend_because
    missing = args.transformer_impl_because
    layers = f" with layers of plain torch ({missing})" if missing else ""
    if not because:
        return f"trainer  {args.train_backend}{layers}"
    more = f" and {len(because) - _SHOWN} more" if len(because) > _SHOWN else ""
    return (
        f"trainer  {args.train_backend}{layers}, because --train-backend is not given and {', '.join(because[:_SHOWN])}{more} "
        "are Megatron flags; add --train-backend fsdp to use FSDP2"
    )


# Data sources whose samples never record experts.
_WITHOUT_EXPERTS = ("openclaw.training.rollout.LedgerDataSource",)
# SGLang indexes its expert record by the token's slot in the GPU's cache, and records the layers of one stage only.
_CACHES_ELSEWHERE = ("sglang_enable_hierarchical_cache", "sglang_enable_lmcache")


def derive_routing_replay(args: Arguments) -> None:
    """Enable --use-routing-replay when --use-rollout-routing-replay is given."""
    args.use_routing_replay |= args.use_rollout_routing_replay


def check_routing_replay(args: Arguments, config: dict | None) -> list[str]:
    """Return the problems, one line each; ``config`` is the checkpoint's, None if it is on another machine."""
    if not args.use_routing_replay:
        return []
    flag = "--use-rollout-routing-replay" if args.use_rollout_routing_replay else "--use-routing-replay"
    if config is not None and not number_of_experts(text_config(config)):
        return [f"{flag}: {args.hf_checkpoint} has no experts; remove it"]
    if args.train_backend != "megatron":
        return [f"{flag} needs --train-backend megatron, the only back end that trains experts"]
    if args.loss_type == "sft_loss":
        return [f"{flag} has no effect with --loss-type sft_loss, whose data no policy sampled; remove it"]
    live = args.data_source_path in _WITHOUT_EXPERTS
    if args.use_rollout_routing_replay:
        problems = [
            f"{flag}: with {word} an engine reports experts that it did not sample with; change one of them"
            for word in _wrong_reports(args)
        ]
        if live:
            problems.append(
                f"{flag}: turns of conversations ({args.data_source_path}) record no experts; use --use-routing-replay "
                "without --use-rollout-logprobs"
            )
        return problems
    if args.use_rollout_logprobs or not args.compute_advantages_and_returns:
        skips = "--use-rollout-logprobs" if args.use_rollout_logprobs else "--disable-compute-advantages-and-returns"
        instead = "remove that" if live and args.use_rollout_logprobs else "use --use-rollout-routing-replay"
        return [f"{flag} records experts in the pass of old logprobs, which {skips} skips; {instead}"]
    return []


def _wrong_reports(args: Arguments) -> list[str]:
    """Return engine flags that silently corrupt the expert record, which follows one GPU's cache and one stage."""
    stages = pipeline_stages(args)
    flags = [f"--sglang-pp-size {stages}"] if stages > 1 else []
    guesser = args.sglang_speculative_algorithm
    if guesser == "NGRAM":
        flags.append("--sglang-speculative-algorithm NGRAM")
    elif guesser and args.sglang_speculative_eagle_topk != 1:  # accepted drafts of a tree move within the cache
        flags.append(f"--sglang-speculative-algorithm {guesser} and no --sglang-speculative-eagle-topk 1")
    return [*flags, *(flag_of(name) for name in _CACHES_ELSEWHERE if getattr(args, name))]
