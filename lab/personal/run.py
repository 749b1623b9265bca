"""One run with simulated users: sessions until a rule is followed, and scores of first replies after some updates.

`python openclaw-test/personal_run.py --method combine --users student,captain --report r.json`. The run is the real one on
a CPU (SGLang, Ray, FSDP2, gateway, judge, ledger). With one user the model is that user's own, with several they
share it. `python -m benchmarks.personalization` holds many such runs and compares them.

Guarantees: exit status 0 and a report only if everything was measured. What was started is stopped, also on Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from datetime import datetime
from pathlib import Path
from typing import Any

from asking import server_client
from measure import MeasureError
from simulated_users.llm import KEY_VARIABLE, MAX_TOKENS, LlmVoice, UserModelError, user_model_client
from simulated_users.reaction import PhraseVoice
from simulated_users.reading import find_users
from simulated_users.user import User
from simulated_users.workspace import CHAT, Chat, Workspace
from student import Refused, Student

from groundwork.command_line import CommandLine, new_output_file, port_number, server_url
from groundwork.exceptions import ConfigError
from groundwork.network import find_available_port
from lab.personal.sizes import BASE, Sizes
from lab.personal.talking import Speaker, Talk
from lab.personal.trainer import Trainer
from lab.tiny_demo.launched import ENDLESS, MODEL_NAME, REPOSITORY, LaunchedRun, RunFailed, Settings
from lab.tiny_demo.options import method_of
from lab.tiny_demo.planned import refuse_bad_plan
from lab.tiny_demo.report import save
from lab.tiny_models.build import BuildError, ensure_built
from lab.tiny_models.cache import model_path
from openclaw.ledger.store import Ledger

BASE_RUNS_AS = "rl"
"""The method of the run that serves the base model; its trainer gets no sample."""
TEMPERATURE_VARIABLE = "OPENCLAW_TEMPERATURE"
FAILURES = (RunFailed, Refused, MeasureError, UserModelError, BuildError)


def build_parser() -> CommandLine:
    """Return the parser; options that it does not know go to the launcher."""
    sizes = Sizes()
    parser = CommandLine(prog="personal_run.py", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--method", required=True, help=f"name or folder of a method, or {BASE}, which trains nothing")
    add("--users", required=True, help="names or YAML files, comma-separated; several share one model")
    add("--seed", type=int, default=0, help="of the run and of the users' words (default: %(default)s)")
    add("--report", type=new_output_file, required=True, help="file for the report (JSON)")
    add("--most-sessions", type=int, default=sizes.most_sessions, help="counted, per user (default: %(default)s)")
    after = ",".join(map(str, sizes.score_after))
    add("--score-after", default=after, help="updates, comma-separated; 0 scores the base only (default: %(default)s)")
    add("--heldout", type=int, default=sizes.heldout, help="problems of a score, per user (default: %(default)s)")
    add("--more-sessions", type=int, default=sizes.more_sessions, help="until the last score (default: %(default)s)")
    add("--parallel", type=int, default=sizes.parallel, help="conversations at a time in these (default: %(default)s)")
    add("--workspace", action="store_true", help="homework as files, simulated in messages (default: in the chat)")
    add(
        "--user-base-url",
        type=server_url,
        metavar="URL",
        help=f"server of an LLM that writes the reactions; key: {KEY_VARIABLE}",
    )
    add("--user-model", default="default", help="model name in requests to it (default: %(default)s)")
    add("--user-max-tokens", type=int, default=MAX_TOKENS, help="limit on a reaction (default: %(default)s)")
    add("--port", type=port_number, default=None, help="of the gateway (default: a free one)")
    add("--run-dir", type=Path, default=None, help="for logs, ledger and checkpoints (default: runs/...)")
    add("--dry-run", action="store_true", help="check users, sizes and the run's plan; start nothing")
    return parser


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options with users, sizes and the launcher's settings, all checked."""
    parser = build_parser()
    options, extra = parser.parse_known_args(argv)
    try:
        options.people = find_users(options.users.split(","))
        after = tuple(int(word) for word in options.score_after.split(",") if word != "0")
        options.sizes = Sizes(
            options.most_sessions, after, options.heldout, options.more_sessions, parallel=options.parallel
        )
        method = BASE_RUNS_AS if options.method == BASE else method_of(options.method)[0]
        set_temperature(options.people)
    except (ValueError, ConfigError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
    run_dir = (options.run_dir or REPOSITORY / "runs" / f"personal-{Path(options.method).name}-{stamp}").absolute()
    port = options.port or find_available_port()
    options.settings = Settings(method, ENDLESS, options.seed, port, run_dir, model_path(), extra)
    options.own_flags = parser.known_flags()
    return options


def set_temperature(people: Sequence[User]) -> None:
    """Have the run sample at the temperature that the users ask for, because it trains on no reply at another one.

    Raises:
        ConfigError: they differ.
    """
    asked = {user.temperature for user in people if user.temperature is not None}
    if len(asked) > 1:
        raise ConfigError(f"the users ask for the temperatures {sorted(asked)}; a run has one, so give them the same")
    for temperature in asked:
        os.environ[TEMPERATURE_VARIABLE] = str(temperature)


async def carry_out(options: argparse.Namespace) -> dict[str, Any]:
    """Start the run, talk, measure, stop; return the report.

    Raises:
        RunFailed, Refused, MeasureError, UserModelError: something did not work.
    """
    settings, started, load = options.settings, time.monotonic(), os.getloadavg()[0]
    run, trained = LaunchedRun(settings), options.method != BASE
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(server_client(settings.base_url, 120))
        asked = None
        if options.user_base_url:
            asked = await stack.enter_async_context(user_model_client(options.user_base_url))
        os.environ.pop(KEY_VARIABLE, None)  # the run and its processes have no use for it
        try:
            run.start()
            tell(f"starting {settings.method} (log: {run.log_path})")
            await run.wait_ready()
            up = time.monotonic() - started
            form = Workspace(settings.run_dir / "workspace") if options.workspace else Chat()
            speakers = [
                Speaker(
                    user,
                    Student(
                        *(client, MODEL_NAME),
                        seed=options.seed,
                        user=user,
                        voice=LlmVoice(asked, options.user_model, user, options.user_max_tokens)
                        if asked
                        else PhraseVoice(user),
                        form=form,
                        trained=trained,
                    ),
                )
                for user in options.people
            ]
            with closing(Ledger(settings.ledger)) as ledger:
                trainer = Trainer(run, ledger)
                talk = Talk(client, MODEL_NAME, speakers, trainer if trained else None, options.sizes, tell)
                await talk.hold()
                updates, samples = trainer.updates, trainer.samples_trained
            counts, cpu = await run.gateway_counts(), run.cpu_seconds()
        finally:
            await asyncio.shield(asyncio.to_thread(run.stop))
    seconds = {"start": up, **talk.seconds, "total": time.monotonic() - started}
    return {
        "method": options.method,
        "users": [user.name for user in options.people],
        "seed": options.seed,
        "flags": list(settings.extra),
        "sizes": options.sizes.as_record(),
        "homework": form.described if options.workspace else CHAT,
        "reactions": f"LLM {options.user_model}" if asked else "phrases",
        "batch": trainer.batch,
        "updates": updates,
        "samples_trained": samples,
        "per_user": {speaker.user.name: spoken(speaker) for speaker in speakers},
        "requests": int(counts["requests"]),
        "refused": max(int(counts["refused"]), sum(speaker.student.tally.refused for speaker in speakers)),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "cpu_seconds": round(cpu, 1),
        "load_average": {"start": round(load, 1), "end": round(os.getloadavg()[0], 1)},
        "tiny_model": settings.model.name,
    }


def spoken(speaker: Speaker) -> dict[str, Any]:
    """Return what is recorded of one user."""
    return {
        "wish": speaker.user.wish,
        "turns": speaker.user.turns,
        "sessions_to_follow": speaker.sessions,
        "first_replies_liked": "".join("1" if liked else "0" for liked in speaker.liked),
        "sessions_held": speaker.student.tally.sessions,
        "complaints": speaker.student.tally.complaints,
        "scores": speaker.scores,
    }


def tell(text: str) -> None:
    """Print a line of progress."""
    print(text, flush=True)


def dry_run(options: argparse.Namespace) -> int:
    """Say what would be measured; start nothing."""
    for user in options.people:
        tell(f"user     {user.name}: {user.wish}")
    sizes: Sizes = options.sizes
    tell(f"counts   at most {sizes.most_sessions} sessions of each user, one after the other")
    tell(f"scores   {sizes.heldout} problems, after {', '.join(map(str, (0, *sizes.score_after)))} updates")
    tell(f"runs     {' '.join(options.settings.launcher_words)}")
    return 0


async def interruptible(options: argparse.Namespace) -> dict[str, Any]:
    """Carry out; SIGINT and SIGTERM cancel it once, so that it still stops what it started."""
    task = asyncio.ensure_future(carry_out(options))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task


def main() -> int:
    """Command line."""
    options = parse()
    refuse_bad_plan(options.settings, options.own_flags)
    if options.dry_run:
        return dry_run(options)
    try:
        ensure_built()
        report = asyncio.run(interruptible(options))
    except (asyncio.CancelledError, KeyboardInterrupt):
        print("stopped", file=sys.stderr)
        return 130
    except FAILURES as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    save(report, options.report)
    tell(json.dumps(report["per_user"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
