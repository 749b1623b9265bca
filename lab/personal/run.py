"""One run with simulated users: sessions until a rule is followed, and scores of first replies after some updates.

`python openclaw-test/personal_run.py --method combine --users student,captain --report r.json`. The run is the real one on
a CPU (SGLang, Ray, FSDP2, gateway, judge, ledger). With one user the model is that user's own, with several they
share it. `python -m benchmarks.personalization` holds many such runs and compares them.

Guarantees: exit status 0 and a report only if everything was measured. What was started is stopped, also on Ctrl-C or SIGTERM.

Users talk to one model in turn, and both measures of the paper's second version are taken. While sessions are counted, they are held one after the other, and each begins after the run has learned from all
before it. Then conversations run in parallel, until the last score is due; never so many that two updates pass between
two looks, unless the run holds weights back. Scores are side turns, so nothing measured is trained.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from asking import server_client
from measure import MeasureError, heldout_items, measure
from simulated_users.llm import KEY_VARIABLE, MAX_TOKENS, LlmVoice, UserModelError, user_model_client
from simulated_users.reaction import PhraseVoice
from simulated_users.reading import find_users
from simulated_users.user import User
from simulated_users.workspace import CHAT, Chat, Workspace
from student import Refused, Student

from groundwork.command_line import CommandLine, new_output_file, port_number, server_url
from groundwork.exceptions import ConfigError
from groundwork.network import find_available_port
from groundwork.private_files import write_output
from lab.personal.sizes import BASE, Sizes
from lab.tiny_demo.launched import ENDLESS, MODEL_NAME, REPOSITORY, LaunchedRun, RunFailed, Settings
from lab.tiny_demo.options import method_of
from lab.tiny_demo.planned import refuse_bad_plan
from lab.tiny_demo.report import save
from lab.tiny_models.build import BuildError, ensure_built
from lab.tiny_models.cache import model_path
from openclaw.config.runtime_variables import GateVariables
from openclaw.gate.decision import TOO_FEW, Margin
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import ARGUMENTS_NAME, SETTINGS_NAME

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from simulated_users.user import User

STREAK = 3
"""Consecutive sessions whose first replies must follow the rule (OpenClaw-RL, arXiv 2603.10165v2)."""


def sessions_to_follow(liked: Sequence[bool], streak: int = STREAK) -> int | None:
    """Return the number of sessions up to and including the first ``streak`` in a row whose first replies were liked.

    Args:
        liked: for each session of one user, in order, whether its first reply followed the rule.
        streak: sessions in a row.

    Returns:
        At least ``streak``; None if it did not happen within the sessions that were held.
    """
    in_a_row = 0
    for held, good in enumerate(liked, start=1):
        in_a_row = in_a_row + 1 if good else 0
        if in_a_row == streak:
            return held
    return None


def complaints_until(opinions: Mapping[int, Sequence[bool]], sessions: int) -> int:
    """Return how many replies of a user's first sessions were disliked.

    Args:
        opinions: whether the user liked each reply, by the session's number.
        sessions: how many sessions count.
    """
    return sum(not liked for number in range(sessions) for liked in opinions[number])


class Learner(Protocol):
    """What `Talk` needs to know of the run (`lab.personal.run.Trainer`)."""

    batch: int

    @property
    def updates(self) -> int:
        """Return the number of live updates."""
        ...

    @property
    def ready(self) -> int:
        """Return the number of samples that wait for a batch."""
        ...

    async def settle(self) -> None:
        """Return when the run has learned from everything that was said."""
        ...


@dataclass
class Speaker:
    """A user and its conversations; scores are asked over ``client``, so that they have the user's lessons if they ask for them."""

    user: User
    student: Student
    client: AsyncOpenAI
    counted: int = 0
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def liked(self) -> list[bool]:
        """Return whether the first replies of the counted sessions were liked, in order."""
        return [self.student.first_replies[number] for number in range(self.counted)]

    @property
    def sessions(self) -> int | None:
        """Return the sessions until the rule is followed; None if it is not yet."""
        return sessions_to_follow(self.liked)

    @property
    def complaints(self) -> int:
        """Return the complaints until the rule is followed, or in all counted sessions if it is not yet."""
        return complaints_until(self.student.opinions, self.sessions or self.counted)


COUNTED, COUNTED_WITH_LESSONS = "counted", "counted, with lessons"
"""Names of the scores after the counted sessions: by the weights alone, and with the user's lessons in the prompts."""


class Talk:
    """The talking of one run; owns the speakers' counts."""

    def __init__(
        self,
        model: str,
        speakers: Sequence[Speaker],
        learner: Learner | None,
        sizes: Sizes,
        tell: Callable[[str], None],
        *,
        scores_counted: bool = False,
    ) -> None:
        """Create the talk.

        Args:
            model: model name in requests.
            speakers: the users, in the order in which they talk.
            learner: the run that learns; None if nothing is trained.
            sizes: of the run.
            tell: shows progress.
            scores_counted: whether replies are also scored after the counted sessions, without lessons and with them.
        """
        self._model, self._speakers = model, speakers
        self._learner, self._sizes, self._tell = learner, sizes, tell
        self._scores_counted = scores_counted
        self._due = list(sizes.score_after) if learner else []
        self.seconds: dict[str, float] = {}

    async def hold(self) -> None:
        """Score, count sessions, and go on until the last score.

        Raises:
            Refused: a request of a user was refused.
            MeasureError: one of a score was.
            RunFailed: the run ended or stands still.
        """
        started = time.monotonic()
        await self._score("0")
        self.seconds["scores"] = time.monotonic() - started
        await self._timed("counted_sessions", self._count() if self._learner else self._count_without_learning())
        if self._learner and self._scores_counted:
            await self._learner.settle()
            await self._timed("counted_scores", self._score_counted())
        if self._learner:
            await self._timed("more_sessions", self._go_on(self._learner))

    async def _score_counted(self) -> None:
        await self._score(COUNTED)
        await self._score(COUNTED_WITH_LESSONS, lessons=True)

    async def _timed(self, name: str, work: Any) -> None:
        started, scores = time.monotonic(), self.seconds["scores"]
        await work
        self.seconds[name] = time.monotonic() - started - (self.seconds["scores"] - scores)

    async def _count(self) -> None:
        assert self._learner is not None
        for number in range(self._sizes.most_sessions):
            for speaker in self._speakers:
                await self._look()
                await speaker.student.session(number)
                speaker.counted += 1
            if (number + 1) % 5 == 0:
                self._tell(f"session {number + 1}: {self._learner.updates} updates, {self._progress()}")
            if all(speaker.sessions is not None for speaker in self._speakers):
                break
        self._tell(f"counted: {self._progress()}")

    async def _count_without_learning(self) -> None:
        """Hold all sessions, several at a time: their order means nothing to a model that does not change."""
        slots = asyncio.Semaphore(self._sizes.parallel)

        async def one(student: Student, number: int) -> None:
            async with slots:
                await student.session(number)

        for speaker in self._speakers:
            await asyncio.gather(*(one(speaker.student, number) for number in range(self._sizes.most_sessions)))
            speaker.counted = self._sizes.most_sessions
        self._tell(f"counted: {self._progress()}")

    async def _go_on(self, learner: Learner) -> None:
        number, held = max(speaker.counted for speaker in self._speakers), 0
        while True:
            await self._look()
            if not self._due or held >= self._sizes.more_sessions:
                return
            group = self._group_size(learner)
            speakers = [self._speakers[(held + each) % len(self._speakers)] for each in range(group)]
            # A session's number is new to each user.
            await asyncio.gather(*(one.student.session(number + held + at) for at, one in enumerate(speakers)))
            held += group

    def _group_size(self, learner: Learner) -> int:
        """Return how many sessions at a time cannot fill two batches."""
        samples = max(speaker.user.turns - 1 for speaker in self._speakers)
        room = (2 * learner.batch - 1 - learner.ready) // samples
        return max(1, min(self._sizes.parallel, room, self._sizes.more_sessions))

    async def _look(self) -> None:
        """Wait for the run, and score if a score is due."""
        if self._learner is None:
            return
        await self._learner.settle()
        while self._due and self._learner.updates >= self._due[0]:
            started = time.monotonic()
            await self._score(str(self._due.pop(0)))
            self.seconds["scores"] += time.monotonic() - started

    async def _score(self, after: str, lessons: bool = False) -> None:
        updates = self._learner.updates if self._learner else 0
        items = heldout_items(self._sizes.heldout)
        for speaker in self._speakers:
            found = await measure(speaker.client, self._model, items, user=speaker.user, lessons=lessons)
            speaker.scores[after] = {
                "updates": updates,
                "problems": len(found.replies),
                "liked": sum(reply.good for reply in found.replies),
                "right": sum(reply.right for reply in found.replies),
                "degenerate": sum(reply.degenerate for reply in found.replies),
            }
            with_lessons = " with lessons" if lessons else ""
            self._tell(f"score after {updates} updates, {speaker.user.name}{with_lessons}: {found.rule_rate:.2f}")

    def _progress(self) -> str:
        return ", ".join(
            f"{speaker.user.name} {speaker.sessions or f'not in {speaker.counted}'}" for speaker in self._speakers
        )


POLL_SECONDS = 0.1
STUCK_SECONDS = 300.0


class Trainer:
    """The run's trainer as its ledger shows it; owns neither."""

    def __init__(self, run: LaunchedRun, ledger: Ledger, key: str | None = None) -> None:
        """Read the run's batch size and pace from its folder; the run must be up. ``key`` reads its metrics."""
        arguments = json.loads((run.settings.run_dir / ARGUMENTS_NAME).read_text())
        variables = json.loads((run.settings.run_dir / SETTINGS_NAME).read_text())
        self._by_session = variables.get("OPENCLAW_PACE") == "session"
        self._per_person = bool(arguments.get("adapter_per_person"))
        self._practises = variables.get("OPENCLAW_PRACTICE", "off") != "off"
        self.batch = int(arguments["rollout_batch_size"])
        self._holds_weights = int(arguments["update_weights_interval"]) > 1
        self._run, self._ledger, self._key = run, ledger, key

    @property
    def updates(self) -> int:
        """Return the number of updates whose weights are live."""
        return int(self._ledger.views.counts()["steps"])

    @property
    def ready(self) -> int:
        """Return the number of samples that wait for a batch."""
        return self._ledger.samples.ready_count()

    @property
    def samples_trained(self) -> int:
        """Return the number of samples in the updates so far."""
        return sum(step["samples"] for step in self._ledger.views.step_records())

    def _is_due(self, ready: int) -> bool:
        """Return whether the samples that wait make a step: anybody's, or with an adapter per person one person's."""
        if self._per_person and not self._by_session:
            return bool(self._ledger.waiting.full_people(self.batch))
        return ready >= (1 if self._by_session else self.batch)

    async def settle(self) -> None:
        """Return when no reaction waits for its judge, no update is due or under way, and nobody practises.

        A session is over when it is settled, so at the pace of sessions no sample may be left. With ``--update-weights-interval`` above 1 an update is not live at once, so it is not waited for.

        Raises:
            RunFailed: the run ended, a fuse paused it, or nothing changed for `STUCK_SECONDS`.
        """
        seen, since, looks = None, time.monotonic(), None
        while True:
            self._run.check_trains()
            pending = int(self._ledger.views.counts()["turns"].get("pending", 0))
            samples = self._ledger.samples
            leased = 0 if self._holds_weights else samples.untrained_leases()
            leased += samples.saved_not_live() if self._per_person else 0
            state = (pending, self.ready, leased)
            if pending == 0 and not self._is_due(state[1]) and leased == 0:
                if not self._practises:
                    return
                found = (await self._run.gateway_counts(self._key))["practice_idle"]
                looks = found if looks is None else looks
                if found >= looks + 2:  # a whole search for something to practise began and ended since
                    return
            else:
                looks = None
            if state != seen:
                seen, since = state, time.monotonic()
            if time.monotonic() - since > STUCK_SECONDS:
                raise RunFailed(
                    f"nothing changed for {STUCK_SECONDS:.0f} s: {pending} turns wait for the judge, {state[1]} samples are "
                    f"ready, {leased} are in an update that is not live; see {self._run.log_path}"
                )
            await asyncio.sleep(POLL_SECONDS)


BASE_RUNS_AS = "rl"
"""The method of the run that serves the base model; its trainer gets no sample."""
TEMPERATURE_VARIABLE = "OPENCLAW_TEMPERATURE"
KEYS_VARIABLE = "OPENCLAW_API_KEYS_FILE"
ADMIN = "admin"
"""Name of the key that reads the metrics of all users."""
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
    add("--score-counted", action="store_true", help="score after the counted sessions, too: without and with lessons")
    add("--key-each", action="store_true", help="give each user a key of its own, so that they are different people")
    add("--decline-lessons", action="store_true", help="have the users' requests decline lessons")
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


def write_keys(folder: Path, people: Sequence[User]) -> dict[str, str]:
    """Write a keys file with a random key for each user and an admin, have the run read it, and return the keys by name."""
    keys = {name: secrets.token_urlsafe(24) for name in (*(user.name for user in people), ADMIN)}
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{name}{' (admin)' if name == ADMIN else ''}:{key}\n" for name, key in keys.items()]
    write_output(path := folder / "keys", "".join(lines))
    os.environ[KEYS_VARIABLE] = str(path)
    return keys


async def carry_out(options: argparse.Namespace) -> dict[str, Any]:
    """Start the run, talk, measure, stop; return the report.

    Raises:
        RunFailed, Refused, MeasureError, UserModelError: something did not work.
    """
    settings, started, load = options.settings, time.monotonic(), os.getloadavg()[0]
    run, trained = LaunchedRun(settings), options.method != BASE
    keys = write_keys(settings.run_dir, options.people) if options.key_each else {}
    async with AsyncExitStack() as stack:
        clients = {
            user.name: await stack.enter_async_context(server_client(settings.base_url, 120, keys.get(user.name)))
            for user in options.people
        }
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
                        *(clients[user.name], MODEL_NAME),
                        seed=options.seed,
                        user=user,
                        voice=LlmVoice(asked, options.user_model, user, options.user_max_tokens)
                        if asked
                        else PhraseVoice(user),
                        form=form,
                        trained=trained,
                        declines_lessons=options.decline_lessons,
                    ),
                    clients[user.name],
                )
                for user in options.people
            ]
            with closing(Ledger(settings.ledger)) as ledger:
                trainer = Trainer(run, ledger, keys.get(ADMIN))
                talk = Talk(
                    MODEL_NAME,
                    speakers,
                    trainer if trained else None,
                    options.sizes,
                    tell,
                    scores_counted=options.score_counted,
                )
                await talk.hold()
                updates, samples = trainer.updates, trainer.samples_trained
                decisions = gate_decisions(ledger)
            counts, cpu = await run.gateway_counts(keys.get(ADMIN)), run.cpu_seconds()
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
        "gate": decisions,
        "per_user": {speaker.user.name: spoken(speaker) for speaker in speakers},
        "requests": int(counts["requests"]),
        "refused": max(int(counts["refused"]), sum(speaker.student.tally.refused for speaker in speakers)),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "cpu_seconds": round(cpu, 1),
        "load_average": {"start": round(load, 1), "end": round(os.getloadavg()[0], 1)},
        "tiny_model": settings.model.name,
    }


def gate_decisions(ledger: Ledger) -> list[dict[str, Any]]:
    """Return what the gate decided about each update: ``accepted``, and the users' opinions in nats per token.

    ``margin`` and its ``error`` are None where there were too few probes to compare opinions. ``fell``: whether the margin is
    one that the gate refuses.
    """
    bounds, found = GateVariables.from_env(os.environ), list[dict[str, Any]]()
    for each in ledger.decisions.all():
        if each.kind not in ("step", "refused"):
            continue
        margin, error = (each.metrics.get(f"gate/{name}") for name in ("margin", "margin_error"))
        if margin is None or error is None or each.metrics.get(TOO_FEW):
            margin, error, fell = None, None, False
        else:
            fell = Margin(margin, error, 0, 0).fell(bounds.gate_errors, bounds.gate_margin)
        accepted = each.kind == "step"
        found.append({"accepted": accepted, "margin": margin, "error": error, "fell": fell, "why": each.why})
    return found


def spoken(speaker: Speaker) -> dict[str, Any]:
    """Return what is recorded of one user."""
    return {
        "wish": speaker.user.wish,
        "turns": speaker.user.turns,
        "sessions_to_follow": speaker.sessions,
        "first_replies_liked": "".join("1" if liked else "0" for liked in speaker.liked),
        "sessions_held": speaker.student.tally.sessions,
        "complaints": speaker.student.tally.complaints,
        "complaints_to_follow": speaker.complaints,
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
