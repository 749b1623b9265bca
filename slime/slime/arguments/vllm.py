"""Which engine serves policy and judge, ``--backend``, and what a run with vLLM refuses.

Guarantee: a run with vLLM does not start with a flag that its engines would ignore; the problem names the flag and what to use
instead.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
from pathlib import Path

from slime.args import Arguments
from slime.arguments.option import NOT_INSTALLED, Group, Option, flag_of
from slime.arguments.sglang_flags import OWNED, attribute_of, recorded_flags

SGLANG, VLLM = "sglang", "vllm"
BACKENDS = (SGLANG, VLLM)
ENGINE_NAMES = {SGLANG: "SGLang", VLLM: "vLLM"}

ENGINE = Group(
    "engine",
    (
        Option("--backend", "the engine of policy and judge", str, SGLANG, choices=BACKENDS),
        Option(
            "--vllm-python", "interpreter that has vLLM; default: the run's, with what scripts/setup_vllm.sh installed"
        ),
        Option("--vllm-options", "further options of vLLM's server, in one word: '--max-num-batched-tokens 4096'"),
    ),
)

OPTIONS = {
    "sglang_context_length": "max_model_len",
    "sglang_max_running_requests": "max_num_seqs",
    "sglang_mem_fraction_static": "gpu_memory_utilization",
    "sglang_dtype": "dtype",
}
"""Flags of SGLang that mean the same in vLLM, and vLLM's names."""
OF_PEOPLE = frozenset({"sglang_max_loras_per_batch", "sglang_max_loaded_loras"})
"""Flags of SGLang that ``--adapter-per-person`` reads with either engine."""
FIXED_ON_CPU = frozenset({"sglang_mem_fraction_static", "sglang_dtype"})
MAX_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""LoRA ranks that vLLM makes room for."""
OF_OUTPUT = frozenset({"lm_head", "embed_tokens"})
"""Modules whose adapters a scored prompt beside other requests would end the engine with (log/vllm.md)."""
PACKAGES = Path(__file__).resolve().parents[3] / ".cache" / "vllm" / "lib"
SET_BY_RUN = frozenset(
    {
        *(
            "--model",
            "--host",
            "--port",
            "--uds",
            "--tensor-parallel-size",
            "--pipeline-parallel-size",
            "--data-parallel-size",
        ),
        *("-tp", "-pp", "-dp"),
        *("--enable-lora", "--max-loras", "--max-cpu-loras", "--max-lora-rank", "--lora-target-modules", "--api-key"),
        *("--worker-extension-cls", "--served-model-name", "--return-tokens-as-token-ids", "--seed"),
        *("--logprobs-mode", "--max-logprobs", "--structured-outputs-config", "--enable-scale-out"),
        "--enable-prompt-tokens-details",
    }
)
"""Options of vLLM that ``--vllm-options`` may not have, because its words come last and would win."""
SET_IN_PLACE = frozenset({"--enable-prefix-caching"})
"""Those of a run with ``--weight-update-mode in_place``."""


def installed_packages() -> Path | None:
    """Return where ``scripts/setup_vllm.sh`` installed vLLM, if it did."""
    return PACKAGES if (PACKAGES / "vllm").is_dir() else None


def vllm_missing(python: str | None) -> str | None:
    """Return why vLLM cannot start with the interpreter ``python`` (None: the run's), or None."""
    if python is None:
        if installed_packages() is None and importlib.util.find_spec("vllm") is None:
            return f"--backend vllm: vLLM {NOT_INSTALLED}; run scripts/setup_vllm.sh, or name an interpreter: --vllm-python P"
    elif not os.access(python, os.X_OK):
        return f"--vllm-python {python} {NOT_INSTALLED}; name the interpreter of an environment that has vLLM"
    return None


def check_backend(args: Arguments) -> list[str]:
    """Return one line per flag that has no effect, or that vLLM's engines cannot follow."""
    if args.backend != VLLM:
        given = [option.flag for option in ENGINE.options[1:] if option.is_given(args)]
        return [f"{flag} has no effect without --backend vllm; add it, or remove {flag}" for flag in given]
    sglang = "use --backend sglang, or remove it"
    refused = {
        "--canary-engine: no engine can have a candidate alone": args.canary_engine,
        "--colocate, --offload and --offload-rollout: its engines keep their memory": args.colocate
        or args.offload_rollout,
        "--share-gpu: the memory plan knows SGLang only": args.share_gpu,
        "--update-weight-mode delta: its engines load whole folders": args.update_weight_mode == "delta",
        "--check-weight-update-equal: vLLM stores weights in other shapes": args.check_weight_update_equal,
        "--use-rollout-routing-replay: experts do not come back": args.use_rollout_routing_replay,
        "--base-quantization nf4: its engines serve the base as it is": args.base_quantization != "none",
        "--rollout-external-engine-addrs: the run starts vLLM and its translator together": bool(
            args.rollout_external_engine_addrs
        ),
        "--multimodal-keys: its engines take no pictures": bool(args.multimodal_keys),
    }
    problems = [f"--backend vllm and {why}; {sglang}" for why, applies in refused.items() if applies]
    problems += [
        f"--backend vllm and {flag_of(name)} {getattr(args, name)}: vLLM's log-probabilities would be of the cut distribution; "
        f"use {whole}"
        for name, whole in (("rollout_top_p", 1), ("rollout_top_k", -1))
        if getattr(args, name) != whole
    ]
    problems += [
        f"--backend vllm and --sglang-{flag}: vLLM does not know it; remove it, or say in --vllm-options what vLLM has"
        for flag in recorded_flags()
        if flag not in OWNED
        and attribute_of(flag) not in OPTIONS
        and not (args.adapter_per_person and attribute_of(flag) in OF_PEOPLE)
        and getattr(args, attribute_of(flag)) not in (None, False)
    ]
    if args.update_weight_mode == "full" and args.update_weight_transport == "shared":
        problems.append(
            "--backend vllm and --update-weight-transport shared: vLLM cannot map the trainer's memory; use disk"
        )
    if max(args.rollout_num_gpus_per_engine, args.prm_num_gpus_per_engine) > args.num_gpus_per_node:
        problems.append(
            "--backend vllm: an engine cannot span machines; use --rollout-num-gpus-per-engine N of one machine"
        )
    if args.update_weight_mode == "adapter":
        if args.lora_rank > MAX_RANKS[-1]:
            problems.append(
                f"--backend vllm and --lora-rank {args.lora_rank}: vLLM takes at most {MAX_RANKS[-1]}; use that"
            )
        if outputs := sorted(OF_OUTPUT & set(args.lora_target_modules)):
            problems.append(
                f"--backend vllm and --lora-target-modules {','.join(outputs)}: vLLM's engines cannot; remove it"
            )
    problems += _check_options(args)
    problems += filter(None, [vllm_missing(args.vllm_python)])
    return problems


def _check_options(args: Arguments) -> list[str]:
    """Return why the words of ``--vllm-options`` cannot be given to vLLM."""
    text = args.vllm_options
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        return [f"--vllm-options {text!r}: {error}; write it as in a shell"]
    fixed = SET_BY_RUN | (SET_IN_PLACE if args.weight_update_mode == "in_place" else frozenset())
    names = {word.partition("=")[0] for word in words if word.startswith("-")}
    own = sorted(name for name in names if any(option.startswith(_option(name)) for option in fixed))
    return [f"--vllm-options: the run itself sets {', '.join(own)}; remove it"] if own else []


def _option(name: str) -> str:
    """Return an option as vLLM's parser reads it: ``--no_enable-lora`` sets ``--enable-lora``, ``--a.b`` a part of ``--a``.

    The parser also takes the beginning of an option for it.
    """
    name = name.partition(".")[0].replace("_", "-")
    return "--" + name.removeprefix("--no-") if name.startswith("--no-") else name
