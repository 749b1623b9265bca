"""``python -m openclaw.tinker``: let programs train adapters of a model over the Tinker interface.

Flags of `slime.arguments` say which model, devices and engines; ``HOST``, ``PORT`` and keys are those of the gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from groundwork.exceptions import ConfigError
from groundwork.process import Stopped, StopRequested, watch_lifeline
from openclaw.config.runtime import RuntimeConfig
from openclaw.exceptions import OpenClawError
from slime.args import Arguments
from slime.clients.arguments import client_arguments
from slime.exceptions import SlimeError

if TYPE_CHECKING:
    from openclaw.tinker.app import Server
    from openclaw.tinker.desk import Desk
    from openclaw.tinker.sampler import Sampler

COMMON = (
    *("--config", "--dry-run", "--hf-checkpoint", "--run-dir", "--device", "--num-gpus", "--actor-num-gpus-per-node"),
    *("--rollout-num-gpus", "--rollout-num-gpus-per-engine", "--lora-rank", "--max-tokens-per-gpu"),
    *("--served-name", "--tokenizer-name", "--snapshot-steps", "--most-models"),
)
FAILED, WRONG = 1, 2
DEFAULT_PORT = "8010"
LOG_NAME = "commands.sqlite"
LOOK_SECONDS = 0.5


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare this program's own flags."""
    from slime.arguments.cluster import CLUSTER
    from slime.arguments.parser import Parser
    from slime.arguments.sglang_flags import TITLE as ENGINES
    from slime.arguments.trainer import LORA

    if isinstance(parser, Parser):
        parser.common, parser.topics = COMMON, (CLUSTER.title, LORA.title, ENGINES)
    parser.prog = "openclaw-rl tinker"
    parser.description = (
        "Serve the Tinker interface: programs that use the package tinker train adapters of --hf-checkpoint here."
    )
    group = parser.add_argument_group("programs")
    group.add_argument(
        "--served-name",
        metavar="NAME",
        help="name by which programs ask for the model (default: the checkpoint's folder)",
    )
    group.add_argument(
        "--tokenizer-name",
        metavar="NAME",
        help="where programs load the tokenizer from (default: --hf-checkpoint, which must be on their machine)",
    )
    group.add_argument(
        "--snapshot-steps",
        type=_positive,
        default=8,
        metavar="N",
        help="write a model's state after every N steps; a server that was killed repeats the steps since (default: %(default)s)",
    )
    group.add_argument(
        "--most-models",
        type=_positive,
        default=64,
        metavar="N",
        help="models that are trained at a time (default: %(default)s)",
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("below 1")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal arrives; return the exit status."""
    watch_lifeline()
    args = client_arguments(sys.argv[1:] if argv is None else argv, add_flags)
    missing = [name for name in ("ray", "sglang", "tinker", "torch", "zstandard") if find_spec(name) is None]
    if missing:
        print(f"openclaw-rl tinker: this environment lacks {', '.join(missing)}; see scripts/setup.sh", file=sys.stderr)
        return WRONG
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop = StopRequested().install()
    try:
        config = RuntimeConfig.from_env({"PORT": DEFAULT_PORT, **os.environ})
        return serve(args, config, stop)
    except Stopped:
        return stop.exit_code
    except (OpenClawError, SlimeError, ConfigError, OSError) as error:
        print(f"openclaw-rl tinker: {error}", file=sys.stderr)
        return WRONG if isinstance(error, ConfigError) else FAILED


def serve(args: Arguments, config: RuntimeConfig, stop: StopRequested) -> int:
    """Start engines and ranks, and serve until ``stop``."""
    from openclaw.gateway.auth import Keyring
    from openclaw.gateway.guard import Doorway
    from openclaw.gateway.usage import UsageDesk
    from openclaw.runtime.serve import room_for_connections
    from openclaw.tinker.app import MOST_SAMPLES, Server, check_quota
    from openclaw.tinker.desk import Desk, Offer
    from openclaw.tinker.log import CommandLog
    from openclaw.tinker.sampler import Sampler
    from slime.ray.clients import ClientMachine
    from slime.utils.run_logs import say

    own = {name: vars(args)[name] for name in ("served_name", "tokenizer_name", "snapshot_steps", "most_models")}
    folder = Path(args.run_dir)
    say(f"starts   the engines and {args.actor_num_nodes * args.actor_num_gpus_per_node} training rank(s)")
    with ClientMachine(args, stop) as machine, closing(CommandLog(folder / LOG_NAME)) as log:
        offer = Offer(
            name=own["served_name"] or Path(str(args.hf_checkpoint)).name,
            tokenizer=own["tokenizer_name"] or str(args.hf_checkpoint),
            architecture=machine.architecture,
            context=machine.context,
            rank=int(args.lora_rank),
            modules=list(args.lora_target_modules),
            folder=folder,
            snapshot_steps=own["snapshot_steps"],
            most_models=own["most_models"],
        )
        keyring = Keyring(config.api_key, config.api_keys_file)
        meters = UsageDesk(config, log.usage, keyring, time.time)
        desk = Desk(log, machine, offer, check_quota=partial(check_quota, meters))
        sampler = Sampler(machine.engines, machine.vocabulary, offer.context, room_for_connections(MOST_SAMPLES))
        server = Server(log, desk, sampler, keyring, Doorway(config), meters)
        thread = threading.Thread(target=desk.run, name="desk")
        thread.start()
        try:
            asyncio.run(_serve(server, desk, sampler, config, stop, thread))
        finally:
            if thread.is_alive():
                say("stopping; the state of every model is written")
            desk.stop()
            thread.join()
    return stop.exit_code


async def _serve(
    server: Server,
    desk: Desk,
    sampler: Sampler,
    config: RuntimeConfig,
    stop: StopRequested,
    thread: threading.Thread,
) -> None:
    import uvicorn

    from openclaw.tinker.app import create_app
    from slime.utils.run_logs import say

    loop = asyncio.get_running_loop()
    desk.on_done = lambda identity: _tell(loop, server, identity)
    sweeping = asyncio.create_task(server.sweep())
    web = uvicorn.Server(
        uvicorn.Config(create_app(server), config.host, config.port, log_level="warning", lifespan="off")
    )
    web.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(web.serve())
    say(
        f"serving  {desk.offer.name} at http://{config.host}:{config.port}; TINKER_BASE_URL is this address; Ctrl-C ends it"
    )
    try:
        while not stop and thread.is_alive() and not serving.done():
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        web.should_exit = web.force_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        sweeping.cancel()
        await sampler.close()
    if not stop and not thread.is_alive():
        raise OpenClawError("the thread that runs commands ended; its log is above")


def _tell(loop: asyncio.AbstractEventLoop, server: Server, identity: str) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(server.done, identity)


if __name__ == "__main__":
    sys.exit(main())
