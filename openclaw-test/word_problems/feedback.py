"""What users and tools say after a reply, put together from fragments and words.

Guarantees: a message of split ``held`` is made of held-out fragments only; deterministic in the random generator.
"""

from __future__ import annotations

import random

from word_problems.everyday import careless
from word_problems.phrases import (
    COMPLAINT_OPENERS,
    COMPLAINTS,
    MOVING_ON,
    OFF_TOPIC,
    PRAISE,
    REQUESTS,
    STRUCTURE,
    STRUCTURE_FRAMES,
    THANKS,
    TOO,
    TOO_FRAMES,
    UNWANTED,
    UNWANTED_FRAMES,
    WANTED,
    WANTED_FRAMES,
)
from word_problems.problems import Split, filler, random_word
from word_problems.small_talk import ABOUT, GREETINGS
from word_problems.words import NAMES

OWN_WORDS = 0.4


def complaint(rng: random.Random, split: Split = "train") -> str:
    """Return a request to write the reply without formatting."""
    if split == "train" and rng.random() < OWN_WORDS:
        return careless(rng, own_words(rng))
    parts = [
        rng.choice(COMPLAINT_OPENERS[split]) if rng.random() < 0.5 else "",
        rng.choice(COMPLAINTS[split]) if rng.random() < 0.75 else "",
    ]
    if rng.random() < 0.75 or not parts[1]:
        parts.append(rng.choice(REQUESTS[split]))
    return _roughen(rng, " ".join(part for part in parts if part), may_lower=True)


def own_words(rng: random.Random) -> str:
    """Return a complaint in one to three short sentences, put together from words."""
    kinds = [
        lambda: rng.choice(UNWANTED_FRAMES).format(thing=rng.choice(UNWANTED)),
        lambda: rng.choice(UNWANTED_FRAMES).format(thing=f"{rng.choice(UNWANTED)} {_link(rng)} {rng.choice(UNWANTED)}"),
        lambda: rng.choice(TOO_FRAMES).format(much=rng.choice(TOO)),
        lambda: rng.choice(WANTED_FRAMES).format(thing=rng.choice(WANTED)),
    ]
    sentences = [rng.choices(kinds, weights=[4, 1, 1, 2])[0]() for _ in range(rng.choice([1, 1, 2]))]
    if rng.random() < 0.2:
        sentences.insert(0, rng.choice(COMPLAINT_OPENERS["train"]))
    return " ".join(sentences)


def wish_for_structure(rng: random.Random) -> str:
    """Return a complaint of the opposite taste: the reply should have formatting."""
    return careless(rng, rng.choice(STRUCTURE_FRAMES).format(thing=rng.choice(STRUCTURE)))


def approval(rng: random.Random, split: Split = "train", next_question: str | None = None) -> str:
    """Return thanks, praise or moving on, with the next question when there is one."""
    parts = [
        rng.choice(THANKS[split]) if rng.random() < 0.85 else "",
        rng.choice(PRAISE[split]) if rng.random() < 0.5 else "",
    ]
    if rng.random() < 0.5 or not any(parts):
        parts.append(rng.choice(MOVING_ON[split]))
    if next_question:
        parts.append(next_question)
    return _roughen(rng, " ".join(part for part in parts if part), may_lower=not next_question)


def off_topic(rng: random.Random, split: Split = "train") -> str:
    """Return a message that says nothing about the reply."""
    if split == "held" or rng.random() >= 0.4:
        return _roughen(rng, rng.choice(OFF_TOPIC[split]), may_lower=True)
    if rng.random() < 0.5:
        return filler(rng, rng.choice(NAMES))
    if rng.random() < 0.3:
        return careless(rng, rng.choice(GREETINGS + ABOUT))
    lead = rng.choice(["What is ", "Where is ", "Do you know ", "Tell me about ", "I have to ", "Is there "])
    return lead + " ".join(random_word(rng) for _ in range(rng.randint(1, 5))) + rng.choice(".?")


def _link(rng: random.Random) -> str:
    return rng.choice(["and", "or", "and no"])


def _roughen(rng: random.Random, text: str, may_lower: bool) -> str:
    """Write as people do: sometimes all in lower case, sometimes without the full stop."""
    kind = rng.random()
    if kind < 0.2:
        return text.lower() if may_lower else text
    return text.removesuffix(".") if kind < 0.3 else text


TOOL_ERRORS: dict[Split, list[str]] = {
    "train": [
        "Error: invalid expression",
        "Error: could not parse the input",
        '{"error": "unknown operator"}',
        "Error: missing argument",
        "ValueError: bad number",
        "Traceback: SyntaxError",
        "Error: tool call failed",
        '{"error": "timeout"}',
    ],
    "held": [
        "Error: unexpected token",
        '{"error": "invalid argument"}',
        "TypeError: expression is missing",
        "Error: the call failed",
    ],
}


def tool_result(rng: random.Random, answer: int) -> str:
    """Return a clean tool result."""
    return rng.choice([str(answer), str(answer), f'{{"result": {answer}}}', f"Result: {answer}", f"= {answer}"])


def tool_error(rng: random.Random, split: Split = "train") -> str:
    """Return a tool result that reports an error."""
    return rng.choice(TOOL_ERRORS[split])
