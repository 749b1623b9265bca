"""Resolves the command line and variables of ``python -m openclaw.server`` into a plan.

Guarantees: pure; an option wins over its variable, a variable over the default. An invalid combination is a
`ConfigError` that says what to type.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from groundwork.command_line import CommandLine, port_number
from groundwork.exceptions import ConfigError
from openclaw.config.runtime import RuntimeConfig
from openclaw.launch.variables import LaunchVariables, parse_gpus
from openclaw.models.places import served_folder
from openclaw.runtime.where import LEDGER_NAME, own_import_paths
from slime.arguments.rollout import forces_context
from slime.arguments.validate import visible_gpus
from slime.arguments.vllm import BACKENDS, SGLANG, vllm_missing
from slime.utils.model_config import config_or_none, context_limit

DEFAULT_FOLDER = "rl_buffer"

MAX_CONTEXT = 32768
JUDGE_SHARE = 2
"""No judge runs here, but later training with the same variables needs room for its answers in the context."""


@dataclass(frozen=True)
class ServerOptions:
    """The plan of a server.

    Attributes:
        model: checkpoint folder, or name on the hub.
        engine_url: of a running SGLang; None starts one.
        device: of the engine.
        gpu_ids: GPUs of the engine; empty on a CPU.
        folder: of ledger, logs and exported conversations; None records nothing.
        export_seconds: seconds between two exports.
        runtime: the gateway's variables that follow from the options.
        port_setting: the option or variable that sets the port.
    """

    model: str
    engine_url: str | None
    device: Literal["cpu", "cuda"]
    gpu_ids: tuple[int, ...]
    folder: Path | None
    export_seconds: float
    runtime: Mapping[str, str]
    port_setting: str = "--port"
    backend: Literal["sglang", "vllm"] = "sglang"


def build_parser(prog: str = "python -m openclaw.server") -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(
        prog=prog,
        description="Serve a model through the OpenAI API and record its conversations, without training. "
        "Every variable of the gateway works here too (instructions/configuration.md).",
    )
    add = parser.add_argument
    add(
        "--model-path",
        metavar="P",
        help="checkpoint folder, or OWNER/NAME in the hub's cache (variable BASE_MODEL_PATH)",
    )
    add("--host", help="address to listen on (OPENCLAW_HOST or HOST; default: 127.0.0.1)")
    add("--port", type=port_number, help="port to listen on (OPENCLAW_PORT or PORT; default: 30000)")
    add("--backend", choices=BACKENDS, default=SGLANG, help="engine to start (default: %(default)s)")
    add("--engine-url", metavar="URL", help="use the SGLang server at this URL instead of starting one")
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="device of the engine (default: a GPU if there is one)",
    )
    add(
        "--gpu-ids",
        metavar="IDS",
        help="GPUs of the engine, for example 0,1; together they serve one copy of the model",
    )
    add("--enable-rl-intercept", action="store_true", help="record every turn for training (default: record nothing)")
    add(
        "--rl-buffer-dir",
        type=Path,
        metavar="D",
        help=f"folder of the recorded turns, with --enable-rl-intercept (default: ./{DEFAULT_FOLDER})",
    )
    add(
        "--export-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds between two exports to conversations.jsonl (default: 60)",
    )
    add("--dry-run", action="store_true", help="print the plan and start nothing")
    return parser


def read_options(arguments: argparse.Namespace, environment: Mapping[str, str]) -> ServerOptions:
    """Return the plan for a command line and environment.

    Raises:
        ConfigError: if the plan is invalid.
    """
    checkpoint = LaunchVariables.declared("hf_ckpt")
    if not arguments.model_path and not checkpoint.is_set(environment):
        raise ConfigError("no model; write --model-path FOLDER or set BASE_MODEL_PATH")
    model = served_folder(arguments.model_path or str(checkpoint.read(environment)[0]))
    model = str(Path(model).absolute()) if Path(model).is_dir() else model
    if arguments.rl_buffer_dir is not None and not arguments.enable_rl_intercept:
        raise ConfigError(
            "--rl-buffer-dir has no effect without --enable-rl-intercept; add that, or leave --rl-buffer-dir out"
        )
    if not arguments.export_seconds > 0:
        raise ConfigError(f"--export-seconds {arguments.export_seconds:g} is too small; write a number above 0")
    if not arguments.engine_url:
        check_context(model, environment)
    if arguments.backend != SGLANG:
        if arguments.engine_url:
            raise ConfigError("--engine-url names a running SGLang server; leave --backend vllm out")
        if not arguments.dry_run and (problem := vllm_missing(None)):
            raise ConfigError(problem)
    device, gpu_ids = _placement(arguments)
    folder = (arguments.rl_buffer_dir or Path(DEFAULT_FOLDER)).absolute() if arguments.enable_rl_intercept else None
    return ServerOptions(
        model=model,
        engine_url=arguments.engine_url,
        device=device,
        gpu_ids=gpu_ids,
        folder=folder,
        export_seconds=arguments.export_seconds,
        runtime=_runtime_variables(arguments, environment, model, folder),
        port_setting=_port_setting(arguments, environment),
        backend=arguments.backend,
    )


def _placement(arguments: argparse.Namespace) -> tuple[Literal["cpu", "cuda"], tuple[int, ...]]:
    """Return device and GPU numbers of the engine."""
    if arguments.engine_url:
        if arguments.gpu_ids or arguments.device != "auto":
            raise ConfigError("--engine-url uses a running engine; leave --gpu-ids and --device out")
        return "cpu", ()
    result = 0 if arguments.device == "cpu" else visible_gpus()
    if arguments.device == "cpu" or (arguments.device == "auto" and not result and not arguments.gpu_ids):
        if arguments.gpu_ids:
            raise ConfigError("--device cpu uses no GPU; leave --gpu-ids out")
        return "cpu", ()
    _, listed = parse_gpus("--gpu-ids", arguments.gpu_ids + "," if arguments.gpu_ids else "0,")
    ids = listed or (0,)
    if not arguments.dry_run and (problem := missing_gpus(ids)):
        raise ConfigError(problem)
    return "cuda", ids


def missing_gpus(ids: Sequence[int]) -> str | None:
    """Return why this machine lacks GPUs of these numbers, or None."""
    result = visible_gpus()
    if not ids or max(ids) < result:
        return None
    advice = "use other ids" if result else "write --device cpu in its place"
    return f"--gpu-ids {','.join(map(str, ids))}: the machine has {result} GPUs; {advice}"


def _port_setting(arguments: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """Return what set the port: the variable under the name that was used, else the option."""
    _, source = RuntimeConfig.declared("port").read(environment)
    return "--port" if arguments.port is not None or source == "default" else source


def _runtime_variables(
    arguments: argparse.Namespace, environment: Mapping[str, str], model: str, folder: Path | None
) -> dict[str, str]:
    """Return the gateway's variables that follow from the command line and the model."""
    decided = {"PYTHONPATH": os.pathsep.join(own_import_paths()), "OPENCLAW_METHOD": ""}
    decided |= RuntimeConfig.declared("tokenizer").setting(model)
    for field, option in (("host", arguments.host), ("port", arguments.port)):
        if option is not None:
            decided |= RuntimeConfig.declared(field).setting(option)
    if folder is not None:
        decided["OPENCLAW_LEDGER"] = str(folder / LEDGER_NAME)
        if not RuntimeConfig.declared("serve_rollouts").is_set(environment):
            decided["OPENCLAW_SERVE_ROLLOUTS"] = "1"
    return decided | lengths_of(model, environment)


def lengths_of(model: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of lengths that nobody set, as the model's context allows.

    Example: for a model of 2,048 tokens ``{"CONTEXT_LENGTH": "2048", "PRM_MAX_NEW_TOKENS": "1024"}``.
    """
    decided: dict[str, str] = {}
    if not RuntimeConfig.declared("context_length").is_set(environment):
        decided["CONTEXT_LENGTH"] = str(_context_length(model))
    context = int(decided.get("CONTEXT_LENGTH") or str(RuntimeConfig.declared("context_length").read(environment)[0]))
    if not RuntimeConfig.declared("prm_max_new_tokens").is_set(environment):
        decided["PRM_MAX_NEW_TOKENS"] = str(min(RuntimeConfig.prm_max_new_tokens, context // JUDGE_SHARE))
    return decided


def _context_length(model: str) -> int:
    """Return the model's context length, at most the bound; the bound if unknown."""
    return min(context_limit(config_or_none(model)) or MAX_CONTEXT, MAX_CONTEXT)


def check_context(model: str, environment: Mapping[str, str]) -> None:
    """Raise ConfigError if the context that the user set is longer than an engine gives the model."""
    limit, length = context_limit(config_or_none(model)), RuntimeConfig.declared("context_length")
    if not limit or not length.is_set(environment) or forces_context(environment):
        return
    tokens = int(str(length.read(environment)[0]))
    if tokens > limit:
        raise ConfigError(
            f"{length.name}={tokens} is more than the {limit} tokens that {model}/config.json allows; write {length.name}={limit}, "
            "or leave it out"
        )
