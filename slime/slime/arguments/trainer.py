"""Flags of trainer, optimizer and LoRA, and of the push of weights to the engines; with their checks."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from slime.args import Arguments
from slime.arguments.algorithm import STATE_ELSEWHERE
from slime.arguments.option import NOT_INSTALLED, Group, Option, comma_list, flag_of
from slime.arguments.placement import pipeline_stages

TRAINER = Group(
    "trainer",
    (
        Option(
            "--train-backend",
            "training back end; default: megatron if a flag of Megatron or of the model's shape is given, else fsdp; tinker, fireworks: a service",
            str,
            None,
            ("fsdp", "megatron", "tinker", "fireworks"),
        ),
        Option(
            "--train-dtype",
            "compute precision; default: bfloat16 on CUDA, float32 on a CPU",
            str,
            None,
            ("float32", "bfloat16"),
        ),
        Option(
            "--attn-implementation",
            "attention kernel of FSDP2; sdpa comes with every torch, which picks a kernel; cudnn, varlen: torch's, of packs only; auto: the fastest of these "
            "three for a pack's lengths, by a table of an H100",
            str,
            "sdpa",
            ("sdpa", "eager", "cudnn", "varlen", "auto", "flash_attention_2", "flash_attention_4"),
        ),
        Option(
            "--fused-kernels",
            "norms, rotary embedding and SwiGLU of FSDP2 in few kernels: liger (Liger-Kernel; Qwen2.5 and Qwen3) or compile "
            "(torch.compile of each layer; needs an attention of one call per pack)",
            str,
            "none",
            ("none", "liger", "compile"),
        ),
        Option("--gradient-checkpointing", "recompute activations in the backward pass", bool),
        Option(
            "--unchecked-layers",
            "last layers that --gradient-checkpointing leaves out; default: as many as the memory plan of a GPU allows, on a CPU 0",
            int,
        ),
        Option(
            "--kept-attention-layers",
            "layers of --gradient-checkpointing that keep attention's output; default: as many as the memory plan of a GPU allows, "
            "on a CPU 0",
            int,
        ),
        Option(
            "--fsdp-cpu-offload",
            "keep parameters and optimizer state in host memory",
            bool,
            aliases=("--offload-optimizer-state",),
        ),
        Option("--only-train-params-name-list", "train only parameters that match these patterns", nargs="+"),
        Option("--freeze-params-name-list", "train all parameters except those that match these patterns", nargs="+"),
        Option("--deterministic-mode", "use only deterministic kernels; slower", bool),
        Option("--seed", "seed of all random numbers in the trainer", int, 1234),
        Option("--micro-batch-size", "samples per micro-batch without --use-dynamic-batch-size", int, 1),
        Option("--global-batch-size", "samples per optimizer step", int),
        Option("--num-steps-per-rollout", "optimizer steps per rollout; sets --global-batch-size", int),
        Option("--use-dynamic-global-batch-size", "split each rollout's samples evenly over its steps", bool),
        Option(
            "--disable-rollout-trim-samples", "train on samples that do not fill a batch in a smaller last step", bool
        ),
        Option("--use-dynamic-batch-size", "fill micro-batches by tokens", bool),
        Option("--max-tokens-per-gpu", "tokens per micro-batch and rank", int),
        Option("--pack-sequences", "pack the samples of a micro-batch into one sequence", bool, True),
        Option(
            "--log-probs-chunk-size",
            "rows of logits computed at a time: same result, less memory; -1: 256 MiB in float32",
            int,
            1024,
        ),
        Option(
            "--logprob-kernel",
            "what walks over the vocabulary for log probabilities: triton (one kernel per block and pass) or torch; "
            "default: triton on CUDA, torch on a CPU",
            str,
            None,
            ("triton", "torch"),
        ),
        Option("--calculate-per-token-loss", "average the loss over tokens instead of over sample means", bool),
        Option("--update-weight-buffer-size", "bytes per bucket of a weight push", int, 512 * 1024**2),
        Option(
            "--weight-update-mode",
            "what a push does with running requests: retract and prefill again, or keep",
            str,
            "retract",
            ("retract", "in_place"),
        ),
        Option("--distributed-timeout-minutes", "time-out of a collective", int, 10),
    ),
)

LORA = Group(
    "LoRA",
    (
        Option("--use-lora", "train low-rank adapters instead of all weights", bool),
        Option("--lora-rank", "rank", int, 8),
        Option("--lora-alpha", "scale", int, 16),
        Option("--lora-dropout", "dropout on the adapters' input", float, 0.0),
        Option(
            "--lora-target-modules",
            "comma-separated modules; default: all linear layers of a block (PEFT's own default is two)",
            comma_list,
            ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        ),
        Option(
            "--lora-kernel",
            "fused: a layer and its adapter are one function without elementwise work; peft: PEFT's own modules; FSDP2 only; "
            "default: fused on CUDA, peft on a CPU, whose logprobs stay as they were",
            str,
            None,
            ("fused", "peft"),
        ),
        Option(
            "--base-quantization",
            "nf4: trainer and policy engines hold the frozen linear layers in 4-bit NormalFloat, for GPUs of 12 to 16 GB; one training rank, "
            "FSDP2 only",
            str,
            "none",
            ("none", "nf4"),
        ),
        Option(
            "--adapter-per-person",
            "train an adapter for each person, in RUN_DIR/people; each batch is of one person, and engines answer each with its own",
            bool,
        ),
        Option(
            "--people-in-memory",
            "people whose adapter and moments the trainer keeps in host memory beside those of the one it trains; it reads others from disk",
            int,
            32,
        ),
    ),
)


OPTIMIZER = Group(
    "optimizer",
    (
        Option("--optimizer", "optimizer (AdamW)", str, "adam", ("adam",)),
        Option("--lr", "learning rate", float, 1e-6),
        Option("--min-lr", "floor of the schedule", float, 0.0),
        Option(
            "--lr-decay-style",
            "schedule after the warm-up; other cores default to linear (Megatron) or constant (FSDP)",
            str,
            "constant",
            ("constant", "linear", "cosine", "WSD"),
        ),
        Option("--lr-decay-iters", "steps until --min-lr; default: all steps of the run", int),
        Option("--lr-wsd-decay-iters", "number of last steps in which WSD decays", int),
        Option(
            "--lr-wsd-decay-style",
            "decay of WSD",
            str,
            "exponential",
            ("exponential", "linear", "cosine", "minus_sqrt"),
        ),
        Option(
            "--use-checkpoint-lr-scheduler",
            "resume with the checkpoint's schedule, whatever the flags say",
            bool,
            aliases=("--use-checkpoint-opt_param-scheduler",),
        ),
        Option(
            "--override-lr-scheduler",
            "resume with the flags' schedule at the checkpoint's step; this is the default",
            bool,
            aliases=("--override-opt_param-scheduler",),
        ),
        Option("--reset-optimizer-states", "reset the moments before each rollout's steps", bool),
        Option("--lr-warmup-iters", "warm-up steps", int, 0),
        Option(
            "--lr-warmup-samples",
            "warm-up in samples: the steps of --lr-warmup-iters that hold so many, rounded up",
            int,
        ),
        Option(
            "--lr-warmup-fraction", "share of the decay steps used for the warm-up", float, aliases=("--warmup-ratio",)
        ),
        Option("--lr-warmup-init", "learning rate the warm-up starts from", float, 0.0),
        Option("--weight-decay", "decoupled weight decay", float, 0.01),
        Option("--adam-beta1", "Adam's first decay", float, 0.9),
        Option(
            "--adam-beta2",
            "Adam's second decay, as in launch scripts; other cores default to 0.999 (Megatron) or 0.95 (FSDP)",
            float,
            0.98,
        ),
        Option("--adam-eps", "Adam's epsilon", float, 1e-8),
        Option("--clip-grad", "maximum gradient norm; 0 turns clipping off", float, 1.0),
    ),
)


def check_trainer(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    return [
        *_check_schedule(args),
        *_check_parameters(args),
        *_check_lora(args),
        *_check_people(args),
        *_check_base(args),
        *_check_passes(args),
        *_check_profiler(args),
        *_check_kernels(args),
        *_check_checkpointing(args),
    ]


def check_warmup(args: Arguments) -> list[str]:
    """Return the problem with a warm-up in samples; pass ``args`` before derivation."""
    if args.lr_warmup_samples is None:
        return []
    if args.lr_warmup_samples < 0:
        return [f"--lr-warmup-samples {args.lr_warmup_samples}: give 0 or more"]
    return ["--lr-warmup-samples and --lr-warmup-iters both set the warm-up; remove one"] * bool(args.lr_warmup_iters)


def _check_schedule(args: Arguments) -> list[str]:
    problems = []
    if args.lr_decay_style == "WSD" and not args.lr_wsd_decay_iters:
        problems.append("--lr-decay-style WSD needs --lr-wsd-decay-iters N, the steps of its decay")
    if args.lr_decay_style != "WSD" and args.lr_wsd_decay_iters is not None:
        problems.append("--lr-wsd-decay-iters has no effect without --lr-decay-style WSD; add it")
    if args.use_checkpoint_lr_scheduler and args.override_lr_scheduler:
        problems.append("--use-checkpoint-lr-scheduler and --override-lr-scheduler contradict each other; remove one")
    for flag in ("use_checkpoint_lr_scheduler", "override_lr_scheduler"):
        if getattr(args, flag) and not args.load:
            problems.append(f"{flag_of(flag)} has no effect without --load or --resume; add one of them")
    if args.lr_warmup_fraction is not None and args.lr_warmup_iters:
        problems.append("--lr-warmup-fraction and --lr-warmup-iters both set the warm-up; remove one")
    if args.min_lr > args.lr:
        problems.append(f"--min-lr {args.min_lr:g} is above --lr {args.lr:g}; lower it")
    return problems


def _check_parameters(args: Arguments) -> list[str]:
    problems = []
    if args.only_train_params_name_list and args.freeze_params_name_list:
        problems.append("--only-train-params-name-list and --freeze-params-name-list exclude each other; remove one")
    for name in ("only_train_params_name_list", "freeze_params_name_list"):
        if getattr(args, name) and args.use_lora:
            problems.append(f"{flag_of(name)} has no effect with --use-lora; use --lora-target-modules")
    return problems


def _check_lora(args: Arguments) -> list[str]:
    if args.use_lora:
        return []
    given = [option.flag for option in LORA.options if option.is_given(args)]
    return [f"{', '.join(given)} has no effect without --use-lora; add it"] if given else []


def _check_people(args: Arguments) -> list[str]:
    """Return why this run cannot train an adapter for each person."""
    if not args.adapter_per_person:
        return ["--people-in-memory has no effect without --adapter-per-person; add it"] * (args.people_in_memory != 32)
    from_checkpoint = args.load and not args.resume and not (Path(args.load) / "config.json").exists()
    counts_steps = args.lr_decay_style != "constant" or args.lr_warmup_fraction is not None
    reasons = {
        "needs --use-lora; add it": not args.use_lora,
        "needs engines that get adapters; use --update-weight-mode adapter": (
            args.use_lora and args.update_weight_mode != "adapter"
        ),
        "counts the steps of each person; add --lr-decay-iters N": counts_steps and not args.lr_decay_iters,
        "keeps the schedule of the command line; remove --use-checkpoint-lr-scheduler": args.use_checkpoint_lr_scheduler,
        f"cannot start from --load {args.load}, a checkpoint whose adapters are another run's; use --resume": (
            from_checkpoint and args.load != args.save
        ),
        "has no single model to write; remove --save-hf": bool(args.save_hf),
        "publishes each update; remove --update-weights-interval": args.update_weights_interval != 1,
        "saves each update before it serves; use --save-interval 1": args.save and args.save_interval != 1,
        "reaches one person with an update anyway; remove --canary-engine": args.canary_engine,
        "needs engines that this run starts; remove --rollout-external-engine-addrs": args.rollout_external_engine_addrs,
        "has no push to check; remove --check-weight-update-equal": args.check_weight_update_equal,
    }
    problems = [f"--adapter-per-person {reason}" for reason, applies in reasons.items() if applies]
    for name in STATE_ELSEWHERE:
        if getattr(args, name):
            problems.append(f"--adapter-per-person cannot copy the state of {flag_of(name)}; remove one of them")
    if args.people_in_memory < 0:
        problems.append(f"--people-in-memory {args.people_in_memory}: give 0 or more")
    return problems


def _check_base(args: Arguments) -> list[str]:
    """Return why this run cannot hold its base in NF4."""
    if args.base_quantization == "none" or not args.use_lora:
        return []
    given = [name for name in ("sglang_quantization", "sglang_load_format") if getattr(args, name)]
    serves = not args.debug_train_only
    reasons = {
        "is for FSDP2 only; use --train-backend fsdp": args.train_backend != "fsdp",
        "needs one training GPU; use --actor-num-nodes 1 --actor-num-gpus-per-node 1": (
            args.actor_num_nodes * args.actor_num_gpus_per_node > 1
        ),
        "keeps the base on the GPU; remove --fsdp-cpu-offload": args.fsdp_cpu_offload,
        "has not been compiled; remove --fused-kernels compile": args.fused_kernels == "compile",
        "needs engines that serve the base and get adapters; use --update-weight-mode adapter": (
            serves and args.update_weight_mode != "adapter"
        ),
        "cannot be split over GPUs; use --rollout-num-gpus-per-engine 1": (
            serves and args.rollout_num_gpus_per_engine > 1
        ),
        "needs no time sharing, which nobody has tried with it; use --share-gpu in place of --colocate": args.colocate,
        "computes in bfloat16 on a GPU; remove --sglang-dtype": serves
        and args.sglang_dtype not in (None, "auto", "bfloat16"),
        f"chooses it; remove {', '.join(map(flag_of, given))}": bool(given),
        f"needs bitsandbytes, which {NOT_INSTALLED}; run scripts/setup.sh": not _is_installed("bitsandbytes"),
    }
    return [f"--base-quantization nf4 {reason}" for reason, applies in reasons.items() if applies]


def _check_passes(args: Arguments) -> list[str]:
    problems = []
    if args.use_rollout_entropy and args.use_rollout_logprobs:
        problems.append("--use-rollout-entropy needs the pass that --use-rollout-logprobs skips; remove one of them")
    if args.use_rollout_entropy and (args.loss_type == "sft_loss" or not args.compute_advantages_and_returns):
        problems.append("--use-rollout-entropy needs the logprob passes, which this run skips; remove it")
    if args.ref_update_interval is not None:
        if args.ref_update_interval < 1:
            problems.append(f"--ref-update-interval {args.ref_update_interval}: give 1 or more")
        if not (args.use_kl_loss or args.kl_coef):
            problems.append("--ref-update-interval has no effect without a reference: add --use-kl-loss or --kl-coef")
        if args.use_lora:
            problems.append("--ref-update-interval is not supported with --use-lora, whose reference is the base model")
    return problems


def _check_profiler(args: Arguments) -> list[str]:
    if not args.use_pytorch_profiler:
        given = (args.profile_step_start, args.profile_step_end, args.profile_target) != (10, 12, "train_overall")
        return ["--profile-* has no effect without --use-pytorch-profiler; add it"] if given else []
    if args.profile_step_end <= args.profile_step_start:
        return [
            f"--profile-step-end {args.profile_step_end} is not after --profile-step-start {args.profile_step_start}; raise it"
        ]
    return []


def _check_kernels(args: Arguments) -> list[str]:
    problems = [*_check_attention(args), *_check_fused(args)]
    if args.device == "cpu" and args.logprob_kernel == "triton":
        problems.append("--logprob-kernel triton needs a GPU; use torch")
    return problems


ON_GPU = {
    "cudnn": None,
    "varlen": None,
    "auto": None,
    "flash_attention_2": "flash-attn",
    "flash_attention_4": "flash-attn-4",
}
"""Kernels of a GPU in half precision, and the package that each needs besides torch."""


def _check_attention(args: Arguments) -> list[str]:
    name = args.attn_implementation
    if name not in ON_GPU or args.train_backend != "fsdp":
        return []
    if args.device == "cpu":
        return [f"--attn-implementation {name} needs a GPU; use sdpa"]
    problems = []
    if args.train_dtype == "float32":
        problems.append(f"--attn-implementation {name} computes in bfloat16 only; remove --train-dtype float32")
    if name == "cudnn" and args.deterministic_mode:
        problems.append("--attn-implementation cudnn is not deterministic; remove --deterministic-mode, or use auto")
    package = ON_GPU[name]
    if package is None and not args.pack_sequences:
        problems.append(f"--attn-implementation {name} is for packed samples; remove --no-pack-sequences, or use sdpa")
    if package is not None and not _is_installed(package):
        problems.append(f"--attn-implementation {name}: {package} {NOT_INSTALLED}; install it, or use sdpa")
    return problems


ONE_CALL = ("varlen", "flash_attention_2", "flash_attention_4")
"""Attention whose arguments do not change with the number of samples, so that a compiled layer stays valid."""


def _check_fused(args: Arguments) -> list[str]:
    name = args.fused_kernels
    if name == "none" or args.train_backend != "fsdp":
        return []
    if args.device == "cpu":
        return [f"--fused-kernels {name} needs a GPU; use none"]
    if name == "liger":
        missing = f"--fused-kernels liger: liger-kernel {NOT_INSTALLED}; install requirements/liger.txt, or use none"
        return [] if _is_installed("liger-kernel") else [missing]
    problems = []
    if args.attn_implementation not in ONE_CALL:
        problems.append(
            f"--fused-kernels compile would compile anew for each pack with --attn-implementation {args.attn_implementation}; "
            f"use {' or '.join(ONE_CALL)}"
        )
    if args.kept_attention_layers:
        problems.append("--kept-attention-layers has no effect in layers of --fused-kernels compile; remove it")
    return problems


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _check_checkpointing(args: Arguments) -> list[str]:
    problems = []
    for name in ("unchecked_layers", "kept_attention_layers"):
        value = getattr(args, name)
        if value is not None and value < 0:
            problems.append(f"{flag_of(name)} {value}: give 0 or more")
        if value is not None and not args.gradient_checkpointing and args.train_backend == "fsdp":
            problems.append(f"{flag_of(name)} has no effect without --gradient-checkpointing; add it")
    return problems


WEIGHT_SYNC = Group(
    "weight sync",
    (
        Option(
            "--update-weight-mode",
            "full: all weights, with LoRA merged; delta: index and value of each change; adapter: only the LoRA adapter, which the engines "
            "apply; default: adapter for LoRA runs whose base the engines serve, else full",
            str,
            None,
            ("full", "delta", "adapter"),
        ),
        Option(
            "--update-weight-transport",
            "nccl: broadcast (gloo on a CPU and with --colocate); shared: shared memory on one machine, the default for full "
            "pushes with --colocate there; disk: a folder that trainer and engines can read",
            str,
            "nccl",
            ("nccl", "shared", "disk"),
        ),
        Option("--update-weight-disk-dir", "folder of --update-weight-transport disk; default: <run-dir>/weights"),
        Option("--update-weight-disk-keep-files", "keep all weight versions in --update-weight-disk-dir", bool),
        Option(
            "--check-weight-update-equal", "after every push, compare a checksum of each tensor on each engine", bool
        ),
    ),
)


STAGES_REFUSED = (
    "broadcast and shared memory cannot update an engine with pipeline stages, because the first stage must finish a push "
    "before the next one starts; use one stage, or --update-weight-mode full with --update-weight-transport disk"
)


def derive_weight_sync(args: Arguments) -> None:
    """Resolve ``update_weight_mode``, and the transport where the default one cannot be: NCCL between processes on one GPU, or
    a broadcast to vLLM.
    """
    if args.update_weight_mode is None:
        suits = args.use_lora and args.update_weight_transport == "nccl" and not _adapter_problems(args)
        args.update_weight_mode = "adapter" if suits else "full"
    whole = args.update_weight_mode == "full" and args.update_weight_transport == "nccl"
    if args.colocate and args.num_nodes == 1 and whole:
        args.update_weight_transport = "shared"
    elif args.backend == "vllm" and whole:
        args.update_weight_transport = "disk"


def _adapter_problems(args: Arguments) -> list[str]:
    problems = []
    base = (
        args.load if args.load and (Path(args.load) / "config.json").exists() else args.ref_load or args.hf_checkpoint
    )
    if base and args.hf_checkpoint and Path(base).resolve() != Path(args.hf_checkpoint).resolve():
        problems.append(f"training starts from {base}, which the engines do not serve")
    if args.rollout_external_engine_addrs or args.sglang_router_ip:
        problems.append("running engines cannot be given adapters")
    if (args.sglang_tokenizer_worker_num or 1) > 1:
        problems.append("only one engine process knows the newest adapter: remove --sglang-tokenizer-worker-num")
    return problems


def check_weight_sync(args: Arguments) -> list[str]:
    """Return one line per flag that has no effect or contradicts another."""
    problems = []
    if args.update_weight_mode == "adapter":
        if not args.use_lora:
            problems.append("--update-weight-mode adapter needs --use-lora; add it")
        if args.update_weight_transport != "nccl":
            problems.append(
                "--update-weight-transport has no effect with --update-weight-mode adapter, which the request itself carries; remove it"
            )
        problems += [f"--update-weight-mode adapter: {why}; use full" for why in _adapter_problems(args)]
    if args.update_weight_mode == "delta" and args.update_weight_transport != "nccl":
        problems.append("--update-weight-mode delta always broadcasts; remove --update-weight-transport")
    own_engines = not args.rollout_external_engine_addrs
    if own_engines and args.rollout_num_gpus and pipeline_stages(args) > 1 and misses_stages(args):
        problems.append(f"--sglang-pp-size {pipeline_stages(args)}: {STAGES_REFUSED}")
    disk = [name for name in ("update_weight_disk_dir", "update_weight_disk_keep_files") if getattr(args, name)]
    if args.update_weight_transport != "disk":
        problems += [f"{flag_of(name)} has no effect without --update-weight-transport disk; add it" for name in disk]
    return problems


def uses_loader(args: Arguments) -> bool:
    """Return whether policy engines must start with `slime.weight_sync.LOADER`."""
    shared = args.update_weight_transport == "shared"
    delta = args.update_weight_mode == "delta"
    return shared or delta or bool(args.check_weight_update_equal) or waits_for_passes(args)


def waits_for_passes(args: Arguments) -> bool:
    """Return whether a push waits for the engines' last forward pass, which a pause in place lets run on a GPU."""
    paused = args.update_weight_mode != "adapter" and args.update_weight_transport != "disk"
    return paused and args.weight_update_mode == "in_place" and args.device == "cuda"


def misses_stages(args: Arguments) -> bool:
    """Return whether the run's way of pushing weights fails with pipeline stages.

    SGLang forwards a request to the next stage once a stage has finished it, and all stages use the same ranks of a
    group.
    """
    pushes = not (args.debug_rollout_only or args.debug_train_only)
    disk = args.update_weight_transport == "disk"
    return pushes and not disk and args.update_weight_mode != "adapter"


def shares_gpus(args: Arguments) -> bool:
    """Return whether trainer and engines share GPUs, where NCCL cannot connect."""
    return bool(args.share_gpu or args.colocate)


def on_one_gpu(args: Arguments) -> bool:
    """Return whether trainer and policy engine share one GPU, so that one can map the other's memory."""
    return shares_gpus(args) and bool(args.share_gpu or args.rollout_num_gpus == 1)


def sends_gpu_handles(args: Arguments) -> bool:
    """Return whether a push sends CUDA IPC handles of the trainer's memory."""
    return args.update_weight_transport == "shared" and on_one_gpu(args)


PACK_BYTES = 64 << 20
"""Bytes of weights that a push casts and copies in one launch, and stages on the GPU on their way to pinned memory."""


def slot_bytes(args: Arguments) -> int:
    """Return the bytes of each of the two slots of memory that a push on CUDA shares with the engines.

    A request for a slot takes milliseconds whatever its size, so slots of one GPU's memory are large. Those of pinned host
    memory are half as large, because the engine reads one over the bus while the trainer writes the other.
    """
    return min(args.update_weight_buffer_size, 512 << 20 if on_one_gpu(args) else 256 << 20)
