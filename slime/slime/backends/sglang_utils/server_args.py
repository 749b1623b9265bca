"""The command line of an engine, from the run's arguments.

Guarantee: pure and complete; an engine starts with exactly :func:`server_command`. Policy and judge engines differ in
model, tensor parallelism and seed. Every ``--sglang-x-y`` of the run becomes ``--x-y``, except those that the run sets
(``OWNED``).
"""

from __future__ import annotations

import sys

from slime.args import Arguments
from slime.arguments.placement import STAGES, EngineSpec, Role, tensor_parallel_size
from slime.arguments.trainer import uses_loader
from slime.backends.sglang_utils.server_hooks import HELD_ADAPTERS, NF4_BASE, PEOPLE
from slime.weight_sync import LOADER
from slime.weight_sync.people import people_folder

SERVER_MODULE = "slime.backends.sglang_utils.server"
# Attributes with the prefix sglang_ that are not server options, or that the run sets itself.
OWNED = frozenset(
    {
        "router_ip",
        "router_port",
        "router_request_timeout_secs",
        "server_concurrency",
        "config",
        "model_path",
        "trust_remote_code",
        "random_seed",
        "enable_memory_saver",
        "tp_size",
        "tensor_parallel_size",
        "host",
        "port",
        "base_gpu_id",
        "skip_server_warmup",
        "incremental_streaming_output",
    }
)
CPU_OPTIONS: dict[str, object] = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "xgrammar",
    "disable_cuda_graph": True,
    "mem_fraction_static": 0.2,
    "max_total_tokens": 65536,
    "sleep_on_idle": True,  # log/sglang.md#sglang-idle
}

NF4_OPTIONS: dict[str, object] = {"quantization": "bitsandbytes", "load_format": "bitsandbytes"}
"""Options of a policy engine that serves an NF4 base (`slime.backends.sglang_utils.quantised_base`)."""

IN_BATCH_PEOPLE = 33
PEOPLE_OPTIONS: dict[str, object] = {"max_loras_per_batch": IN_BATCH_PEOPLE, "lora_drain_wait_threshold": 1.0}
"""Defaults of a policy engine that serves each person's adapter: how many versions, the base among them, a batch may have, and
after how many seconds a request that waits for a place in the batch gets the next free one (log/adapters.md)."""
HELD_PEOPLE = 128
"""Versions in an engine's main memory if ``--sglang-max-loaded-loras`` does not say."""


def model_path(args: Arguments, role: Role) -> str:
    """Return the checkpoint that a role serves; a judge without one serves the policy's start weights."""
    if role == "prm" and args.prm_model_path:
        return args.prm_model_path
    return args.hf_checkpoint


def gives_memory_away(args: Arguments, spec: EngineSpec) -> bool:
    """Return whether the engine can release its GPU memory; a judge has its own GPUs."""
    return spec.role == "policy" and bool(args.offload_rollout)


def server_command(args: Arguments, spec: EngineSpec, *, port: int, cpu: bool, rendezvous: str = "") -> list[str]:
    """Return the engine's command line; ``rendezvous``: where the ranks of several machines meet."""
    options: dict[str, object] = dict(CPU_OPTIONS) if cpu else {}
    options.update(pass_through(args, cpu=cpu))
    if model_path(args, spec.role) != args.hf_checkpoint and options.get("speculative_algorithm") != "NGRAM":
        # The draft model is the policy's; a judge of another architecture could not start with it.
        options = {name: value for name, value in options.items() if not name.startswith("speculative_")}
    if args.weight_update_mode == "in_place" and spec.role == "policy":
        # The prefix cache cannot be emptied while requests run, but old prefixes must not serve new requests.
        options["disable_radix_cache"] = True
    if spec.role == "policy" and uses_loader(args):
        given = options.get("custom_weight_loader") or []
        options["custom_weight_loader"] = [*(given if isinstance(given, list | tuple) else [given]), LOADER]
    people = spec.role == "policy" and args.adapter_per_person
    # SGLang's own eviction would wait for running requests while it blocks every load.
    held = options.pop("max_loaded_loras", HELD_PEOPLE) if people else None
    own_base = spec.role == "policy" and args.base_quantization == "nf4"
    if own_base:
        options |= NF4_OPTIONS
    if spec.role == "policy" and args.use_rollout_routing_replay:
        options["enable_return_routed_experts"] = True
    if spec.role == "policy" and args.update_weight_mode == "adapter":
        options |= {
            "enable_lora": True,
            "max_lora_rank": args.lora_rank,
            "lora_target_modules": args.lora_target_modules,
        }
        if cpu:
            options["lora_backend"] = "torch_native"
    if people:
        options = PEOPLE_OPTIONS | options
    if gives_memory_away(args, spec):
        options["enable_memory_saver"] = True
        if args.update_weights_interval > 1 or args.update_weight_mode != "full":
            # A push does not send every weight each time.
            options["enable_weights_cpu_backup"] = True
        if args.sglang_speculative_algorithm:
            # Pushes do not include the draft model.
            options["enable_draft_weights_cpu_backup"] = True
    options.update(
        model_path=model_path(args, spec.role),
        random_seed=args.seed + 1000 * (spec.role == "prm") + spec.index,
        # On a CPU each machine runs one rank, whatever the number of logical GPUs.
        tp_size=spec.nodes if cpu else tensor_parallel_size(args, spec.num_gpus),
        host=spec.host,
        port=port,
        skip_server_warmup=True,
        incremental_streaming_output=True,
    )
    if spec.nodes > 1:
        options.update(nnodes=spec.nodes, node_rank=spec.node_rank, dist_init_addr=rendezvous)
    own = [NF4_BASE] if own_base else []
    if people:
        own += [PEOPLE, str(people_folder(args.run_dir).absolute()), HELD_ADAPTERS, str(held)]
    return [sys.executable, "-m", SERVER_MODULE, *command_line(options), *own]


def pass_through(args: Arguments, *, cpu: bool) -> dict[str, object]:
    """Return the server options given as ``--sglang-*``; on a CPU the kernels are fixed."""
    fixed_on_cpu = {"device", "dtype", "attention_backend", "sampling_backend", "disable_cuda_graph"} if cpu else set()
    if cpu:
        fixed_on_cpu |= {"mem_fraction_static", *STAGES}
    options: dict[str, object] = {}
    for attribute, value in vars(args).items():
        name = attribute.removeprefix("sglang_")
        if name == attribute or name in OWNED or name in fixed_on_cpu or value is None or value is False:
            continue
        options[name] = value
    return options


def command_line(options: dict[str, object]) -> list[str]:
    """Convert ``{"tp_size": 2, "flag": True}`` to ``["--tp-size", "2", "--flag"]``; lists become several values."""
    words: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is True:
            continue
        words += [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]
    return words
