"""Start a run's runtime process: choose its ledger, build its environment, supervise it.

Guarantees: `RuntimeConfig` checks the environment before anything starts, and no other process listens on the port. This
module keeps no state: the caller owns the returned `RuntimeSupervisor`, which owns the process.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from groundwork.private_files import private, private_folder
from groundwork.process import spawn
from groundwork.start_timeline import GATEWAY, Step, mark
from openclaw.config.runtime import VARIABLES, RuntimeConfig
from openclaw.config.runtime_variables import GATE_PATH
from openclaw.gateway.tls import check_certificate, own_certificate_context
from openclaw.method import load_method
from openclaw.runtime.process import PORT_PATIENCE_SECONDS, RuntimeSupervisor, answers, free_port
from openclaw.runtime.where import (
    RUNTIME_LOG_NAME,
    SETTINGS_NAME,
    ledger_path,
    own_import_paths,
    reachable_host,
    requests_path,
)
from slime.args import Arguments

logger = logging.getLogger(__name__)

# Arguments that supply a variable if the caller does not set it; the first argument with a value counts.
PROPOSED_BY_ARGUMENTS = {
    "OPENCLAW_TOP_P": ("rollout_top_p",),
    "OPENCLAW_MAX_TOKENS": ("rollout_max_response_len",),
    "CONTEXT_LENGTH": ("rollout_max_context_len", "sglang_context_length"),
    "PRM_M": ("prm_m",),
    "PRM_TEMPERATURE": ("prm_temperature",),
    "PRM_MAX_NEW_TOKENS": ("prm_max_new_tokens",),
    "PRM_STEP_COEF": ("prm_step_coef",),
}


def runtime_environment(
    args: Arguments, method_path: str, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the runtime process's environment.

    The caller's variables win over values that the arguments propose. The child uses this process's import paths. The
    run decides addresses, tokenizers, ledger, temperature, teacher and top K. A conflicting temperature, teacher or top
    K is an error: turns sampled at another temperature cannot be trained, and a loss would miss its teacher tokens.

    Raises:
        ValueError: the method asks a judge and the run has none, values conflict, or no turn could be trained.
        ConfigError: a variable has an invalid value.
    """
    caller = RuntimeConfig.from_env(environment)
    own_judge = bool(args.prm_router_ip) and not caller.judged_elsewhere
    judged = own_judge or caller.judged_elsewhere
    if not judged and load_method(method_path, caller, environment).judges().asks_judge:
        raise ValueError(
            "judging needs a judge engine; add --prm-enable --prm-num-gpus 1 --prm-model-path PATH, or set "
            "OPENCLAW_JUDGE_BASE_URL or OPENCLAW_JUDGE_CLASS"
        )
    judge = {
        "OPENCLAW_JUDGE_URL": f"http://{args.prm_router_ip}:{args.prm_router_port}",
        "OPENCLAW_JUDGE_TOKENIZER": str(args.prm_model_path or args.hf_checkpoint),
    }
    decided = {
        "OPENCLAW_METHOD": method_path,
        "OPENCLAW_POLICY_URL": f"http://{args.sglang_router_ip}:{args.sglang_router_port}",
        **(judge if own_judge else {}),
        **RuntimeConfig.declared("tokenizer").setting(args.hf_checkpoint),
        "OPENCLAW_LEDGER": str(ledger_path(args, environment)),
        "OPENCLAW_RUN_DIR": str(Path(args.run_dir).absolute()),
        "OPENCLAW_OPD_TEACHER": args.opd_teacher,
        "OPENCLAW_DISTILL_TOPK": str(args.distill_topk),
        "OPENCLAW_TEMPERATURE": str(args.rollout_temperature),
        "OPENCLAW_ADAPTER_PER_PERSON": str(int(args.adapter_per_person)),
        **({} if _asks_probes(args, caller) else {"OPENCLAW_GATE_SHARE": "0"}),
    }
    for name, (field, flag, value) in {
        "OPENCLAW_TEMPERATURE": ("temperature", "--rollout-temperature", args.rollout_temperature),
        "OPENCLAW_OPD_TEACHER": ("opd_teacher", "--opd-teacher", args.opd_teacher),
        "OPENCLAW_DISTILL_TOPK": ("distill_topk", "--distill-topk", args.distill_topk),
    }.items():
        if caller.sources[name] != "default" and getattr(caller, field) != value:
            raise ValueError(f"{name}={getattr(caller, field)} contradicts {flag} {value}; unset {name}")
    proposed = {
        name: str(value)
        for name, attributes in PROPOSED_BY_ARGUMENTS.items()
        if caller.sources[name] == "default" and (value := _first_set(args, attributes)) is not None
    }
    result = {**environment, **proposed, **decided, "PYTHONPATH": os.pathsep.join(own_import_paths())}
    if RuntimeConfig.from_env(result).top_p < 1:
        raise ValueError(
            "turns sampled with top_p below 1 are never trained, so this run would never take a step; "
            "set --rollout-top-p 1 and unset OPENCLAW_TOP_P"
        )
    return result


def _asks_probes(args: Arguments, caller: RuntimeConfig) -> bool:
    """Return whether something asks the turns that are kept out of training: the gate, or a function whose user set the share."""
    shared = caller.sources["OPENCLAW_GATE_SHARE"] != "default"
    return args.before_push_path == GATE_PATH or (bool(args.before_push_path) and shared)


def _first_set(args: Arguments, attributes: tuple[str, ...]) -> Any:
    values = (getattr(args, attribute) for attribute in attributes)
    return next((value for value in values if value is not None), None)


def health_check(config: RuntimeConfig) -> Callable[[str], bool]:
    """Return a health check of the gateway; over https it trusts only the gateway's own certificate.

    Each check reads the certificate again, because it may be renewed during the run.

    Raises:
        ConfigError: the certificate is invalid.
    """
    check_certificate(config)
    if not config.tls_cert:
        return answers
    cert = config.tls_cert
    return lambda url: answers(url, context=own_certificate_context(cert))


def supervise(
    environment: Mapping[str, str], log_path: Path, port_patience: float = 0.0
) -> tuple[RuntimeSupervisor, str]:
    """Return an unstarted supervisor of a runtime process with this environment, and the gateway's URL.

    ``port_patience``: see `free_port`.

    Raises:
        ConfigError: a variable has an invalid value.
        OSError: another process listens on the port.
    """
    config = RuntimeConfig.from_env(environment)
    ready = health_check(config)
    port = free_port(config.host, config.port, port_patience)
    own = {**environment, **RuntimeConfig.declared("port").setting(port)}
    url = f"{config.scheme}://{reachable_host(config.host)}:{port}"
    supervisor = RuntimeSupervisor(
        lambda: spawn([sys.executable, "-m", "openclaw.runtime"], env=own, log_path=log_path, name="runtime"),
        health_url=f"{url}/healthz",
        log_path=log_path,
        ready=ready,
        frozen_seconds=config.frozen_seconds,
        requests_path=requests_path(config.ledger) if config.ledger else None,
    )
    return supervisor, url


def write_settings(run_dir: Path, config: RuntimeConfig) -> None:
    """Write the runtime's variables that are not defaults to the run's folder, without secrets, for `openclaw.runs`."""
    private_folder(run_dir)
    secret = {variable.name for variable in VARIABLES if variable.secret}
    shown = {name: value for name, value, source in config.describe() if source != "default" and name not in secret}
    with open(run_dir / SETTINGS_NAME, "w", encoding="utf-8", opener=private) as file:
        json.dump(shown, file, indent=1)


def start_runtime(args: Arguments, method_path: str) -> RuntimeSupervisor:
    """Start a runtime process and return its supervisor, which the caller must stop.

    Raises:
        ConfigError: a variable has an invalid value, or the method cannot be built or lacks a part. The child would
            die of it again and again.
    """
    environment = runtime_environment(args, method_path)
    config = RuntimeConfig.from_env(environment)
    load_method(method_path, config, environment)
    write_settings(Path(args.run_dir), config)
    supervisor, url = supervise(environment, Path(args.run_dir) / RUNTIME_LOG_NAME, PORT_PATIENCE_SECONDS)
    mark(args.run_dir, GATEWAY, Step.STARTED)
    supervisor.start()
    logger.info("the gateway serves %s/v1; its log is in %s", url, args.run_dir)
    return supervisor
