"""Flags and checks of policy and judge engines, including external engines and device limits."""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.option import Group, Option

JUDGE = Group(
    "judge",
    (
        Option("--prm-enable", "start judge engines; the other --prm-* flags need this or --prm-router-ip", bool),
        Option("--prm-num-gpus", "GPUs of the judge engines", int, 0),
        Option("--prm-num-gpus-per-engine", "GPUs per judge engine", int, 1),
        Option("--prm-model-path", "judge weights; default: --hf-checkpoint"),
        Option("--prm-m", "votes per turn", int, 4),
        Option("--prm-temperature", "sampling temperature of the judge", float, 1.0),
        Option("--prm-max-new-tokens", "maximum length of a judge's answer in tokens", int, 2048),
        Option("--prm-router-ip", "address of a running judge; --prm-num-gpus then counts as 0"),
        Option("--prm-router-port", "its port", int),
    ),
)


def check_judge(args: Arguments) -> list[str]:
    """Return the problems, one line each; pass ``args`` before derivation."""
    if bool(args.prm_router_ip) != bool(args.prm_router_port):
        return ["--prm-router-ip and --prm-router-port go together; give both"]
    # A plugin may call a judge at --prm-sglang-url with these sampling flags.
    if not (args.prm_enable or args.prm_router_ip or args.prm_sglang_url):
        given = [option.flag for option in JUDGE.options if option.is_given(args)]
        return [f"{', '.join(given)} has no effect without a judge: add --prm-enable, or remove it"] if given else []
    problems = []
    total, size = args.prm_num_gpus, args.prm_num_gpus_per_engine
    if total % size:
        problems.append(f"--prm-num-gpus {total} is not a multiple of --prm-num-gpus-per-engine {size}")
    if args.prm_enable and total < 1 and not args.prm_router_ip:
        problems.append("--prm-enable needs --prm-num-gpus 1 or more, or --prm-router-ip of a running judge")
    context = args.sglang_context_length or args.rollout_max_context_len
    if args.prm_enable and context and args.prm_max_new_tokens >= context:
        problems.append(
            f"--prm-max-new-tokens {args.prm_max_new_tokens} leaves no room for a prompt in the judge's context of {context}; "
            "lower it, or raise --sglang-context-length"
        )
    return problems


# Kernels and types that are fixed for an engine on a CPU; see CPU_OPTIONS in server_args.
_DECIDED_ON_CPU = (
    "sglang_device",
    "sglang_dtype",
    "sglang_attention_backend",
    "sglang_sampling_backend",
    "sglang_pp_size",
    "sglang_pipeline_parallel_size",
)
# These make a server require a key or TLS, which the run's own calls to its engines do not use.
_LOCKED = ("sglang_api_key", "sglang_admin_api_key", "sglang_ssl_certfile", "sglang_ssl_keyfile")


def check_engines(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    return [*_check_running(args), *_check_device(args), *_check_locked(args)]


def _check_running(args: Arguments) -> list[str]:
    """Check flags of external engines and routers."""
    problems = []
    if args.sglang_router_ip and not args.sglang_router_port:
        problems.append("--sglang-router-ip needs --sglang-router-port, the router's port")
    external = args.rollout_external_engine_addrs or []
    if args.sglang_router_port and not args.sglang_router_ip and len(external) == 1 and args.router != "sglang":
        problems.append("--sglang-router-port has no effect on an external engine; remove it, or add --router sglang")
    if args.rollout_external and not external:
        problems.append("--rollout-external needs --rollout-external-engine-addrs HOST:PORT ...")
    if external and (args.debug_train_only or args.sglang_router_ip):
        other = "--sglang-router-ip" if args.sglang_router_ip else "--debug-train-only"
        problems.append(f"--rollout-external-engine-addrs contradicts {other}; remove one of them")
    return problems


def _check_device(args: Arguments) -> list[str]:
    problems = []
    if args.sglang_quantization and not (args.debug_rollout_only or args.debug_train_only):
        problems.append(
            f"--sglang-quantization {args.sglang_quantization}: an engine that quantised its weights at start-up cannot load "
            "the trainer's; use --sglang-kv-cache-dtype fp8_e4m3, or a judge in FP8 (--prm-model-path)"
        )
    if args.device == "cpu":
        problems += [
            f"--{name.replace('_', '-')} has no effect on a CPU, where it is fixed; remove it"
            for name in _DECIDED_ON_CPU
            if getattr(args, name) is not None
        ]
    return problems


def _check_locked(args: Arguments) -> list[str]:
    return [
        f"--{name.replace('_', '-')}: the run calls its engines without a key and without TLS; remove it; "
        "protect clients at the gateway with OPENCLAW_API_KEY and OPENCLAW_TLS_CERT"
        for name in _LOCKED
        if getattr(args, name)
    ]
