"""``openclaw-rl inspect RUN``: shows the verdict, sample and step of each turn.

Guarantees: without a command it only reads, except that it first migrates a file of an older version, after a backup. It
works while a run writes. Commands that change the file are in `openclaw.ledger.commands`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from importlib import import_module
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.text import Text

from groundwork.command_line import CommandLine, named_by_beginning
from groundwork.exceptions import ConfigError
from groundwork.private_files import OutputError, private_folder
from openclaw.config.meters import METERS
from openclaw.exceptions import NoRunError
from openclaw.ledger.commands import COMMANDS
from openclaw.ledger.episodes import Episode
from openclaw.ledger.exceptions import LedgerError, UnknownRecordError
from openclaw.ledger.feedback import CORRECTS
from openclaw.ledger.records import SCORED
from openclaw.ledger.store import Ledger
from openclaw.ledger.usage import OwnersDay
from openclaw.ledger.views import OwnerSamples, SampleRecord, TurnRecord, counted
from openclaw.messages.preview import harmless, preview
from openclaw.messages.text import next_state_text, response_text
from openclaw.runs.folder import EPISODE_RECORDS, no_ledger, open_run
from openclaw.runs.leave import add_leaving, leave, wrong_leaving
from openclaw.runs.person import forget_person
from openclaw.runtime.where import LEDGER_NAME, add_person, add_run, find_ledger
from slime.exceptions import PeopleError

TASK_PREVIEW = 40


def clock(seconds: float | None) -> str:
    """Return a time of day, or ``-``."""
    return "-" if seconds is None else datetime.fromtimestamp(seconds).strftime("%H:%M:%S")


def episode_lines(ledger: Ledger) -> Iterable[str]:
    """Yield one line per episode, oldest first."""
    for episode in ledger.episodes.all():
        yield episode_line(ledger, episode)


def episode_line(ledger: Ledger, episode: Episode) -> str:
    """Return one line about an episode: how it ended, and what became of its turns and samples."""
    counts = ledger.episodes.counts(episode)
    reward = "-" if episode.reward is None else f"{episode.reward:+.2f}"
    samples = "  ".join(f"{name} {count}" for name, count in counts.samples.items())
    outcome = episode.reason or samples or "-"
    return (
        f"{clock(episode.created_at)}  {episode.id}  {preview(episode.task, TASK_PREVIEW):{TASK_PREVIEW}}  "
        f"group {preview(episode.group or '-', TASK_PREVIEW):10}  {episode.state:7} {episode.status or '-':11} reward {reward:>5}  "
        f"{counted(counts.turns, 'turn')}  {counted(episode.segments, 'segment')}  "
        f"{counts.prompt_tokens}+{counts.generated_tokens} tokens  "
        f"weights {','.join(counts.weight_versions) or '-'}  {outcome}"
    )


def episode_text(ledger: Ledger, begin: str) -> Iterable[str]:
    """Yield the story of one episode: its line, its counts, and where its sessions can be read.

    Args:
        ledger: of the run.
        begin: its id, or the beginning of it.

    Raises:
        UnknownRecordError: if no episode, or more than one, begins like that.
    """
    episode = _meant(ledger, begin)
    counts = ledger.episodes.counts(episode)
    yield episode_line(ledger, episode)
    yield f"  time:       until {clock(episode.expires_at)}, closed {clock(episode.closed_at)}, settled {clock(episode.settled_at)}"
    if episode.metadata:
        yield f"  metadata:   {preview(str(dict(episode.metadata)), 200)}"
    merged = f"{counted(episode.merged_turns, 'turn')} merged into an earlier turn's sample"
    yield f"  turns:      {counted(counts.turns, 'turn')}, {counts.aborted} aborted, {merged}"
    for reason, count in counts.reasons.items():
        yield f"  not trained: {counted(count, 'turn')} ({reason})"
    for turn in ledger.episodes.turns(episode):
        samples = [f"sample {record.id} {record.state}" for record in ledger.views.sample_records(turn.id)]
        outcome = "; ".join(samples) or turn.reason or turn.state
        score = f"  score {episode.scores[turn.id]:+.2f}" if turn.id in episode.scores else ""
        yield (
            f"  {clock(turn.created_at)}  {turn.session_id}  {turn.kind:4}  {len(turn.prompt_ids)}+{len(turn.response_ids)} "
            f"tokens  {turn.finish_reason:10}  {outcome}{score}"
        )
    for session in ledger.episodes.sessions(episode):
        yield f"  read it with: --session {session}"


def _meant(ledger: Ledger, begin: str) -> Episode:
    episodes = {item.id: item for item in ledger.episodes.all()}
    try:
        return episodes[named_by_beginning(begin, list(episodes), "episode", "--episodes lists them")]
    except LookupError as error:
        raise UnknownRecordError(str(error)) from error


PREVIEW = 60
SHOWN_LOCAL = "local"
SHOWN_REFUSALS = 5
EPISODE_VIEWER = "agentrl.rollout.inspect"
"""Named, because nothing imports `agentrl`."""
SCORED_BY = {"judge": "score", "feedback": "user ", "rule": "rule "}


def step_text(sample: SampleRecord) -> str:
    """Return a sample's step and resulting weights, or why it was dropped."""
    if sample.reason is not None:
        return f"{sample.state} ({sample.reason})"
    if sample.rollout_id is None:
        return sample.state
    live = f", live as version {sample.weight_version}" if sample.weight_version else ""
    return f"{sample.state} in step {sample.rollout_id}{live}"


def turn_line(record: TurnRecord) -> str:
    """Return one line about a turn."""
    turn, verdict = record.turn, record.verdict
    score = "-" if verdict is None or verdict.score is None else f"{verdict.score:+d}"
    word = "score" if verdict is None else SCORED_BY[verdict.score_source]
    outcome = "; ".join(step_text(sample) for sample in record.samples) or turn.reason or turn.state
    if turn.state == "pending" and record.judge_error:
        outcome = f"pending after {record.judge_attempts} failed attempts: {preview(record.judge_error, PREVIEW)}"
    hint = f"  hint: {preview(verdict.hint, PREVIEW)}" if verdict and verdict.hint else ""
    return (
        f"{clock(turn.created_at)}  {turn.id}  {turn.session_id:12} #{turn.index:<3} {word} {score:>2}  {outcome:20}  "
        f"{preview(response_text(turn.response_message), PREVIEW)}{hint}"
    )


def sample_line(record: SampleRecord) -> str:
    """Return one line about a sample."""
    sample = record.sample
    taught = sample.teacher_log_probs is not None or sample.teacher_topk_indices is not None
    teacher = "teacher" if taught else "-"
    versions = ("scored:" if sample.metadata.get(SCORED) else "") + (",".join(sample.weight_versions) or "-")
    corrects = "  corrects what a step learned" if CORRECTS in sample.metadata else ""
    return (
        f"sample {record.id:<6} turn {record.turn_id:20} reward {sample.reward:+.2f}  {sample.response_length:5} tokens"
        f"  {teacher:7}  weights {versions:8}  {step_text(record)}{corrects}"
    )


def session_text(records: Iterable[TurnRecord]) -> Iterable[str]:
    """Yield a conversation: each turn with its reply, next state and votes."""
    for record in records:
        yield turn_line(record)
        yield f"  reply:      {response_text(record.turn.response_message)}"
        if record.turn.next_state:
            yield f"  next state: {next_state_text(record.turn.next_state)}"
        for vote in record.verdict.votes if record.verdict else ():
            yield f"  {vote.judge} vote {vote.value} ({vote.seconds:.1f} s): {preview(vote.answer, 200)}"


def turn_lines(ledger: Ledger, *, everything: bool) -> Iterable[str]:
    """Yield one line per turn; unless ``everything``, side turns (heartbeats, measurements, ...) are only counted."""
    hidden = 0
    for record in ledger.views.turn_records():
        if record.turn.kind == "side" and not everything:
            hidden += 1
        else:
            yield turn_line(record)
    if hidden:
        yield f"{hidden} side turn{'s' * (hidden > 1)} (measurements, heartbeats, ...) not shown; --all shows them"


def owner_lines(owners: Sequence[OwnerSamples]) -> Iterable[str]:
    """Yield one line per owner if there are several."""
    for owner in owners if len(owners) > 1 else ():
        yield (
            f"owner {owner.owner or SHOWN_LOCAL:16} samples: ready {owner.ready}  in a step {owner.used}"
            f"  scored by feedback {owner.stated}"
        )


def usage_lines(days: Sequence[OwnersDay]) -> Iterable[str]:
    """Yield a table of the tokens by day and owner."""
    yield f"{'day':10}  {'owner':16}" + "".join(f"{name:>12}" for name in METERS)
    for each in days:
        counts = asdict(each.tokens)
        yield f"{each.day}  {each.owner or SHOWN_LOCAL:16}" + "".join(f"{counts[name]:12}" for name in METERS)


def summary(ledger: Ledger) -> Iterable[str]:
    """Yield counts and steps."""
    counts = ledger.views.counts()
    failed = counts["judge_attempts_failed"]
    yield f"sessions {counts['sessions']}   steps {counts['steps']}   failed judge attempts {failed}"
    for group in ("turns", "turn_reasons", "samples", "sample_reasons"):
        entries = "  ".join(f"{name} {count}" for name, count in counts[group].items())
        yield f"{group.replace('_', ' '):15} {entries or '-'}"
    if counts["scored"]:
        yield f"scored          {counts['scored']} turns came as text: an engine scored their replies, and sampled none"
    yield from owner_lines(ledger.views.owner_samples())
    if error := ledger.views.judge_error():
        yield f"last judge error: {error}"
    for refused in ledger.decisions.all("AND kind = 'refused' ORDER BY number DESC LIMIT ?", (SHOWN_REFUSALS,)):
        yield f"step {refused.rollout_id:<4} {refused.samples:3} samples  in quarantine: {refused.why}"
    for step in ledger.views.step_records():
        seconds = step["live_at"] - step["trained_at"]
        whose = "" if step["person"] is None else f" of {step['person'] or SHOWN_LOCAL}"
        yield (
            f"step {step['rollout_id']:<4} {step['samples']:3} samples  live {clock(step['live_at'])}"
            f" as version {step['weight_version']}{whose} ({seconds:.1f} s after the step)"
        )


def whole_id(begin: str, sessions: list[str]) -> str:
    """Return the session of that id, or the only one whose id begins like that.

    Raises:
        UnknownRecordError: if there is none, or more than one.
    """
    try:
        return named_by_beginning(begin, sessions, "session", "--turns lists them")
    except LookupError as error:
        raise UnknownRecordError(str(error)) from error


def view(ledger: Ledger, options: argparse.Namespace, run: Path) -> Iterable[str | Text]:
    """Return the lines of the requested view of the run at ``run``.

    Raises:
        UnknownRecordError: for a session, turn or episode that is not in the ledger.
    """
    if options.turn:
        from openclaw.runs.turn_story import turn_story  # imports torch

        return turn_story(open_run(run), ledger, options.turn, tokens=options.tokens)
    if options.session:
        result = whole_id(options.session, ledger.views.session_ids())
        lines = session_text(list(ledger.views.turn_records(result)))
        if result == options.session:
            return lines
        return chain([f"no session {options.session}; this is {result}, the only one whose id begins like that"], lines)
    if options.turns:
        return turn_lines(ledger, everything=options.all)
    if options.episode:
        return list(episode_text(ledger, options.episode))
    if options.episodes:
        return episode_lines(ledger)
    if options.usage:
        return usage_lines(ledger.usage.days("", "9"))
    if options.samples:
        return (sample_line(record) for record in ledger.views.sample_records())
    return summary(ledger)


def show(lines: Iterable[str | Text], *, cut: bool = False) -> None:
    """Print lines; rich chooses the colours of a `Text`, and none without a terminal or with ``NO_COLOR``.

    With ``cut`` a terminal gets no line that is longer than it is wide.
    """
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    for line in lines:
        if isinstance(line, str) and cut and console.is_terminal:
            console.print(harmless(line), soft_wrap=False, no_wrap=True, overflow="ellipsis")
        elif isinstance(line, str):
            print(harmless(line))
        else:
            console.print(line)


def build_parser() -> CommandLine:
    """Return the command line: options that show, commands that change."""
    parser = CommandLine(
        prog="openclaw-rl inspect",
        description="Show the verdict, sample and step of each turn of a run, or maintain its ledger file.",
        epilog="Without option or command: counts by state and reason, and the steps. Everything works while a run writes.",
    )
    add_run(parser, "ledger")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--turns", action="store_true", help="one line per turn that can teach: verdict, sample, step")
    parser.add_argument("--all", action="store_true", help="with --turns: side turns too, such as measurements")
    what.add_argument("--samples", action="store_true", help="one line per sample")
    what.add_argument("--usage", action="store_true", help="tokens by day and owner, see usage.md")
    what.add_argument("--session", metavar="ID", help="one conversation in full; the beginning of its id is enough")
    what.add_argument(
        "--turn",
        metavar="ID",
        help="the whole story of one turn, with the advantage of each token in colour; the beginning of its id, or SESSION#INDEX",
    )
    what.add_argument("--episodes", action="store_true", help="one line per episode of an agent")
    what.add_argument("--episode", metavar="ID", help="the story of one episode; the beginning of its id is enough")
    parser.add_argument(
        "--tokens",
        action="store_true",
        help="with --turn, or --episode of the agent loop: ids and log-probabilities",
    )
    what.add_argument("--export", type=Path, metavar="FILE", help="same as the command export")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    exported = commands.add_parser("export", help="write all conversations as JSON lines")
    exported.add_argument("file", type=Path, metavar="FILE", nargs="?", help="output file; an existing one is replaced")
    add_leaving(exported)
    imported = commands.add_parser(
        "import", help="add conversations from JSON lines, to read and export; DATA_PATH=FILE trains from them"
    )
    imported.add_argument(
        "file", type=Path, metavar="FILE", help="one JSON object, or one per line, as export writes them"
    )
    forget = commands.add_parser("forget", help="delete all data of a session from the file")
    forget.add_argument("session_id", metavar="SESSION", nargs="?", help="session id, as --turns shows it")
    add_person(forget, "in place of SESSION: delete all of this person, with the person's adapter")
    commands.add_parser("check", help="read the whole file and report damage")
    salvage = commands.add_parser("salvage", help="copy the readable rows of a damaged file to a new one")
    salvage.add_argument("target", type=Path, metavar="OUT", help="the new file")
    return parser


def _command(options: argparse.Namespace) -> Iterable[str]:
    """Return the lines of a command: about a person if one is named."""
    if options.command == "forget" and options.person is not None:
        return forget_person(options)
    if options.command == "export" and options.to is not None:
        return leave(options)
    return COMMANDS[options.command](options)


def show_episodes(run: Path, episode: str | None, *, tokens: bool = False) -> int:
    """Let the agent loop show its own records (`agentrl.rollout.inspect`); return its exit code."""
    viewer = import_module(EPISODE_VIEWER)
    return viewer.main([str(run), *(["--episode", episode] if episode else []), *(["--tokens"] if tokens else [])])


def of_the_loop(run: Path, begin: str) -> bool:
    """Return whether the agent loop has recorded an episode in a run's folder whose name begins like that."""
    return any(record.name.startswith(begin) for record in run.glob(EPISODE_RECORDS))


def main(argv: list[str] | None = None) -> int:
    """Print the requested view; return the exit code: 2, with one line of explanation, on failure."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.all and not options.turns:
        parser.error("--all goes with --turns")
    if options.tokens and not (options.episode or options.turn):
        parser.error("--tokens goes with --turn or --episode")
    if options.export:
        options = parser.parse_args([str(options.ledger), "export", str(options.export)])
    if options.command == "forget" and (options.session_id is None) == (options.person is None):
        parser.error("forget takes a SESSION, or --person NAME")
    if options.command == "export" and (wrong := wrong_leaving(options)):
        parser.error(wrong)
    ledger = find_ledger(options.ledger)
    run = options.ledger
    if (ledger is None and (options.episodes or options.episode)) or (
        options.episode and of_the_loop(run, options.episode)
    ):
        return show_episodes(run, options.episode, tokens=options.tokens)
    if options.tokens and options.episode:
        parser.error(f"--tokens shows what the agent loop recorded; {run} has no such episode {options.episode}")
    if options.command == "import" and ledger is None:
        if options.ledger.is_dir():
            options.ledger /= LEDGER_NAME
        private_folder(options.ledger.parent)
    elif ledger is None:
        print(no_ledger(run), file=sys.stderr)
        return 2
    else:
        options.ledger = ledger
    try:
        lines = _command(options) if options.command else view(Ledger(options.ledger), options, run)
        show(lines, cut=options.turns or options.samples)
    except (LedgerError, ConfigError, NoRunError, OutputError, PeopleError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.episodes and of_the_loop(run, ""):
        return show_episodes(run, None)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--turns | head` ends quietly
    raise SystemExit(main())
