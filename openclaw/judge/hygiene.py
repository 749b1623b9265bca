"""Finds turns that must not be trained, or only as bad replies, and the reason that is counted.

Guarantees: a turn that passes has one finite log-probability per id, the temperature that the trainer assumes, and a
length that fits the trainer. Nothing is repaired: a defective turn is excluded. The rules of `openclaw.config.runtime.HYGIENE_RULES` are chosen by
``OPENCLAW_HYGIENE``; the other reasons always count.

Reasons: ``side``, ``aborted``, ``no_next_state``, ``temperature``, ``length_mismatch``, ``empty``, ``too_long``,
``non_finite_logprob``, ``no_weight_version``, ``tool_turns`` (`defect`), ``too_short`` (`unpraised`), and the rules; ``stale``
at the rollout (`openclaw.training.rollout`). ``tool_turns`` (`tool_turns_before`) keeps an agent's long chains of calls from filling the
batches. It depends on the place in the chain alone, so it favours no outcome.

A rule about how a reply looks keeps it from praise only (`unpraised`). Blame for it is trained, or a policy that is blamed
for its honest replies would learn to be cut off, to repeat itself or to change the script, where nothing was lost.

Rules:
    ``truncated``: the token limit cut the reply off, so its end is not the policy's. No praise.
    ``repetition``: most of the reply repeats a few tokens (`is_repetitive`). No praise.
    ``off_language``: the reply is in another script than the user's words; translations are, too. No praise.
    ``duplicate``: the same reply to the same conversation already gave a sample (`openclaw.judge.worker`). Neither praise nor
    blame, which would count twice.
    ``malformed_call``: a tool call that nobody can read. It is no reason to leave the turn out, or a policy would learn to
    break its calls where it expects blame: the turn is scored -1 without a judge (`broken_calls`).
    ``asks_back``: a reply that only asks is not progress because the user answers. Otherwise a policy would learn to ask
    where it expects blame. A judge's 1 for it becomes 0; a -1 stays (`asks_back`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from groundwork.chat_messages import PICTURE_TEXT, Message
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.ledger.records import Turn
from openclaw.messages.classify import user_words
from openclaw.messages.text import content_text, next_state_role

TOO_SHORT, TRUNCATED, REPETITION, DUPLICATE = "too_short", "truncated", "repetition", "duplicate"
OFF_LANGUAGE, MALFORMED_CALL, ASKS_BACK = "off_language", "malformed_call", "asks_back"
SENTENCE = re.compile(r"[^.!?。！？؟\n]*[.!?。！？؟]*")
QUESTION_MARKS = "?？؟"
MAX_PERIOD = 16
MIN_REPEATED = 32
CLEAR_SHARE = 0.8
MIN_LETTERS = 12


@dataclass(frozen=True)
class Limits:
    """The limits of the trainer.

    Attributes:
        temperature: by which it divides logits; log-probabilities at another temperature would not match.
        min_response_tokens: shorter replies count as fragments, which are not praised.
        max_tokens: limit on prompt plus response tokens.
        rules: of `openclaw.config.runtime.HYGIENE_RULES`, those that apply.
        tool_turns: most turns in a row that only tools react to; 0 means no limit.
    """

    temperature: float
    min_response_tokens: int
    max_tokens: int
    rules: Collection[str] = (TRUNCATED, REPETITION, DUPLICATE, MALFORMED_CALL, ASKS_BACK)
    tool_turns: int = RuntimeVariables.max_tool_turns


def defect(turn: Turn, limits: Limits) -> str | None:
    """Return why ``turn`` must not be trained whatever the judge says, or None."""
    misfits = turn.misfits(limits.temperature, limits.max_tokens)
    checks = {
        "no_next_state": not turn.next_state,
        "empty": not turn.response_ids or not turn.prompt_ids,
        "length_mismatch": len(turn.response_ids) != len(turn.response_logprobs),
        **misfits,
        "tool_turns": bool(limits.tool_turns)
        and next_state_role(turn.next_state or []) == "tool"
        and tool_turns_before(turn) >= limits.tool_turns
        and not broken_calls(turn, limits),
    }
    return turn.never_trained or next((reason for reason, check in checks.items() if check), None)


def unpraised(turn: Turn, limits: Limits) -> str | None:
    """Return why a turn without `defect` must not be trained as a good reply, or None; as a bad one it may be."""
    checks = {
        TOO_SHORT: len(turn.response_ids) < limits.min_response_tokens,
        TRUNCATED: TRUNCATED in limits.rules and turn.finish_reason == "length",
        REPETITION: REPETITION in limits.rules and is_repetitive(turn.response_ids),
        OFF_LANGUAGE: OFF_LANGUAGE in limits.rules and other_script(turn),
    }
    return next((reason for reason, check in checks.items() if check), None)


def broken_calls(turn: Turn, limits: Limits) -> bool:
    """Return whether a reply is scored -1 for its unreadable tool calls."""
    return MALFORMED_CALL in limits.rules and turn.malformed_calls > 0


def tool_turns_before(turn: Turn) -> int:
    """Return how many replies before this one follow the user's last message: each of them called tools."""
    replies = 0
    for message in reversed(turn.messages):
        if _is_user(message):
            break
        replies += message.get("role") == "assistant"
    return replies


def asks_back(turn: Turn, limits: Limits) -> bool:
    """Return whether a user answered a reply that only asks: it ends with a question, and most of its letters ask."""
    if ASKS_BACK not in limits.rules or turn.response_message.get("tool_calls"):
        return False
    text = content_text(turn.response_message.get("content")).strip()
    sentences = [match for match in SENTENCE.findall(text) if any(map(str.isalnum, match))]
    asked = [sentence for sentence in sentences if sentence[-1] in QUESTION_MARKS]
    if not asked or sentences[-1] is not asked[-1] or next_state_role(turn.next_state or []) != "user":
        return False
    return 2 * sum(map(len, asked)) >= sum(map(len, sentences))


def is_repetitive(ids: Sequence[int]) -> bool:
    """Return whether at least half of a reply, and `MIN_REPEATED` tokens, repeat up to `MAX_PERIOD` tokens."""
    enough = max(MIN_REPEATED, (len(ids) + 1) // 2)
    for period in range(1, MAX_PERIOD + 1):
        run = 0
        for position in range(period, len(ids)):
            run = run + 1 if ids[position] == ids[position - period] else 0
            if run >= enough:
                return True
    return False


def other_script(turn: Turn) -> bool:
    """Return whether the reply is clearly in one script and the user's last message clearly in another."""
    words = next((user_words(message) for message in reversed(turn.messages) if _is_user(message)), "")
    words = words.replace(PICTURE_TEXT, "")
    asked, answered = main_script(words), main_script(content_text(turn.response_message.get("content")))
    return bool(asked and answered and asked != answered)


def main_script(text: str) -> str | None:
    """Return the script of at least `CLEAR_SHARE` of the letters (``LATIN``, ``CJK``, ...); None for few or mixed letters."""
    names = [unicodedata.name(letter, "").partition(" ")[0] for letter in text if letter.isalpha()]
    if len(names) < MIN_LETTERS:
        return None
    most = max(set(names), key=names.count)
    return most if names.count(most) >= CLEAR_SHARE * len(names) else None


def _is_user(message: Message) -> bool:
    return message.get("role") == "user"
