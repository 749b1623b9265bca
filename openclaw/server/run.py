"""Runs an engine and a gateway.

Guarantees: whenever `serve` returns, every process that it started is gone and the conversations are exported. An engine
or gateway that dies is restarted. No trainer, no judge, no Ray.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from groundwork.private_files import private_run_folder
from groundwork.process import StopRequested
from openclaw.config.runtime import RuntimeConfig
from openclaw.ledger.conversations import CONVERSATIONS_NAME, write_conversations
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import counted
from openclaw.runtime.process import RuntimeSupervisor
from openclaw.runtime.start import supervise
from openclaw.runtime.where import LEDGER_NAME, RUNTIME_LOG_NAME
from openclaw.server.collect import record_model
from openclaw.server.options import ServerOptions
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.arguments.vllm import ENGINE_NAMES
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.vllm_utils.engine import engine_type

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
SEED = 1234
HANG_SECONDS = 30.0
"""Restart an engine that is unhealthy for this many seconds."""


def serve(options: ServerOptions, say: Callable[[str], None] = print) -> int:
    """Serve until SIGINT or SIGTERM; return the exit status.

    Raises:
        ConfigError: if the configuration is invalid.
        EngineError: if the engine does not start.
        OSError: if another process listens on the port.
        RuntimeFailedError: if the gateway does not stay up.
    """
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="openclaw-server-")))
        if warning := private_run_folder(folder):
            say(f"warning: {warning}")
        environment = {**os.environ, "OPENCLAW_LEDGER": str(folder / LEDGER_NAME), **options.runtime}
        environment["OPENCLAW_POLICY_URL"] = options.engine_url or "http://127.0.0.1:1"
        config = RuntimeConfig.from_env(environment)
        if options.folder is not None:
            record_model(folder, options.model)
            stack.callback(export, folder, say)
        engine = None
        if options.engine_url is None:
            say(
                f"starting {ENGINE_NAMES[options.backend]} on {options.device} with {options.model}; its log is {folder / 'logs'}"
            )
            engine = stack.enter_context(running_engine(options, folder, config.context_length))
            environment["OPENCLAW_POLICY_URL"] = engine.url()
        supervisor, url = supervise(environment, folder / RUNTIME_LOG_NAME)
        stack.callback(supervisor.stop)
        supervisor.start()
        stop = StopRequested().install()
        kept = f"turns are recorded in {folder}" if options.folder else "nothing is recorded"
        say(f"serving {config.model_name} at {url}/v1; {kept}; Ctrl-C ends it")
        watch(stop, engine, supervisor, folder if options.folder else None, options.export_seconds)
        say("stopping")
    return stop.exit_code


@contextmanager
def running_engine(options: ServerOptions, folder: Path, context_length: int) -> Iterator[SGLangEngine]:
    """Run an engine for the duration of the block."""
    arguments = Arguments(
        run_dir=str(folder),
        hf_checkpoint=options.model,
        seed=SEED,
        device=options.device,
        weight_update_mode="retract",
        rollout_health_check_timeout=HANG_SECONDS,
        rollout_health_check_first_wait=0.0,
        sglang_context_length=context_length,
        backend=options.backend,
        update_weight_mode="full",
    )
    engine = engine_type(arguments)(arguments, EngineSpec("policy", 0, max(1, len(options.gpu_ids)), options.gpu_ids))
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()


def watch(
    stop: StopRequested,
    engine: SGLangEngine | None,
    supervisor: RuntimeSupervisor,
    folder: Path | None,
    export_seconds: float,
) -> None:
    """Keep engine and gateway alive and export regularly until ``stop``."""
    due = time.monotonic() + export_seconds
    while not stop.wait(POLL_SECONDS):
        supervisor.check()
        if engine is not None:
            engine.restart_if_dead()
        if folder is not None and time.monotonic() >= due:
            export(folder)
            due = time.monotonic() + export_seconds


def export(folder: Path, say: Callable[[str], None] | None = None) -> None:
    """Export the ledger of ``folder``, if there is one, as JSON lines."""
    if not (folder / LEDGER_NAME).exists():
        return
    ledger = Ledger(folder / LEDGER_NAME)
    try:
        count = write_conversations(ledger, folder / CONVERSATIONS_NAME)
    finally:
        ledger.close()
    if say:
        say(f"{counted(count, 'conversation')} in {folder / CONVERSATIONS_NAME}")
