"""Who a session belongs to: the one scheme that sessions, feedback, rollouts and quotas share.

An owner is the name of a key. A child key is named ``PARENT/CHILD``; its parent sees what it owns, it does not see its
parent. The owner `LOCAL` has every client of a server without keys, and the key from the environment. A stored session
id names its owner: ``@OWNER:ID``. A session of `LOCAL` keeps the client's id, so that a single-user server shows the ids
that its clients sent. The owner of an episode's turns is a child of who created the episode: ``OWNER/episode-HEX``.

Guarantees: different owners, or different ids of one owner, never have the same stored id, whatever characters a client
sends. Pure functions; imports nothing, so every room may import this one.
"""

from __future__ import annotations

LOCAL = ""
MARK = "@"
CHILD = "/"
EPISODE = "episode-"
"""How the id of an episode begins; no key of a keys file may be named like that."""


def stored_id(owner: str, session_id: str) -> str:
    """Return the id under which the ledger keeps the session that ``owner`` calls ``session_id``."""
    if owner == LOCAL and not session_id.startswith(MARK):
        return session_id
    return f"{MARK}{owner}:{session_id}"


def split_id(stored: str) -> tuple[str, str]:
    """Return (owner, the owner's own id) of a stored session id."""
    if not stored.startswith(MARK):
        return LOCAL, stored
    owner, colon, session_id = stored[len(MARK) :].partition(":")
    return (owner, session_id) if colon else (LOCAL, stored)


def owner_of(stored: str) -> str:
    """Return the owner of a stored session id."""
    return split_id(stored)[0]


def root(owner: str) -> str:
    """Return the owner at the top: of a child key its oldest parent, otherwise ``owner``."""
    return owner.partition(CHILD)[0]


def owns(owner: str, other: str) -> bool:
    """Return whether what belongs to ``other`` belongs to ``owner``: they are the same, or ``other`` is a child."""
    return owner == other or other.startswith(owner + CHILD)


def episode_owner(owner: str, episode: str) -> str:
    """Return the owner of the turns of an episode that ``owner`` created; of `LOCAL` it is ``/episode-HEX``."""
    return f"{owner}{CHILD}{episode}"


def episode_of(owner: str) -> str | None:
    """Return the episode whose turns an owner has, or None for any other owner."""
    _, child, name = owner.rpartition(CHILD)
    return name if child and name.startswith(EPISODE) else None


def prefixes(owner: str) -> tuple[str, str]:
    """Return how the stored ids of an owner other than `LOCAL` begin: its own, and its children's."""
    return f"{MARK}{owner}:", f"{MARK}{owner}{CHILD}"
