"""Tastes that nobody has in the training corpus: users whose client is only a plain OpenAI client.

Guarantees: no complaint or thanks of a taste is in the corpus, each has a word that is in no feedback of the corpus, and
nobody asks there for a taste's word (tests hold this). What they share with the corpus is the shape of a complaint. Some replies
of the untrained policy follow each rule, or there would be nothing to learn from. The users are files in
`simulated_users/built_in/`.
"""

from __future__ import annotations

from simulated_users.reading import find_user, find_users
from simulated_users.user import User

NAMES = ("captain", "cheers", "spelled", "doctor", "tada")
"""In the order of seeds, of which each has one."""
TASTES: tuple[User, ...] = tuple(find_users(NAMES))


def taste_named(name: str) -> User:
    """Return the taste of that name."""
    return find_user(name)
