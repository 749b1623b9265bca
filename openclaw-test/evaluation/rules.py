"""Rules about the form of a reply: how a user states one, and whether a text follows it.

An *active* rule is one that hardly any text follows by chance. Every case of the suite has one, so that a model that always
says the same passes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from word_problems.replies import follows_rule

WORDS = ("lantern", "harbor", "velvet", "cobalt", "meadow", "orchid", "saffron", "timber", "willow", "marble")
BULLET = re.compile(r"^\s*[-*•]\s+\S", re.MULTILINE)
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        name: in reasons.
        text: as a user says it.
        follows: whether a reply follows it.
        part: of the reply that it is about; two rules about one part may contradict.
        solution: turns a plain sentence into one that follows the rule; tests use it.
    """

    name: str
    text: str
    follows: Callable[[str], bool]
    part: str
    solution: Callable[[str], str]


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return _WORD.findall(text)


def draw_rules(rng: Random, count: int) -> tuple[Rule, ...]:
    """Return ``count`` rules that can be followed together, an active one first."""
    chosen = [rng.choice(ACTIVE)(rng)]
    rest = [make(rng) for make in (*ACTIVE, *PASSIVE)]
    rng.shuffle(rest)
    for rule in rest:
        if (
            len(chosen) < count
            and "whole" not in {rule.part, chosen[0].part}
            and all(rule.part != each.part for each in chosen)
        ):
            chosen.append(rule)
    return tuple(chosen)


def broken(rules: Sequence[Rule], text: str) -> list[str]:
    """Return the names of the rules that a text breaks."""
    return [rule.name for rule in rules if not rule.follows(text)]


def _first_word(rng: Random) -> Rule:
    word = rng.choice(WORDS)
    return Rule(
        "first_word",
        f'Begin your reply with the word "{word}".',
        lambda text: [each.lower() for each in words(text)[:1]] == [word] and len(words(text)) > 1,
        "begin",
        lambda text: f"{word}, {text}",
    )


def _last_word(rng: Random) -> Rule:
    word = rng.choice(WORDS)
    return Rule(
        "last_word",
        f'End your reply with the word "{word}".',
        lambda text: [each.lower() for each in words(text)[-1:]] == [word] and len(words(text)) > 1,
        "end",
        lambda text: f"{text.rstrip('.')} {word}.",
    )


def _upper_case(_: Random) -> Rule:
    return Rule(
        "upper_case",
        "Write your whole reply in capital letters.",
        lambda text: text.isupper() and len(words(text)) > 1,
        "case",
        str.upper,
    )


def _lower_case(_: Random) -> Rule:
    return Rule(
        "lower_case",
        "Write your whole reply in small letters, without any capital letter.",
        lambda text: text.islower() and len(words(text)) > 1,
        "case",
        str.lower,
    )


def _bullets(rng: Random) -> Rule:
    count = rng.randint(2, 5)
    return Rule(
        "bullets",
        f'Answer with exactly {count} bullet points, each on a line of its own that begins with "- ".',
        lambda text: len(BULLET.findall(text)) == count,
        "shape",
        lambda text: "\n".join([f"- {text}", *(f"- Point {number}." for number in range(2, count)), f"- {text}"]),
    )


def _json(_: Random) -> Rule:
    return Rule(
        "json",
        'Answer with nothing but a JSON object whose only key is "answer".',
        _is_answer,
        "whole",
        lambda text: json.dumps({"answer": text}),
    )


def _is_answer(text: str) -> bool:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and list(found) == ["answer"] and found["answer"] not in (None, "", [], {})


def _no_comma(_: Random) -> Rule:
    return Rule(
        "no_comma", "Use no commas.", lambda text: "," not in text, "commas", lambda text: text.replace(",", "")
    )


def _short(rng: Random) -> Rule:
    most = rng.choice((20, 30, 40))
    return Rule(
        "short", f"Use at most {most} words.", lambda text: len(words(text)) <= most, "length", lambda text: text
    )


def _plain(_: Random) -> Rule:
    return Rule(
        "plain",
        "Use no bold text and no numbered list.",
        follows_rule,
        "marks",
        lambda text: text,
    )


def _no_question(_: Random) -> Rule:
    return Rule("no_question", "Do not ask me anything.", lambda text: "?" not in text, "questions", lambda text: text)


Maker = Callable[[Random], Rule]
ACTIVE: tuple[Maker, ...] = (_first_word, _last_word, _upper_case, _lower_case, _bullets, _json)
PASSIVE: tuple[Maker, ...] = (_no_comma, _short, _plain, _no_question)
