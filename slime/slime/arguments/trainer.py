"""The FSDP2 trainer: precision, memory, batching, LoRA, weight push."""

from __future__ import annotations

from slime.arguments.option import Group, Option, comma_list

TRAINER = Group(
    "trainer",
    (
        Option(
            "--train-backend",
            "training back end; default: megatron when a flag of the model's shape or of Megatron is given, else fsdp",
            str,
            None,
            ("fsdp", "megatron"),
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
            "attention of FSDP2, in every installation of torch",
            str,
            "sdpa",
            ("sdpa", "eager", "flash_attention_2"),
        ),
        Option("--gradient-checkpointing", "recompute activations in the backward pass", bool),
        Option(
            "--fsdp-cpu-offload",
            "keep parameters and optimizer state in host memory",
            bool,
            aliases=("--offload-optimizer-state",),
        ),
        Option("--only-train-params-name-list", "train parameters these patterns match, no others", nargs="+"),
        Option("--freeze-params-name-list", "train all parameters but those these patterns match", nargs="+"),
        Option("--deterministic-mode", "deterministic kernels only; slower", bool),
        Option("--seed", "seed of everything random", int, 1234),
        Option("--micro-batch-size", "samples per micro-batch without --use-dynamic-batch-size", int, 1),
        Option("--global-batch-size", "samples per optimizer step", int),
        Option("--num-steps-per-rollout", "optimizer steps per rollout; sets --global-batch-size", int),
        Option("--use-dynamic-global-batch-size", "divide the samples of each rollout by its steps", bool),
        Option("--disable-rollout-trim-samples", "samples that do not fill a batch make a smaller last step", bool),
        Option("--use-dynamic-batch-size", "fill micro-batches by tokens", bool),
        Option("--max-tokens-per-gpu", "tokens per micro-batch and rank", int),
        Option("--pack-sequences", "pack the samples of a micro-batch into one sequence", bool, True),
        Option(
            "--log-probs-chunk-size",
            "logits at a time, in rows of the vocabulary: same numbers, less memory; -1: 256 MiB in float32",
            int,
            1024,
        ),
        Option("--calculate-per-token-loss", "mean over tokens instead of mean of sample means", bool),
        Option("--update-weight-buffer-size", "bytes per bucket of a weight push", int, 512 * 1024**2),
        Option(
            "--weight-update-mode",
            "running requests during a push: retracted and prefilled again, or kept",
            str,
            "retract",
            ("retract", "in_place"),
        ),
        Option("--distributed-timeout-minutes", "longest wait in a collective", int, 10),
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
            "comma-separated modules; all linear layers of a block, where PEFT alone would take two",
            comma_list,
            ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        ),
    ),
)
