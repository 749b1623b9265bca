"""Measures a freshly trained tiny model on held-out problems and phrases, and decides whether it may be used.

Guarantees: everything is sampled at the serving temperature through the prompts of a run; nothing here looks at
training phrases.
"""

from __future__ import annotations

import random
import re
from typing import Any

from openclaw.judge.prompts import append_hint, judge_messages, parse_hint, parse_score
from tiny_models.episodes import CALCULATOR, judge_case
from tiny_models.everyday import draw_everyday
from tiny_models.feedback import complaint
from tiny_models.hints import PLAIN_HINTS
from tiny_models.problems import Problem, heldout
from tiny_models.replies import follows_rule, gives_number, is_degenerate, write
from tiny_models.sampling import Sampler

Metrics = dict[str, Any]
JUDGE_ACCURACY, RIGHT_NUMBER, RULE_LEAST, RULE_MOST = 0.90, 0.89, 0.10, 0.28
EVERYDAY_RIGHT = 0.85
_TOOL_CALL = re.compile(r'<tool_call>\n\{"name": "calculator", "arguments": \{"expression": "(.+?)"\}\}\n</tool_call>')


def measure_judge(sampler: Sampler, cases: int, seed: int = 424242) -> Metrics:
    """Return the accuracy of scores, in all and per label, and how often hints come when they should and should not."""
    rng = random.Random(seed)
    drawn = [judge_case(rng, "held") for _ in range(cases)]

    def answers(kind: Any, max_new: int) -> list[str]:
        prompts = [
            sampler.prompt(judge_messages(kind, case.reply, case.next_state, case.role, "brief")) for case in drawn
        ]
        return [sampler.text(ids) for ids in sampler.replies(prompts, max_new)]

    scores = [parse_score(answer) for answer in answers("prm", 24)]
    hints = [parse_hint(answer)[1] for answer in answers("hint", 64)]
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
    return metrics


def measure_policy(sampler: Sampler, count: int, seed: int = 990001) -> Metrics:
    """Return rates of first replies, with and without a hint and in everyday words, of rewrites, of thinking and of tool calls."""
    problems = heldout(count, seed)
    rng = random.Random(seed)
    questions = [[{"role": "user", "content": problem.question}] for problem in problems]
    hinted = [append_hint(messages, rng.choice(PLAIN_HINTS)) for messages in questions]
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
