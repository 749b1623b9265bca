"""The keys of episodes: random, shown once, found by their SHA-256.

Guarantees: a key that has ended or expired is found no more. A key is found by the digest of all of it, so how long a look-up
takes says nothing about a key. Imports nothing of the gateway, because `openclaw.gateway.auth` uses it. Owns the open keys in
memory; the ledger has their digests.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

EPISODE_KEY = "sk-episode-"
"""How such a key begins, so that redaction finds it in a text (`openclaw.privacy.secret_finder`)."""
KEY_LENGTH = 32


def new_key() -> str:
    """Return a new key."""
    return EPISODE_KEY + secrets.token_urlsafe(KEY_LENGTH)


def key_digest(key: str) -> bytes:
    """Return what is stored of a key."""
    return hashlib.sha256(key.encode()).digest()


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """Who sends a key.

    Attributes:
        episode: id of the episode.
        owner: of the agent's turns, see `openclaw.owners`.
        parent: name of the key that created the episode; limits and metrics count the agent's requests for it.
        expires_at: seconds since the epoch.
    """

    episode: str
    owner: str
    parent: str
    expires_at: float


class EpisodeKeys:
    """The keys of the open episodes, by digest."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._keys: dict[bytes, EpisodeKey] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, digest: bytes, key: EpisodeKey) -> None:
        """Accept a key from now on."""
        self._keys[digest] = key

    def find(self, digest: bytes) -> EpisodeKey | None:
        """Return who sends the key with this digest; None if it is of no open episode."""
        key = self._keys.get(digest)
        return None if key is None or key.expires_at <= self.clock() else key

    def move_expiry(self, seconds: float) -> None:
        """Let all keys expire later by ``seconds``."""
        self._keys = {digest: replace(key, expires_at=key.expires_at + seconds) for digest, key in self._keys.items()}

    def end(self, episode: str) -> None:
        """Accept the key of an episode no more; no-op without one."""
        self._keys = {digest: key for digest, key in self._keys.items() if key.episode != episode}
