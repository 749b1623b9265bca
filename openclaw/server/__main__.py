"""``python -m openclaw.server``: serve a model and record its conversations, without training. Errors are one line."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from groundwork.exceptions import ConfigError
from groundwork.process import watch_lifeline
from openclaw.config.runtime import RuntimeConfig
from openclaw.exceptions import OpenClawError
from openclaw.launch.names import check_names, name_warnings
from openclaw.launch.report import limit_lines
from openclaw.models.places import missing_model
from openclaw.runtime.process import reserve_port
from openclaw.server.options import ServerOptions, build_parser, missing_gpus, read_options
from slime.arguments.vllm import ENGINE_NAMES
from slime.exceptions import SlimeError

CONFIG_EXIT = 2
INTERRUPTED_EXIT = 130
_reserved: list[socket.socket] = []


def main(argv: Sequence[str] | None = None, prog: str = "python -m openclaw.server") -> int:
    """Run the server with the options ``argv``; return the exit status."""
    watch_lifeline()
    arguments = build_parser(prog).parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        check_names(os.environ)
        for warning in name_warnings(os.environ):
            print(f"warning: {warning}", file=sys.stderr)
        options = read_options(arguments, os.environ)
        missing = missing_model(options.model, weights=options.engine_url is None)
        if arguments.dry_run:
            show_plan(options, os.environ, missing)
            return 0
        if missing:
            raise ConfigError(f"--model-path {missing}")
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # until `serve` handles signals: end what was started
        check_port(options, os.environ)
        from openclaw.server.run import serve  # imports the engine's and the gateway's libraries

        return serve(options, say)
    except (OpenClawError, SlimeError, ConfigError, OSError) as error:
        print(f"openclaw.server: {error}", file=sys.stderr)
        return CONFIG_EXIT
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT


def check_port(options: ServerOptions, environment: Mapping[str, str]) -> None:
    """Reserve the gateway's port for this process.

    Raises:
        OSError: another process listens on it, or is starting and will.
    """
    config = RuntimeConfig.from_env({**environment, **options.runtime})
    if config.port:
        _reserved.append(reserve_port(config.host, config.port, setting=options.port_setting))


def show_plan(options: ServerOptions, environment: Mapping[str, str], missing: str | None = None) -> None:
    """Print the plan of the server, with a warning if its model is ``missing`` on this machine.

    Raises:
        ConfigError: if the gateway's variables are invalid.
    """
    config = RuntimeConfig.from_env({**environment, **options.runtime})
    gpus = f"GPU {','.join(map(str, options.gpu_ids))}" if options.gpu_ids else options.device
    print(f"model    {options.model}")
    print(f"engine   {options.engine_url or f'{ENGINE_NAMES[options.backend]} on {gpus}'}")
    print(f"gateway  http://{config.host}:{config.port}/v1, context {config.context_length}")
    print(f"records  {options.folder or 'nothing'}")
    print("limits of the gateway (name, value, unit, variable):", *limit_lines(config), sep="\n")
    if missing:
        print(f"warning: not found on this machine: --model-path {missing}")
    if problem := missing_gpus(options.gpu_ids):
        print(f"warning: this machine cannot run it: {problem}")
    print("dry run: the plan is valid, nothing was started")


def say(text: str) -> None:
    """Print a line without buffering."""
    print(f"openclaw.server: {text}", flush=True)


if __name__ == "__main__":
    if "--dry-run" in sys.argv:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--dry-run | head` ends quietly
    sys.exit(main())
