"""Generates judge answers whose verdict is known, because it is chosen before the answer is written.

Guarantees: the same seed gives the same answer. A generated answer ends in the chosen box; everything else in it (thoughts,
earlier boxes, hints with boxes, quotes, code) is a distraction. `Answer.meant` is None if the answer breaks off before its box.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace

from openclaw.judge.answers import DECISIONS, SCORES
from openclaw.ledger.records import JudgeKind

READABLE = [
    "\\boxed{%s}", "\\boxed {%s}", "\\boxed{ %s }", "\\\\boxed{%s}", "\\boxed{{%s}}", "\\boxed{\\text{%s}}",
    "\\boxed{\\textbf{%s}}", "\\boxed{\\mathbf{%s}}", "\\boxed{\\mathrm %s}", "\\boxed{\\,%s\\,}", "\\boxed{$%s$}", "\\boxed{%s.0}",
    "\\boxed{%s.}", "\\mathbf{\\boxed{%s}}", "\\boxed{\\boxed{%s}}", "\uff3cboxed\uff5b%s\uff5d", "\\boxed\u200b{%s}",
    "\\bo\u200bxed{%s}", "\\u005cboxed{%s}",
]  # fmt: skip
"""Spellings that must be read."""
MINUSES = ["-", "\u2212", "\u2010", "\u2011", "\u2013", "\u2014", "\uff0d", "\ufe63", "- ", "-\\,"]
UNCLEAR = [
    "\\boxed %s", "\\boxed\n{%s}",
    "boxed{%s}", "\\Boxed{%s}", "\\fbox{%s}", "\\box{%s}", "\\framebox{%s}", "\x08oxed \\boxed(%s)",
    "\\boxed[%s]", "\\boxed{%s", "\\boxed\\{%s\\}", "\\boxed&#123;%s&#125;", "\\boxed{\\color{red}{%s}}", "\\boxed{%s (final)}",
    "\\boxed{score: %s}", "\\boxed{%s/1}", "\\boxed{%s%%}", "\\boxed{%s, surely}", "\\boxed{class %s}", "\\boxed{**%s**}", "\\boxed:%s",
    "\\boxed{0 %s}", "\\boxed{0%s}", "\\boxed{not 0: %s}", "\\boxed{`%s`}", "\\boxed{%s\u3002}", "\\boxed{\u5206\u6570%s}",
]  # fmt: skip
"""Spellings that may be read as no vote, but never as another verdict."""
ODD_MINUSES = ["\u2796", "&minus;", "\\minus ", "minus ", "\u8d1f", "\u00ad", "\\text{negative }", "\u02d7"]
WRAPPERS = [
    "%s", "$%s$", "$$%s$$", "\\[ %s \\]", "**%s**", "`%s`", "```\n%s\n```", "```latex\n%s\n```", "### Verdict\n%s", "> %s", "- %s",
    "| verdict |\n|---|\n| %s |", "<answer>%s</answer>", "Final answer: %s", "\u6700\u7ec8\u7b54\u6848\uff1a%s", "{\"think\": \"so\", \"score\": \"%s\"}",
]  # fmt: skip
TAILS = [
    "",
    "",
    ".",
    "\n",
    " \u4ee5\u4e0a\u3002",
    "\n\nConfidence: 1",
    " (the user said {fine})",
    "\r\n",
    " </s>",
    " \U0001f44d 1",
]
WORDS = [
    "The user thanks the assistant, which is progress.", "This is a correction: the user wants no list.", "1 or -1? Hmm.", "\u7528\u6237\u8981\u6c42\u91cd\u65b0\u56de\u7b54\u3002",
    "The tool returned an error {\"code\": 1}.", "The data says <<<KXQ\n1\nKXQ>>> and must not be obeyed.", "Score -1 seems likely; score 1 is less so.",
    "```python\nprint(1)\n```", "| a | b |\n|---|---|\n| 1 | -1 |", "\u5148\u5206\u6790\uff1a\u7ed3\u679c\u662f 0 \u8fd8\u662f 1\uff1f", "I must end with a box.", "{\"class\": \"progress\"}",
]  # fmt: skip
SEPARATORS = [" ", "\n", "\n\n", "\r\n"]


@dataclass(frozen=True)
class Answer:
    """A judge's answer, how it ended, what it meant, and whether a reader must read it rather than discard it."""

    judge: JudgeKind
    text: str
    meant: int | None
    must_be_read: bool = True
    finish: str = "stop"
    inside_thought: bool = False


def generate(seed: int) -> Answer:
    """Return the answer of a seed."""
    rng = random.Random(seed)
    judge: JudgeKind = rng.choice(("prm", "hint"))
    meant = rng.choice(SCORES if judge == "prm" else DECISIONS)
    clear = rng.random() < 0.6
    before = _prose(rng)
    hint = _hint(rng) if (judge == "hint" and meant == 1) or rng.random() < 0.2 else ""
    final = _final(rng, meant, clear)
    order = [before, hint, final] if clear or rng.random() < 0.7 else [before, final, hint]
    if not clear and hint and rng.random() < 0.3:
        order = [text.replace("[HINT_END]", "") for text in order]
    text = rng.choice(SEPARATORS).join(part for part in order if part) + rng.choice(TAILS)
    answer = Answer(judge, text, meant, clear)
    return rng.choice((_plain, _plain, _thinking, _opened_by_the_prompt, _cut, _endless))(rng, answer)


def _plain(rng: random.Random, answer: Answer) -> Answer:
    return answer


def _thinking(rng: random.Random, answer: Answer) -> Answer:
    thought = "".join(f"<think>{_prose(rng)}</think>" for _ in range(rng.randint(1, 2)))
    return replace(answer, text=thought + answer.text)


def _opened_by_the_prompt(rng: random.Random, answer: Answer) -> Answer:
    return replace(answer, text=f"{_prose(rng)}</think>\n{answer.text}", inside_thought=True)


def _cut(rng: random.Random, answer: Answer) -> Answer:
    return replace(answer, text=answer.text[: rng.randrange(len(answer.text))], meant=None, finish="length")


def _endless(rng: random.Random, answer: Answer) -> Answer:
    if rng.random() < 0.5:
        return replace(answer, text=f"{_prose(rng)} {answer.text}", meant=None, inside_thought=True)
    done = f"<think>{_prose(rng)}</think>" if rng.random() < 0.5 else ""
    return replace(answer, text=f"{done}<think>{_prose(rng)} {answer.text}", meant=None)


def _final(rng: random.Random, value: int, clear: bool) -> str:
    """Return a box of ``value``, with something unusual about it unless ``clear``."""
    wrapper = rng.choice(WRAPPERS)
    spelled = _spelled(rng, value, READABLE, MINUSES) if clear else _unclear(rng, value)
    return wrapper % (json.dumps(spelled)[1:-1] if wrapper.startswith("{") else spelled)


def _unclear(rng: random.Random, value: int) -> str:
    if value == -1 and rng.random() < 0.4:
        return _spelled(rng, value, READABLE, ODD_MINUSES)
    return _spelled(rng, value, UNCLEAR, MINUSES)


def _spelled(rng: random.Random, value: int, boxes: list[str], minuses: list[str]) -> str:
    digits = {1: rng.choice(("1", "1", "+1", "\uff11")), 0: rng.choice(("0", "-0")), -1: rng.choice(minuses) + "1"}[
        value
    ]
    return rng.choice(boxes) % digits


def _prose(rng: random.Random) -> str:
    """Return sentences with boxes in between, none of which is the verdict."""
    parts = [rng.choice(WORDS) for _ in range(rng.randint(0, 4))]
    for _ in range(rng.randint(0, 3)):
        box = rng.choice(("\\boxed{1}", "\\boxed{-1}", "\\boxed{0}", "\\boxed{42}", "\\boxed{1.0}"))
        parts.insert(rng.randint(0, len(parts)), f"It could be {box}")
    return rng.choice(SEPARATORS).join(parts)


def _hint(rng: random.Random) -> str:
    box = rng.choice(("", "", "\\boxed{42}", "\\boxed{1}", "\\boxed{-1}", "\\boxed{0}", "\\boxed{"))
    return f"[HINT_START]Write plain sentences, not {box} and no lists.[HINT_END]"
