"""Episodes in a ledger, for tests: created and filled by hand."""

from __future__ import annotations

from typing import Any

from lab.testkit.ledger_records import make_turn
from openclaw.credit.episodes import EpisodeRules, settle
from openclaw.ledger.episodes import Episode
from openclaw.ledger.records import VersionSpan
from openclaw.ledger.store import Ledger
from openclaw.owners import stored_id

RULES = EpisodeRules(temperature=0.6, max_tokens=1000)
MOST = 100


def create(ledger: Ledger, name: str = "a", *, owner: str = "alice", ttl: float = 50.0, **changes: Any) -> Episode:
    """Create an episode called ``episode-NAME``."""
    values: dict[str, Any] = {"group": None, "group_size": None, "metadata": {}, **changes}
    now = ledger.database.clock()
    episode = Episode(
        id=f"episode-{name}",
        owner=owner,
        key_name=owner,
        key_digest=name.encode(),
        task="count",
        created_at=now,
        expires_at=now + ttl,
        **values,
    )
    ledger.episodes.create(episode, MOST)
    return episode


def say(
    ledger: Ledger, episode: Episode, name: str, prompt: list[int], reply: list[int], session: str = "s", **changes: Any
) -> None:
    """Record a turn of an episode; its log-probabilities are -id / 100."""
    values = {
        "session_id": stored_id(episode.turn_owner, session),
        "prompt_ids": prompt,
        "response_ids": reply,
        "response_logprobs": [-token / 100 for token in reply],
        "weight_versions": [VersionSpan("1", 0, len(reply))],
        **changes,
    }
    ledger.turns.record(make_turn(f"{episode.id}-{name}", **values))


def three_turns(ledger: Ledger, episode: Episode) -> None:
    """Record two turns that extend each other and a branch from the first prompt."""
    say(ledger, episode, "one", [1, 2], [3, 4])
    say(ledger, episode, "two", [1, 2, 3, 4, 5], [6], weight_versions=[VersionSpan("2", 0, 1)])
    say(ledger, episode, "branch", [1, 2, 9], [8, 7], session="other")


def rewarded(ledger: Ledger, name: str, reward: float = 1.0, *, owner: str = "alice") -> Episode:
    """Create an episode of two samples, and settle it."""
    episode = create(ledger, name, owner=owner)
    three_turns(ledger, episode)
    ledger.episodes.close(episode.id, "ok", reward)
    settle(ledger, RULES)
    return episode
