"""What ``openclaw-rl inspect RUN --episodes`` and ``--episode ID`` show. Read-only."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from groundwork.command_line import named_by_beginning
from openclaw.ledger.episodes import Episode
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import counted
from openclaw.messages.preview import preview

PREVIEW = 40


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
        f"{clock(episode.created_at)}  {episode.id}  {preview(episode.task, PREVIEW):{PREVIEW}}  "
        f"group {preview(episode.group or '-', PREVIEW):10}  {episode.state:7} {episode.status or '-':11} reward {reward:>5}  "
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
