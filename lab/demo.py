"""The whole loop on a CPU or one GPU: builds the tiny model, starts a run, lets a student talk to it, measures before and after.
With `--live` you talk to it instead.

Guarantees: the exit status is 0 only if every update happened and everything was measured. The demo stops what it
started, also on Ctrl-C, SIGTERM or a crash. The run is the real one (SGLang, Ray, FSDP2, gateway, judge, ledger), started
by the launcher and reached only over the OpenAI API.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from asking import server_client
from measure import MeasureError, gsm8k_items, heldout_items, measure
from simulated_users.user import User
from student import STUDENT, Student

from groundwork.start_timeline import DEMO, Beginning, StartWatch, Step
from lab.tiny_demo import live, resume
from lab.tiny_demo import report as reports
from lab.tiny_demo.launched import DECIDED, ENDLESS, TINKER, LaunchedRun, RunFailed, Settings
from lab.tiny_demo.options import parse
from lab.tiny_demo.planned import refuse_bad_plan
from lab.tiny_demo.progress import Watch
from lab.tiny_demo.service import ADDRESS, OwnService
from lab.tiny_models.build import BuildError, ensure_built
from lab.tiny_models.cache import is_built, model_path
from lab.tiny_models.tastes import taste_named
from openclaw.launch.__main__ import main as launch
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import ARGUMENTS_NAME, chat_command

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from rich.console import Console

MODEL_NAME = "tiny"
POLL_SECONDS = 0.5
# The student waits while this many judged turns are ready, so that feedback concerns the current weights.
READY_LIMIT = 24
STUCK_SECONDS = 240.0
LIKES = "an update comes after every few complaints"
STARTS = {
    "cpu": "Ray, engines, trainer and gateway, in about a minute",
    "cuda": "Ray, engines, trainer and gateway, in minutes the first time, because kernels are compiled",
    "tinker": "Ray and gateway, in half a minute, because the service has the engines",
}
WHERE = {
    "cpu": "on this machine's CPU",
    "cuda": "on this machine's GPU",
    "tinker": "at a service of the Tinker interface",
}
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class DemoFailed(RuntimeError):
    """The demo failed."""


async def talk(run: LaunchedRun, client: AsyncOpenAI, ledger: Ledger, options: argparse.Namespace) -> tuple:
    """Let the student talk until every update is live; return its tally, the learning curve and the seconds."""
    state: resume.State = options.state
    started = last_step_at = time.monotonic()
    stop = asyncio.Event()

    async def may_go_on() -> None:
        while watch.ready >= READY_LIMIT and not stop.is_set():
            await asyncio.sleep(POLL_SECONDS / 2)

    name, seed = state.speaker(options.seed)
    user = user_of(options)
    student = Student(
        client,
        MODEL_NAME,
        seed=seed,
        name=name,
        max_turns=options.max_turns,
        user=user,
        plain=user is not STUDENT,
        may_go_on=may_go_on,
    )
    console = options.console
    with Watch(ledger, student.tally, options.updates, console, state.history) as watch:
        talking = asyncio.create_task(student.talk(options.sessions, stop))
        try:
            while not watch.done:
                await asyncio.sleep(POLL_SECONDS)
                run.check_trains()
                steps = watch.steps
                watch.look()
                if watch.steps > steps:
                    last_step_at = time.monotonic()
                    state.history = watch.history.points
                    state.save(options.run_dir)
                if talking.done():
                    raise DemoFailed("the student stopped talking") from talking.exception()
                if time.monotonic() - last_step_at > STUCK_SECONDS:
                    errors = "; ".join(student.tally.errors[-3:]) or "none"
                    raise DemoFailed(
                        f"no update for {STUCK_SECONDS:.0f} s after {watch.steps} of {options.updates}; refused requests: "
                        f"{errors}; see {run.log_path}"
                    )
        finally:
            seconds = time.monotonic() - started
            stop.set()
            if not watch.done:
                talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)
    return student.tally, watch.history.points, seconds


def user_of(options: argparse.Namespace) -> User:
    """Return who talks: the student, or a person with a taste whose client is plain."""
    return taste_named(options.taste) if options.taste else STUDENT


def settings_of(options: argparse.Namespace) -> Settings:
    """Return what the launcher is asked for."""
    return Settings(
        options.method,
        ENDLESS if options.live or options.keep_serving else options.updates,
        options.seed,
        options.port,
        options.run_dir,
        model_path(),
        options.launcher_arguments,
        options.resume,
        options.device,
        live.VARIABLES if options.live else {},
    )


def service_of(options: argparse.Namespace, model: Path) -> AbstractContextManager[object]:
    """Return the service of ``--device tinker``, unless the environment names one: our own server."""
    if options.device != TINKER or os.environ.get(ADDRESS):
        return nullcontext()
    tell(
        options.console,
        f"starts   a service of the Tinker interface, in a minute (log: {options.run_dir}/service/service.log)",
    )
    return OwnService(model, options.run_dir / "service")


def prepare(options: argparse.Namespace) -> Path:
    """Return the folder of the tiny model, built if it is missing, after looking at what could fail behind its minutes.

    The build has the main thread, so that SIGINT and SIGTERM end it at once.

    Raises:
        KeyboardInterrupt: on either signal.
    """
    if options.gsm8k:
        gsm8k_items(options.gsm8k)
    refuse_bad_plan(settings_of(options), options.own_flags)
    LaunchedRun(settings_of(options)).check_port()
    what = "learns from you" if options.live else f"{options.updates} updates"
    options.console.rule(f"openclaw-{options.title}: {what}, {WHERE[options.device]}")
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler)
    return ensure_built(console=options.console)


async def carry_out(options: argparse.Namespace, model: Path, started: float, beginning: Beginning) -> None:
    """Start, measure, talk, measure, report; stop what was started.

    Args:
        options: of the command line.
        model: folder of the tiny model.
        started: seconds of the monotonic clock, before the model was built.
        beginning: of the start's timeline.
    """
    console = options.console
    gsm8k = gsm8k_items(options.gsm8k) if options.gsm8k else []
    items = heldout_items(options.heldout)
    settings = settings_of(options)
    run = LaunchedRun(settings)
    metrics = json.loads((model / "metrics.json").read_text())
    client = server_client(settings.base_url, 120)
    watch = StartWatch(settings.run_dir, lambda line: tell(console, line), beginning)
    try:
        tell(console, f"starts   {STARTS[options.device]} (log: {run.log_path})")
        run.start(beginning)
        watch.start()
        with console.status("starting"):
            await run.wait_ready()
        tell(console, f"serves   {settings.base_url}, after {time.monotonic() - started:.0f} s")
        tell(console, f"watch    {settings.base_url.removesuffix('v1')} in a browser")
        ledger = Ledger(settings.ledger)

        likes = user_of(options).likes

        async def both() -> tuple:
            first = await measure(client, MODEL_NAME, items, likes=likes)
            return first, await measure(client, MODEL_NAME, gsm8k, likes=likes) if gsm8k else None

        state: resume.State = options.state
        before, gsm8k_before = state.before, state.gsm8k_before
        if before is None:
            tell(console, f"measures the model on {len(items)} problems that nobody trains on")
            with console.status("measuring"):
                before, gsm8k_before = await both()
        state.before, state.gsm8k_before = before, gsm8k_before
        state.save(settings.run_dir)
        tell(console, f"talks    {options.taste or STUDENT.name}, {options.sessions} conversations at once; {LIKES}")
        tally, history, seconds = await talk(run, client, ledger, options)
        tell(console, "measures the model again")
        with console.status("measuring"):
            after, gsm8k_after = await both()
        report = {
            "method": options.title,
            "seed": options.seed,
            "client": options.client,
            "taste": options.taste or STUDENT.name,
            **reports.traffic_fields(tally, await run.gateway_counts(), 2 * (len(items) + len(gsm8k)), seconds),
            **reports.ledger_fields(ledger),
            **reports.measured_fields(reports.Measured(before, after, gsm8k_before, gsm8k_after)),
            "judge_accuracy_heldout": metrics["judge_accuracy_heldout"],
            "tiny_model": model.name,
            "seconds_total": round(time.monotonic() - started, 1),
            "run_dir": str(settings.run_dir),
            "history": history,
        }
        ledger.close()
        finish(report, options)
        if options.keep_serving:
            await serve(run)
    finally:
        watch.close()
        with console.status("stopping"):
            await asyncio.shield(asyncio.to_thread(run.stop))
        await client.close()


def finish(report: reports.Report, options: argparse.Namespace) -> None:
    """Show the report, save its plot, then the report itself, whose file marks the end."""
    reports.show(report, options.console)
    plot = options.run_dir / "learning.png"
    try:
        reports.save_plot(report, plot)
        drawn = f", plot: {plot}"
    except ImportError:
        drawn = "; no plot: matplotlib is not installed"
    reports.save(report, options.report_path)
    options.reported = True
    tell(options.console, f"report   {options.report_path}{drawn}")
    for line in resume.look_lines(options.run_dir):
        tell(options.console, line)


def tell(console: Console, line: str) -> None:
    """Print a line that no terminal's width breaks."""
    console.print(line, soft_wrap=True, highlight=False)


def batch_size(settings: Settings) -> int:
    """Return the number of samples per step of a running run."""
    return json.loads((settings.run_dir / ARGUMENTS_NAME).read_text())["rollout_batch_size"]


async def serve(run: LaunchedRun) -> None:
    """Stay up until a signal: print how to talk to the model, and a line per update."""
    settings = run.settings
    body = '{"model": "tiny", "messages": [{"role": "user", "content": "Tom has 3 pears and gets 4 more. How many?"}]}'
    print(
        f"\nserving on {settings.base_url} until Ctrl-C, and learning from every {batch_size(settings)} samples; try:\n"
        f"  {chat_command(settings.base_url)}\n"
        f"  curl {settings.base_url}/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        flush=True,
    )
    with closing(Ledger(settings.ledger)) as ledger:
        told = len(ledger.views.step_records())
        while True:
            run.check()
            steps = ledger.views.step_records()
            if len(steps) > told:
                told = len(steps)
                print(
                    f"update {told}: it has learned from you, weights {steps[-1]['weight_version']} are live",
                    flush=True,
                )
            await asyncio.sleep(1.0)


def dry_run(options: argparse.Namespace) -> None:
    """Print the plans of the demo and of its run; start nothing.

    Raises:
        SystemExit: if the run's plan is invalid.
    """
    run, model = settings_of(options), model_path()
    refuse_bad_plan(run, options.own_flags, starts=False)
    state = "built" if is_built(model) else "would be built first, in minutes"
    print(f"model    {model} ({state})")
    if options.live:
        print("talks    you: openclaw-rl chat, curl or any OpenAI client")
    else:
        print(
            f"demo     {options.updates} updates, {options.sessions} sessions at once, measured on {options.heldout} problems"
        )
        if options.taste:
            print(f"talks    a plain OpenAI client whose taste is {options.taste}: {taste_named(options.taste).wish}")
    environment = run.environment(os.environ)
    for name in DECIDED:
        os.environ.pop(name, None)
    os.environ.update(environment)
    launch([*run.launcher_words, "--dry-run"])


async def interruptible(options: argparse.Namespace, model: Path, started: float, beginning: Beginning) -> None:
    """Run the demo; SIGINT and SIGTERM cancel it once, so that it still stops what it started."""
    task = asyncio.ensure_future(carry_out(options, model, started, beginning))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        options.console.print("stopping: the run saves and ends what it started")
        task.cancel()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    await task


def main() -> int:
    """Command line."""
    options = parse()
    if options.dry_run:
        dry_run(options)
        return 0
    try:
        started, beginning = time.monotonic(), Beginning.read()
        beginning.mark(DEMO, Step.LOADED)
        model = prepare(options)
        beginning.mark(DEMO, Step.MODEL_FOUND)
        if options.live:
            live.become(settings_of(options), options, beginning)
        with service_of(options, model):
            asyncio.run(interruptible(options, model, started, beginning))
    except (asyncio.CancelledError, KeyboardInterrupt):
        print("\nstopped", file=sys.stderr)
        if options.keep_serving and options.reported:
            return 0
        resume.say_how(options)
        return 130
    except (BuildError, RunFailed, MeasureError, DemoFailed) as error:
        if isinstance(error, (RunFailed, DemoFailed)) and resume.has_checkpoint(options.run_dir):
            resume.say_how(options)
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if "--dry-run" in sys.argv:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--dry-run | head` ends quietly
    sys.exit(main())
