"""Tastes that nobody has in the training corpus: the rules of a user who is only a plain OpenAI client.

Guarantees: no complaint or thanks of a taste is in the corpus, each has a word that is in no feedback of the corpus, and
nobody asks there for a taste's word (tests hold this). What they share with the corpus is the shape of a complaint. Some replies of the untrained policy follow each rule, or there would be nothing to learn
from. Plain data, no state.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

_SIGN_BETWEEN_NUMBERS = re.compile(r"\d ?[-+*/×] ?\d")


@dataclass(frozen=True)
class Taste:
    """One rule.

    Attributes:
        name: in options and reports.
        rule: the rule in words.
        likes: whether a reply follows it.
        complaints: what its user says about a reply that does not.
        thanks: what its user says about one that does.
    """

    name: str
    rule: str
    likes: Callable[[str], bool]
    complaints: tuple[str, ...]
    thanks: tuple[str, ...]

    def complain(self, rng: random.Random) -> str:
        """Return a complaint."""
        return rng.choice(self.complaints)

    def approve(self, rng: random.Random, following: str | None) -> str:
        """Return thanks, followed by the next question if there is one."""
        return " ".join(filter(None, [rng.choice(self.thanks), following]))


def _calls(name: str) -> Callable[[str], bool]:
    return lambda reply: name in reply.lower()


def _ends(word: str) -> Callable[[str], bool]:
    return lambda reply: reply.rstrip().endswith(word)


TASTES: tuple[Taste, ...] = (
    Taste(
        "captain",
        'the reply calls the user "captain"',
        _calls("captain"),
        (
            "I said it before, it is captain.",
            "Why don't you say captain to a sailor?",
            "Again, and with captain this time.",
            "You forgot my title, I am the captain.",
            "No title? Please say captain.",
            "I don't want to repeat it, captain is my title.",
        ),
        (
            "Thanks, that is how a captain likes it.",
            "Great, my title is there.",
            "Good, this crew learns.",
            "Perfect, thank you from the bridge.",
        ),
    ),
    Taste(
        "cheers",
        'the reply ends with "Cheers!"',
        _ends("Cheers!"),
        (
            "I said end it with a toast, Cheers!",
            "Why is there no Cheers! as a goodbye?",
            "Again, with a toast to finish please.",
            "You forgot to toast, say Cheers!",
            "I want to read Cheers! before you leave.",
        ),
        ("Thanks, lovely toast.", "Good, to your health.", "Great goodbye, thank you.", "Perfect toast."),
    ),
    Taste(
        "spelled",
        "the reply spells out plus, minus and times",
        lambda reply: not _SIGN_BETWEEN_NUMBERS.search(reply),
        (
            "I said spell it, not symbols.",
            "Why the mathematical symbols again?",
            "Please spell every operation.",
            "No operators please, granny can't read them.",
            "Again without the algebra.",
            "I don't want signs, write it as spoken.",
        ),
        (
            "Thanks, granny could read it.",
            "Good, spelled as it should be.",
            "Great, no operators left.",
            "Perfect, that is how it is spoken.",
        ),
    ),
    Taste(
        "doctor",
        'the reply calls the user "doctor"',
        _calls("doctor"),
        (
            "I said doctor, after all I studied medicine.",
            "Why no doctor? My patients say it.",
            "Please address me as doctor.",
            "You forgot my degree, I am a doctor.",
            "I don't like it without my doctorate.",
        ),
        (
            "Thanks, my degree counts.",
            "Good bedside manners.",
            "Great, thank you from the clinic.",
            "Yes, healthy respect, thanks.",
        ),
    ),
    Taste(
        "tada",
        'the reply ends with "Tada!"',
        _ends("Tada!"),
        (
            "I said finish like a magician, with Tada!",
            "Why no magic Tada! on stage?",
            "Again, and this time shout Tada!",
            "You forgot the trick, say Tada!",
            "I miss the finale, it needs Tada!",
        ),
        ("Thanks, what a trick.", "Great magic.", "Nice trick, thank you.", "Perfect, the audience claps."),
    ),
)


def taste_named(name: str) -> Taste:
    """Return the taste of that name."""
    return next(taste for taste in TASTES if taste.name == name)
