"""What a user wants changed: the words of the complaint, and what a reply looks like that has heard them.

Kinds of wishes: no formatting, formatting, a name for the user, a word at the end, one of these left out, and things that
the policy does not know. Guarantees: things and frames of split ``train`` only, apart from held-out complaints about
formatting. Many things are made up for the occasion, so that a judge learns the shape of a complaint, and the policy to
take a word from the message. An unknown wish changes nothing that a reply of its own would not have changed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from word_problems.everyday import careless
from word_problems.feedback import complaint, wish_for_structure
from word_problems.phrases import (
    APPROVAL_LEADS,
    APPROVAL_TAILS,
    CALL_FRAMES,
    COMPLAINT_LEADS,
    COMPLAINT_OPENERS,
    COMPLAINT_TAILS,
    END_FRAMES,
    LIKED_FRAMES,
    UNWANTED_FRAMES,
    WANTED_FRAMES,
    WORD_FRAMES,
)
from word_problems.problems import random_word
from word_problems.replies import CLOSINGS, NAMES_FOR_THE_USER, Manner, draw_manner, draw_style
from word_problems.words import ADJECTIVES, KIN, OBJECTS, SYLLABLES

Kind = Literal["plain", "structure", "call", "end", "drop", "other"]
SHARES: dict[Kind, float] = {"plain": 0.42, "structure": 0.09, "call": 0.14, "end": 0.14, "drop": 0.05, "other": 0.16}
# Nobody asks for these in training; the tastes of `tiny_models.tastes` do.
HELD_NAMES, HELD_CLOSINGS = ("captain", "doctor"), ("Cheers!", "Tada!")


@dataclass(frozen=True)
class Wish:
    """A complaint; ``thing``: the word that it asks for or about, if the policy knows what to do with one."""

    kind: Kind
    words: str
    thing: str = ""


def draw_wish(rng: random.Random) -> Wish:
    """Return a wish, drawn by the shares of the kinds."""
    kind = rng.choices(list(SHARES), weights=list(SHARES.values()))[0]
    if kind == "plain":
        return Wish(kind, complaint(rng))
    if kind == "structure":
        return Wish(kind, wish_for_structure(rng))
    frames = CALL_FRAMES if kind == "call" else END_FRAMES
    if kind in ("call", "end"):
        thing = _name(rng) if kind == "call" else _closing(rng)
        words = rng.choice(frames if rng.random() < 0.7 else WORD_FRAMES).format(thing=thing)
    elif kind == "drop":
        thing = _known(rng, rng.choice([NAMES_FOR_THE_USER, CLOSINGS]))
        words = rng.choice([*UNWANTED_FRAMES, "Don't say {thing}.", "Stop saying {thing}."]).format(thing=thing)
    else:
        thing = ""
        words = shaped(rng)
    if rng.random() < 0.25:
        words = f"{rng.choice(COMPLAINT_OPENERS['train'])} {words}"
    typed = careless(rng, words)
    return Wish(kind, typed if thing in typed else words, thing)


def granted(rng: random.Random, wish: Wish, style: str, manner: Manner) -> tuple[str, Manner]:
    """Return style and manner of a reply that has heard ``wish``, after one of ``style`` and ``manner``."""
    if wish.kind == "plain":
        return "plain", manner
    if wish.kind == "structure":
        return rng.choice(["full", "full", "list"]), manner
    if wish.kind == "call":
        return style, replace(manner, called=wish.thing)
    if wish.kind == "end":
        return style, replace(manner, closing=wish.thing)
    if wish.kind == "other":
        return draw_style(rng), draw_manner(rng)
    while wish.thing in (manner.called, manner.closing):
        manner = draw_manner(rng)
    return style, manner


def shaped(rng: random.Random) -> str:
    """Return a complaint about anything, of which only the shape can be known."""
    if rng.random() < 0.4:
        return rng.choice(UNWANTED_FRAMES + WANTED_FRAMES + WORD_FRAMES).format(thing=_anything(rng))
    return f"{rng.choice(COMPLAINT_LEADS)} {_strange(rng)}{rng.choice(COMPLAINT_TAILS)}"


def liking(rng: random.Random) -> str:
    """Return praise of something in particular, at times of something made up."""
    if rng.random() < 0.6:
        return f"{rng.choice(APPROVAL_LEADS)} {_strange(rng)}{rng.choice(APPROVAL_TAILS)}"
    kind = rng.random()
    thing = _name(rng) if kind < 0.2 else _closing(rng) if kind < 0.4 else _anything(rng)
    return rng.choice(LIKED_FRAMES).format(thing=thing)


def nonsense(rng: random.Random) -> str:
    """Return a complaint about a string of words that means nothing."""
    thing = " ".join(_any_word(rng) for _ in range(rng.randint(2, 9)))
    return rng.choice(UNWANTED_FRAMES + WORD_FRAMES).format(thing=thing)


def _any_word(rng: random.Random) -> str:
    """Return a word, the policy's own included: a token that no hint ever has cannot be repeated by one."""
    kind = rng.random()
    if kind < 0.2:
        return rng.choice([word for word in (*NAMES_FOR_THE_USER, *CLOSINGS) if word])
    return made_up(rng) if kind < 0.65 else random_word(rng)


def made_up(rng: random.Random) -> str:
    """Return a word that no language has."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))


def _anything(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return made_up(rng)
    if kind < 0.6:
        return f"{rng.choice(ADJECTIVES)} {made_up(rng)}"
    return " ".join(random_word(rng) for _ in range(rng.choice([1, 1, 2, 2, 3])))


def _strange(rng: random.Random) -> str:
    words = [
        made_up(rng) if rng.random() < 0.5 else random_word(rng) for _ in range(rng.choice([1, 1, 2, 2, 3, 4, 5, 6]))
    ]
    if rng.random() < 0.1:
        words[-1] = words[-1].capitalize() + "!"
    return " ".join(words)


def _name(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return _known(rng, NAMES_FOR_THE_USER)
    return made_up(rng) if kind < 0.75 else rng.choice(OBJECTS + KIN + ADJECTIVES)


def _closing(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return _known(rng, CLOSINGS)
    word = made_up(rng) if kind < 0.75 else rng.choice(OBJECTS + KIN + ADJECTIVES)
    return f"{word.capitalize()}!"


def _known(rng: random.Random, words: dict[str, float]) -> str:
    return rng.choice([word for word in words if word and word not in HELD_NAMES + HELD_CLOSINGS])
