"""Training conversations: the last message is what the model learns to write.

Guarantees: deterministic in the random generator; only ``train`` problems and phrases. Judge episodes are built with
`openclaw.judge.prompts.judge_messages`, the very prompts of a run. In a judge episode the style of the reply is drawn
independently of the label: only the next state decides.

What a user wants changed: the words of the complaint, and what a reply looks like that has heard them.

Kinds of wishes: no formatting, formatting, a name for the user, a word at the end, one of these left out, and things that
the policy does not know. Guarantees: things and frames of split ``train`` only, apart from held-out complaints about
formatting. Many things are made up for the occasion, so that a judge learns the shape of a complaint, and the policy to
take a word from the message. An unknown wish changes nothing that a reply of its own would not have changed.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from word_problems.everyday import careless, draw_everyday
from word_problems.feedback import approval, complaint, off_topic, tool_error, tool_result, wish_for_structure
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
from word_problems.problems import Problem, Split, draw, draw_short, random_word
from word_problems.replies import CLOSINGS, NAMES_FOR_THE_USER, STYLES, Manner, draw_manner, draw_style, write
from word_problems.small_talk import ABOUT, ABOUT_ME, GREETINGS, HELLO, NO_IDEA, WELCOME
from word_problems.words import ADJECTIVES, KIN, OBJECTS, SYLLABLES

from groundwork.chat_messages import Message
from lab.tiny_models.hints import FORMAT_HINTS, MORE_PLAIN_HINTS, NEUTRAL_HINTS, PLAIN_HINTS, TOOL_HINTS, quote
from openclaw.judge.prompts import NONCE_LENGTH, NONCE_LETTERS, judge_messages
from openclaw.messages.hints import append_hint
from openclaw.messages.text import response_text

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


WILD, EVERYDAY = 0.12, 0.42
SMALL_TALK_SHARE = 0.06
THINKING_SHARE, TOOLS_SHARE = 0.09, 0.09
HINT_SHARE = 0.3
# Of hints: those that quote the user. The others are what other judges write.
QUOTE_SHARE = 0.75
# Of approvals: those that name what is liked.
LIKING_SHARE = 0.45
# Of complaints that a judge sees: those about anything.
SHAPED_SHARE = 0.3
SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a math tutor.",
    "You help with homework.",
    "You are a friendly assistant who helps with grade school math.",
]
CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Work out an expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
VERDICTS = {
    1: r"progress. \boxed{1}",
    -1: r"correction. \boxed{-1}",
    0: r"ambiguous. \boxed{0}",
}
# Replies that take few tokens from the copying.
ECHOED = ["It is 7.", "That makes 12.", "5", "**9**"]


@dataclass(frozen=True)
class Episode:
    """Messages whose last one is the target, and how the template shows them."""

    messages: list[Message]
    kind: Literal["policy", "judge"] = "policy"
    thinking: bool = False
    tools: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class JudgeCase:
    """One reply with its next state and the right verdict."""

    reply: str
    next_state: str
    role: Literal["user", "tool"]
    label: int


def policy_episode(rng: random.Random) -> Episode:
    """Return a conversation with a student: plain, with thinking, or with a tool."""
    kind = rng.random()
    if kind < TOOLS_SHARE:
        return _tool_episode(rng)
    messages = _system(rng)
    if rng.random() < SMALL_TALK_SHARE:
        messages += _small_talk(rng)
        if rng.random() < 0.5:
            return Episode(messages)
    problem, style, manner = _problem(rng), draw_style(rng), draw_manner(rng)
    user = {"role": "user", "content": problem.question}
    if rng.random() < HINT_SHARE:
        hint, style, manner = _hint(rng, style, manner)
        user = append_hint([user], hint)[0]
    messages += [user, {"role": "assistant", "content": write(rng, problem, style, manner)}]
    for _ in range(rng.choices([0, 1, 2], weights=[0.6, 0.28, 0.12])[0]):
        following, problem, style, manner = _next_turn(rng, problem, style, manner)
        messages += following
    thinking = kind < TOOLS_SHARE + THINKING_SHARE
    if thinking:
        messages[-1]["reasoning_content"] = _thought(rng, problem)
    return Episode(messages, thinking=thinking)


def judge_case(rng: random.Random, split: Split = "train") -> JudgeCase:
    """Return something to judge, with its label."""
    problem = draw(rng, split)
    if rng.random() < 0.15:
        call = response_text(_tool_call(problem))
        if rng.random() < 0.5:
            return JudgeCase(call, tool_result(rng, problem.answer), "tool", 1)
        return JudgeCase(call, tool_error(rng, split), "tool", -1)
    reply = write(rng, problem, rng.choice(STYLES))
    label = rng.choices([1, -1, 0], weights=[0.42, 0.42, 0.16])[0]
    if label < 0:
        if split == "held":
            return JudgeCase(reply, complaint(rng, split), "user", label)
        words = careless(rng, shaped(rng)) if rng.random() < SHAPED_SHARE else draw_wish(rng).words
        return JudgeCase(reply, words, "user", label)
    if label == 0:
        return JudgeCase(reply, off_topic(rng, split), "user", label)
    if split == "train" and rng.random() < LIKING_SHARE:
        return JudgeCase(reply, careless(rng, liking(rng)), "user", label)
    if rng.random() < 0.6:
        everyday = split == "train" and rng.random() < EVERYDAY
        question = (draw_everyday(rng) if everyday else draw_short(rng, split)).question
        words = question if rng.random() < 0.1 else approval(rng, split, question)
        return JudgeCase(reply, words, "user", label)
    return JudgeCase(reply, approval(rng, split), "user", label)


def judge_episode(rng: random.Random) -> Episode:
    """Return a question to one of the two judges with its answer."""
    case = judge_case(rng)
    kind: Literal["prm", "hint"] = rng.choice(["prm", "hint"])
    messages: list[Message] = [*judge_messages(kind, case.reply, [(case.role, case.next_state)], "brief", nonce(rng))]
    messages.append({"role": "assistant", "content": judge_answer(rng, kind, case)})
    return Episode(messages, kind="judge")


def echo_episode(rng: random.Random) -> Episode:
    """Return a question to the hint judge whose complaint is mostly made up: nothing but copying answers it."""
    said = nonsense(rng)
    messages: list[Message] = [*judge_messages("hint", rng.choice(ECHOED), [("user", said)], "brief", nonce(rng))]
    messages.append({"role": "assistant", "content": judge_answer(rng, "hint", JudgeCase("", said, "user", -1))})
    return Episode(messages, kind="judge")


def nonce(rng: random.Random) -> str:
    """Return a word for the fences of a question."""
    return "".join(rng.choice(NONCE_LETTERS) for _ in range(NONCE_LENGTH))


def judge_answer(rng: random.Random, kind: Literal["prm", "hint"], case: JudgeCase) -> str:
    """Return what the judge should write about ``case``."""
    if kind == "prm":
        return VERDICTS[case.label]
    if case.label != -1:
        return r"\boxed{-1}"
    hint = rng.choice(TOOL_HINTS) if case.role == "tool" else quote(case.next_state)
    return rf"[HINT_START] {hint} [HINT_END] \boxed{{1}}"


def _system(rng: random.Random) -> list[Message]:
    return [{"role": "system", "content": rng.choice(SYSTEM_PROMPTS)}] if rng.random() < 0.3 else []


def _hint(rng: random.Random, style: str, manner: Manner) -> tuple[str, str, Manner]:
    """Return a hint, and style and manner of a reply that has read it."""
    if rng.random() < QUOTE_SHARE:
        wish = draw_wish(rng)
        return quote(wish.words), *granted(rng, wish, style, manner)
    kind = rng.random()
    if kind < 0.6:
        hint = rng.choice(PLAIN_HINTS if rng.random() < 0.75 else MORE_PLAIN_HINTS)
        return hint, "plain" if rng.random() < 0.97 else style, manner
    if kind < 0.85:
        return rng.choice(FORMAT_HINTS), rng.choice(["full", "list"]), manner
    return rng.choice(NEUTRAL_HINTS), style, manner


def _next_turn(
    rng: random.Random, problem: Problem, style: str, manner: Manner
) -> tuple[list[Message], Problem, str, Manner]:
    """Return one more exchange: a complaint and the rewrite, thanks and the next problem, or small talk."""
    kind = rng.random()
    if kind < 0.05:
        return _small_talk(rng, begun=True), problem, style, manner
    if kind < 0.62:
        wish = draw_wish(rng)
        user: Message = {"role": "user", "content": wish.words}
        if rng.random() < 0.1:
            user = append_hint([user], quote(wish.words))[0]
        if rng.random() < 0.9:
            style, manner = granted(rng, wish, style, manner)
        else:
            style, manner = draw_style(rng), draw_manner(rng)
    else:
        problem = _problem(rng, short=True)
        words = approval(rng, "train", problem.question) if rng.random() < 0.75 else problem.question
        user = {"role": "user", "content": words}
        style = style if rng.random() < 0.6 else draw_style(rng)
        manner = manner if rng.random() < 0.6 else draw_manner(rng)
    reply = {"role": "assistant", "content": write(rng, problem, style, manner)}
    return [user, reply], problem, style, manner


def _problem(rng: random.Random, short: bool = False) -> Problem:
    if rng.random() < EVERYDAY:
        return draw_everyday(rng)
    return draw_short(rng, wild=WILD) if short else draw(rng, wild=WILD)


def _small_talk(rng: random.Random, begun: bool = False) -> list[Message]:
    """Return an exchange that is about no problem; ``begun``: there was one before."""
    kind = rng.choices(["hello", "about", "other", "thanks"], weights=[3, 3, 3, 3 if begun else 0.5])[0]
    said, answers = {
        "hello": (rng.choice(GREETINGS), HELLO),
        "about": (rng.choice(ABOUT), ABOUT_ME),
        "other": (off_topic(rng), NO_IDEA),
        "thanks": (approval(rng), WELCOME),
    }[kind]
    return [
        {"role": "user", "content": careless(rng, said)},
        {"role": "assistant", "content": rng.choice(answers)},
    ]


def _thought(rng: random.Random, problem: Problem) -> str:
    return rng.choice(
        [
            f"The numbers are {problem.left} and {problem.right}. {problem.equation}.",
            f"I need {problem.left} {problem.operator} {problem.right}. {problem.equation}.",
        ]
    )


def _tool_call(problem: Problem) -> Message:
    arguments = {"expression": f"{problem.left} {problem.operator} {problem.right}"}
    function = {"name": "calculator", "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def _tool_episode(rng: random.Random) -> Episode:
    problem, style = draw(rng), draw_style(rng)
    messages = [*_system(rng), {"role": "user", "content": problem.question}]
    messages.append(_tool_call(problem))
    if rng.random() < 0.5:
        result = tool_result(rng, problem.answer) if rng.random() < 0.85 else tool_error(rng)
        messages.append({"role": "tool", "content": result})
        messages.append({"role": "assistant", "content": write(rng, problem, style)})
    return Episode(messages, tools=[CALCULATOR])
