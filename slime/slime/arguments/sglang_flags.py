"""Flags of the inference server, and the script that records them.

With the record ``sglang_flags.json`` the parser checks ``--sglang-*`` without importing the server, which takes
seconds. ``python -m slime.arguments.sglang_flags`` writes it from the pinned version; a test compares it with the
installed one.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import cache
from pathlib import Path

TITLE = "inference engines (any server flag as --sglang-*; few are shown)"
RECORD = Path(__file__).with_name("sglang_flags.json")
# Set by the run itself: see slime.backends.sglang_utils.server_args.
OWNED = frozenset(
    {
        "config",
        "model-path",
        "model",
        "trust-remote-code",
        "random-seed",
        "enable-memory-saver",
        "tp-size",
        "tensor-parallel-size",
        "host",
        "port",
        "nnodes",
        "node-rank",
        "dist-init-addr",
        "gpu-id-step",
        "base-gpu-id",
        "nccl-port",
        "skip-server-warmup",
        "incremental-streaming-output",
    }
)

# Flags that the core reads too. The others are also attributes of the arguments, but only the engines read them.
READ_BY_CORE = frozenset(
    {
        *("context-length", "chunked-prefill-size", "max-prefill-tokens", "max-running-requests", "max-total-tokens"),
        *("mem-fraction-static", "dtype", "kv-cache-dtype", "quantization", "pp-size", "pipeline-parallel-size"),
        *("mamba-full-memory-ratio", "max-mamba-cache-size", "tokenizer-worker-num", "disable-cuda-graph"),
        *("disable-radix-cache", "enable-deterministic-inference", "enable-hierarchical-cache", "enable-lmcache"),
        *("speculative-algorithm", "speculative-eagle-topk"),
        *("enable-symm-mem", "enable-kv-cache-sharding", "enable-nccl-nvls"),
    }
)


def attribute_of(flag: str) -> str:
    """Return the attribute of the server flag ``flag``, given without leading dashes."""
    return "sglang_" + flag.replace("-", "_")


@cache
def recorded_flags() -> dict[str, str]:
    """Return ``{flag without dashes: kind}``; kind is int, float, str, flag, or one of them followed by ``+`` for a list."""
    return json.loads(RECORD.read_text())["flags"]


def installed_flags() -> tuple[str, dict[str, str]]:
    """Return version and flags of the installed server, in the record's format; imports the server."""
    from importlib.metadata import version

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    flags: dict[str, str] = {}
    for action in parser._actions:
        kind = "flag" if action.nargs == 0 else getattr(action.type, "__name__", "str")
        if kind == "human_readable_int":
            kind = "int"
        kind = kind if kind in ("int", "float", "flag") else "str"
        if action.nargs in ("+", "*"):
            kind += "+"
        for name in action.option_strings:
            if name.startswith("--") and name != "--help":
                flags[name[2:]] = kind
    return version("sglang"), dict(sorted(flags.items()))


def add_sglang_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--sglang-X`` for every recorded flag that the run does not set; unset ones are None or False."""
    group = parser.add_argument_group(TITLE)
    group.add_argument("--sglang-router-ip", help="address of running engines; the run then starts no policy engine")
    group.add_argument(
        "--sglang-router-port",
        type=int,
        help="port of the running engines; without an ip: the port to serve the policy on",
    )
    group.add_argument("--sglang-router-request-timeout-secs", type=int, default=14400, help="longest request")
    group.add_argument("--sglang-server-concurrency", type=int, default=512, help="concurrent requests per engine")
    group.add_argument(
        "--router",
        choices=("auto", "direct", "sglang"),
        default="auto",
        help="call one engine directly, or use a router",
    )
    shown = {"context-length": "", "reasoning-parser": "", "tool-call-parser": ""}
    shown["mem-fraction-static"] = "; not used on a CPU, where --sglang-max-total-tokens bounds the cache"
    types = {"int": int, "float": float, "str": str}
    for flag, kind in recorded_flags().items():
        if flag in OWNED:
            continue
        text = f"server flag --{flag}{shown[flag]}" if flag in shown else argparse.SUPPRESS
        dest = attribute_of(flag)
        if kind == "flag":
            group.add_argument(f"--sglang-{flag}", dest=dest, action="store_true", default=None, help=text)
        else:
            nargs = "+" if kind.endswith("+") else None
            group.add_argument(f"--sglang-{flag}", dest=dest, type=types[kind.rstrip("+")], nargs=nargs, help=text)


def main() -> None:
    """Write the record from the installed version."""
    version, flags = installed_flags()
    RECORD.write_text(json.dumps({"version": version, "flags": flags}, indent=0) + "\n")
    print(f"{RECORD.name}: {len(flags)} flags of sglang {version}", file=sys.stderr)


if __name__ == "__main__":
    main()
