"""Measures a freshly trained tiny model on held-out problems and phrases, and decides whether it may be used.

Guarantees: everything is sampled at the serving temperature through the prompts of a run; nothing here looks at
training phrases.
"""

from __future__ import annotations

import random
import re
from typing import Any

from simulated_users.user import User
from word_problems.everyday import draw_everyday
from word_problems.feedback import complaint
from word_problems.problems import Problem, draw, draw_short, heldout
from word_problems.replies import draw_style, follows_rule, gives_number, is_degenerate, write

from lab.tiny_models.episodes import CALCULATOR, JudgeCase, judge_case, nonce
from lab.tiny_models.hints import quote
from lab.tiny_models.sampling import Sampler
from lab.tiny_models.tastes import TASTES
from openclaw.judge.answers import read_vote
from openclaw.judge.prompts import judge_messages
from openclaw.ledger.records import JudgeKind
from openclaw.messages.hints import append_hint

Metrics = dict[str, Any]
JUDGE_ACCURACY, RIGHT_NUMBER, RULE_LEAST, RULE_MOST = 0.90, 0.89, 0.10, 0.28
EVERYDAY_RIGHT = 0.85
TASTE_ACCURACY, HINTS_COPIED, TASTE_LEAST, TASTE_MOST = 0.90, 0.50, 0.05, 0.25
JUDGE_TOKENS: dict[JudgeKind, int] = {"prm": 24, "hint": 96}
_TOOL_CALL = re.compile(r'<tool_call>\n\{"name": "calculator", "arguments": \{"expression": "(.+?)"\}\}\n</tool_call>')


def measure_judge(sampler: Sampler, cases: int, seed: int = 424242) -> Metrics:
    """Return the accuracy of scores, in all and per label, and how often hints come when they should and should not."""
    rng = random.Random(seed)
    drawn = [judge_case(rng, "held") for _ in range(cases)]
    scores = [read_vote("prm", answer, 0.0).value for answer in _answers(sampler, rng, "prm", drawn)]
    hints = [read_vote("hint", answer, 0.0).hint for answer in _answers(sampler, rng, "hint", drawn)]
    right = [score == case.label for score, case in zip(scores, drawn, strict=True)]
    metrics: Metrics = {"judge_accuracy_heldout": _share(right), "judge_cases": cases}
    for label in (1, -1, 0):
        metrics[f"judge_accuracy_label_{label}"] = _share(
            [hit for hit, case in zip(right, drawn, strict=True) if case.label == label]
        )
    metrics["judge_accuracy_tool"] = _share(
        [hit for hit, case in zip(right, drawn, strict=True) if case.role == "tool"]
    )
    metrics["hint_recall"] = _share([bool(h) for h, case in zip(hints, drawn, strict=True) if case.label == -1])
    metrics["hint_false"] = _share([bool(h) for h, case in zip(hints, drawn, strict=True) if case.label != -1])
    metrics["hint_copied"] = _share(
        [
            h == quote(case.next_state)
            for h, case in zip(hints, drawn, strict=True)
            if (case.label, case.role) == (-1, "user")
        ]
    )
    return metrics


def _answers(sampler: Sampler, rng: random.Random, kind: JudgeKind, cases: list[JudgeCase]) -> list[str]:
    prompts = [
        sampler.prompt(judge_messages(kind, case.reply, [(case.role, case.next_state)], "brief", nonce(rng)))
        for case in cases
    ]
    return [sampler.text(ids) for ids in sampler.replies(prompts, JUDGE_TOKENS[kind])]


def measure_tastes(sampler: Sampler, cases: int, seed: int = 515151) -> Metrics:
    """Return what the model makes of tastes that nobody has in the corpus, each with its own words.

    The accuracy of scores, the share of complaints whose hint repeats the user's words exactly, and for each taste the
    share of first replies that follow it: of the policy alone (``base``) and of the teacher with the hint (``taught``).
    """
    rng = random.Random(seed)
    drawn = [_taste_case(rng, TASTES[number % len(TASTES)]) for number in range(cases)]
    complaints = [case for case in drawn if case.label == -1]
    scores = [read_vote("prm", answer, 0.0).value for answer in _answers(sampler, rng, "prm", drawn)]
    hints = [read_vote("hint", answer, 0.0).hint for answer in _answers(sampler, rng, "hint", complaints)]
    copied = [hint == quote(case.next_state) for hint, case in zip(hints, complaints, strict=True)]
    metrics: Metrics = {
        "judge_accuracy_tastes": _share([s == case.label for s, case in zip(scores, drawn, strict=True)]),
        "judge_accuracy_tastes_complaints": _share(
            [s == case.label for s, case in zip(scores, drawn, strict=True) if case.label == -1]
        ),
        "hint_recall_tastes": _share([bool(hint) for hint in hints]),
        "hint_copied_tastes": _share(copied),
        "hint_words_tastes": round(sum(map(_overlap, hints, complaints)) / len(complaints), 4),
    }
    questions = [[{"role": "user", "content": problem.question}] for problem in heldout(cases, seed)]
    plain = [sampler.text(ids) for ids in sampler.replies([sampler.prompt(messages) for messages in questions])]
    for taste in TASTES:
        hinted = [append_hint(messages, quote(taste.complain(rng))) for messages in questions[:64]]
        taught = [sampler.text(ids) for ids in sampler.replies([sampler.prompt(messages) for messages in hinted])]
        metrics[f"base_{taste.name}"] = _share([taste.likes(text) for text in plain])
        metrics[f"taught_{taste.name}"] = _share([taste.likes(text) for text in taught])
    return metrics


def _taste_case(rng: random.Random, taste: User) -> JudgeCase:
    reply = write(rng, draw(rng, "held"), draw_style(rng))
    if rng.random() < 0.5:
        return JudgeCase(reply, taste.complain(rng), "user", -1)
    following = draw_short(rng, "held").question if rng.random() < 0.5 else None
    return JudgeCase(reply, taste.approve(rng, following), "user", 1)


def _overlap(hint: str | None, case: JudgeCase) -> float:
    said = re.findall(r"\w+", case.next_state)
    found = re.findall(r"\w+", hint or "")
    return sum(word in found for word in said) / len(said)


def measure_policy(sampler: Sampler, count: int, seed: int = 990001) -> Metrics:
    """Return rates of first replies, with and without a hint and in everyday words, of rewrites, of thinking and of tool calls."""
    problems = heldout(count, seed)
    rng = random.Random(seed)
    questions = [[{"role": "user", "content": problem.question}] for problem in problems]
    hinted = [append_hint(messages, quote(complaint(rng, "held"))) for messages in questions]
    rewrites = [
        [
            *messages,
            {"role": "assistant", "content": write(rng, problem, "full")},
            {"role": "user", "content": complaint(rng, "held")},
        ]
        for messages, problem in zip(questions, problems, strict=True)
    ]
    half = count // 2
    everyday = [draw_everyday(rng, "held") for _ in range(half)]
    asked = [[{"role": "user", "content": problem.question}] for problem in everyday]
    metrics = {
        **_rates("base", sampler, questions, problems),
        **_rates("hinted", sampler, hinted[:half], problems),
        **_rates("rewrite", sampler, rewrites[:half], problems),
        **_rates("everyday", sampler, asked, everyday),
    }
    thoughts = sampler.replies([sampler.prompt(m, enable_thinking=True) for m in questions[:half]], 200)
    metrics["thinking_rate"] = _share(
        [
            text.startswith("<think>") and "</think>" in text and gives_number(text, problem.answer)
            for text, problem in zip(map(sampler.text, thoughts), problems, strict=False)
        ]
    )
    calls = sampler.replies([sampler.prompt(m, tools=[CALCULATOR]) for m in questions[:half]], 80)
    metrics["tool_call_rate"] = _share([bool(_TOOL_CALL.search(sampler.text(ids))) for ids in calls])
    return metrics


def measure_first_replies(sampler: Sampler, count: int) -> Metrics:
    """Return the shares of first replies to held-out problems that the student likes, and that have the right number."""
    problems = heldout(count)
    rates = _rates("base", sampler, [[{"role": "user", "content": problem.question}] for problem in problems], problems)
    return {"liked": rates["base_rule"], "right_number": rates["base_right_number"]}


def failures(metrics: Metrics) -> list[str]:
    """Return what keeps the model from being used, one line each."""
    lines = []
    if metrics["judge_accuracy_heldout"] < JUDGE_ACCURACY:
        lines.append(
            f"judge accuracy {metrics['judge_accuracy_heldout']:.3f} on held-out phrases, {JUDGE_ACCURACY} needed"
        )
    if metrics["base_right_number"] < RIGHT_NUMBER:
        lines.append(f"right numbers {metrics['base_right_number']:.3f} on held-out problems, {RIGHT_NUMBER} needed")
    if metrics["everyday_right_number"] < EVERYDAY_RIGHT:
        lines.append(
            f"right numbers {metrics['everyday_right_number']:.3f} on held-out everyday problems, {EVERYDAY_RIGHT} needed"
        )
    if not RULE_LEAST <= metrics["base_rule"] <= RULE_MOST:
        lines.append(f"base rule rate {metrics['base_rule']:.3f}, between {RULE_LEAST} and {RULE_MOST} needed")
    if metrics["judge_accuracy_tastes"] < TASTE_ACCURACY:
        lines.append(
            f"judge accuracy {metrics['judge_accuracy_tastes']:.3f} on tastes outside the corpus, {TASTE_ACCURACY} needed"
        )
    if metrics["hint_copied_tastes"] < HINTS_COPIED:
        lines.append(
            f"{metrics['hint_copied_tastes']:.3f} of the hints repeat the user's words exactly, {HINTS_COPIED} needed"
        )
    for taste in TASTES:
        rate = metrics[f"base_{taste.name}"]
        if not TASTE_LEAST <= rate <= TASTE_MOST:
            lines.append(
                f"base rate {rate:.3f} of the taste {taste.name}, between {TASTE_LEAST} and {TASTE_MOST} needed"
            )
    return lines


def _rates(name: str, sampler: Sampler, conversations: list[list[dict]], problems: list[Problem]) -> Metrics:
    replies = sampler.replies([sampler.prompt(messages) for messages in conversations])
    texts = [sampler.text(ids) for ids in replies]
    broken = [
        is_degenerate(text, ids[-1:] == [sampler.end], len(ids)) for text, ids in zip(texts, replies, strict=True)
    ]
    liked = [follows_rule(text) and not bad for text, bad in zip(texts, broken, strict=True)]
    numbers = [gives_number(text, problem.answer) for text, problem in zip(texts, problems, strict=False)]
    return {
        f"{name}_rule": _share(liked),
        f"{name}_right_number": _share(numbers),
        f"{name}_degenerate": _share(broken),
        f"{name}_tokens": round(sum(map(len, replies)) / len(replies), 1),
    }


def _share(hits: list[bool]) -> float:
    return round(sum(hits) / len(hits), 4) if hits else 0.0
