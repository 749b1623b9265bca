"""Checks of the judge and the teacher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from openclaw.doctor.finding import Finding, Severity, part
from openclaw.doctor.look import Look

FEW = 10
SOME = 0.2
ABSTAINS = 0.3
NEUTRAL = 0.8
SPLIT = 0.5
ONE_WAY = 0.98
MIN_ONE_WAY = 50
NO_HINTS = 20
BACKLOG_SECONDS = 600.0
GRAMMAR = "set OPENCLAW_JUDGE_GRAMMAR=1 (an SGLang judge then ends every answer in a box), or use a larger judge"
AGAINST_CUTS = {"cut_off": "raise PRM_MAX_NEW_TOKENS", "endless_thought": "raise PRM_MAX_NEW_TOKENS"}


def unreachable(look: Look) -> Iterator[Finding]:
    """Find a judge that fails, refuses or is away."""
    error = look.judge_error
    given_up = look.reasons["judge_gave_up"] + look.reasons["judge_refused"]
    if error is not None:
        yield Finding(
            "judge_fails",
            Severity.STOPS,
            "the judge fails, and turns wait for it",
            str(error),
            "read the end of runtime.log and logs/engine-prm-0.log; for a judge elsewhere check OPENCLAW_JUDGE_BASE_URL "
            "and OPENCLAW_JUDGE_API_KEY. The turns are judged as soon as it answers",
        )
    elif given_up >= FEW / 2 and given_up >= SOME * len(look.mains):
        yield Finding(
            "judge_gives_up",
            Severity.LOSES,
            "turns are given up, because the judge refuses them or fails on them",
            f"{part(given_up, len(look.mains))} of the newest turns: judge_gave_up {look.reasons['judge_gave_up']}, "
            f"judge_refused {look.reasons['judge_refused']}",
            "read runtime.log about one of them; conversations longer than the judge's context need a larger one",
        )


def backlog(look: Look) -> Iterator[Finding]:
    """Find a judge that is slower than the conversations."""
    if look.judge_error is not None:
        return
    late = [
        turn
        for turn in look.mains
        if turn.state == "pending" and look.last_at - (turn.next_state_at or look.last_at) > BACKLOG_SECONDS
    ]
    if len(late) >= FEW:
        yield Finding(
            "judge_slow",
            Severity.LOSES,
            "the judge is slower than the conversations",
            f"{len(late)} turns have waited for it for more than {BACKLOG_SECONDS / 60:.0f} minutes",
            "lower PRM_M or PRM_MAX_NEW_TOKENS, raise OPENCLAW_JUDGE_CONCURRENCY, or give the judge more GPUs (PRM_GPUS)",
        )


def abstains(look: Look) -> Iterator[Finding]:
    """Find a judge whose answers are not votes."""
    count = look.reasons["no_quorum"]
    if count < FEW / 2 or count < ABSTAINS * len(look.judged):
        return
    invalid = Counter(vote.invalid for turn in look.judged for vote in turn.votes if vote.invalid)
    kinds = ", ".join(f"{name} {number}" for name, number in invalid.most_common()) or "none recorded"
    worst = invalid.most_common(1)[0][0] if invalid else ""
    yield Finding(
        "judge_abstains",
        Severity.STOPS if count >= NEUTRAL * len(look.judged) else Severity.LOSES,
        "the judge abstains: its answers are not votes",
        f"{part(count, len(look.judged))} of the newest judged turns had too few votes; answers that are none: {kinds}",
        AGAINST_CUTS.get(worst, GRAMMAR),
    )


def neutral(look: Look) -> Iterator[Finding]:
    """Find a judge that says 0 to nearly everything."""
    scored = [turn for turn in look.judged if turn.score is not None]
    zeros = sum(turn.score == 0 for turn in scored)
    if len(scored) >= 2 * FEW and zeros >= NEUTRAL * len(scored):
        yield Finding(
            "judge_neutral",
            Severity.LOSES,
            "the judge sees neither progress nor complaints",
            f"{part(zeros, len(scored))} of the newest verdicts are 0, which teaches nothing",
            "read some votes: openclaw-rl inspect RUN --session ID; a larger judge, or PRM_M=3, tells more apart",
        )


def disagree(look: Look) -> Iterator[Finding]:
    """Find votes on the same turn that contradict each other."""
    asked = [
        values
        for turn in look.judged
        if len(values := [vote.value for vote in turn.votes if vote.judge == "prm" and vote.value is not None]) > 1
    ]
    split = sum(len(set(values)) > 1 for values in asked)
    if len(asked) >= FEW and split >= SPLIT * len(asked):
        yield Finding(
            "votes_disagree",
            Severity.WATCH,
            "the judge's votes on a turn disagree",
            f"{part(split, len(asked))} of the newest turns with several votes have no common answer",
            "lower PRM_TEMPERATURE, use a larger judge, or more votes (PRM_M=5)",
        )


def one_way(look: Look) -> Iterator[Finding]:
    """Find verdicts that are all alike: rewards equal to their baseline teach nothing."""
    signs = Counter(turn.score for turn in look.judged if turn.score)
    if signs.total() < MIN_ONE_WAY:
        return
    sign, count = signs.most_common(1)[0]
    if count >= ONE_WAY * signs.total():
        yield Finding(
            "one_way_verdicts",
            Severity.WATCH,
            f"nearly all verdicts are {sign:+d}, so rewards equal their baseline and teach nothing",
            f"{part(count, signs.total())} of the newest verdicts other than 0",
            "read some: openclaw-rl inspect RUN --turns. If people really are that content, all is learned; otherwise "
            "the judge says the same to everything: use a larger one",
        )


def no_hints(look: Look) -> Iterator[Finding]:
    """Find a hint judge that never gives a hint."""
    asked = [turn for turn in look.judged if any(vote.judge == "hint" for vote in turn.votes)]
    hinted = sum(turn.hinted for turn in asked)
    complaints = sum((turn.score or 0) < 0 for turn in asked)
    if len(asked) >= NO_HINTS and not hinted and complaints != 0:
        yield Finding(
            "no_hints",
            Severity.LOSES,
            "the judge never gives a hint, so the teacher has nothing to read",
            f"0 of the newest {len(asked)} turns that were asked for one; {complaints} of them are complaints",
            "use a larger judge, or a method without hints (--method rl)",
        )


def no_teacher(look: Look) -> Iterator[Finding]:
    """Find hints whose turns have no teacher's numbers."""
    count = look.reasons["no_teacher_log_probs"] + look.reasons["no_teacher_topk"]
    hinted = sum(turn.hinted for turn in look.judged)
    if count >= FEW / 2 and count >= SOME * max(hinted, count):
        yield Finding(
            "no_teacher",
            Severity.LOSES,
            "the teacher gives no log-probabilities for hinted replies",
            f"{part(count, max(hinted, count))} of the newest hinted turns",
            "read runtime.log about the teacher; with OPENCLAW_OPD_TEACHER=prm the judge needs the policy's tokenizer",
        )
