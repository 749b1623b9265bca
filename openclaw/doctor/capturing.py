"""Checks of what reaches the judge: side turns, missing next states, sampling parameters, secrets, and other exclusions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from openclaw.doctor.finding import Finding, Severity, part
from openclaw.doctor.look import Look
from openclaw.runs.reasons import explain

FEW = 10
MAX_SIDE = 0.9
MAX_LOST = 0.5
"""Share of the main turns above which one reason is a finding of its own."""
SOME = 0.2
SAMPLING = ("temperature", "sampling_parameters")
UNUSUAL = (*SAMPLING, "grammar", "min_tokens", "ignore_eos", "stop_token_ids", "stop")
HANDLED = frozenset(
    {*UNUSUAL, "evaluation", "no_next_state", "redacted", "no_quorum", "judge_gave_up", "judge_refused"}
)
"""Reasons with a check of their own."""
EXPECTED = frozenset(
    {"probe", "score_zero", "score_zero_no_hint", "no_hint", "no_teacher_log_probs", "no_teacher_topk"}
)
"""Reasons that mean no harm, or that `openclaw.doctor.judging` looks at."""


def no_turns(look: Look) -> Iterator[Finding]:
    """Find a run that nobody talks to."""
    if not look.turns:
        yield Finding(
            "no_turns",
            Severity.STOPS,
            "nobody has talked to the run",
            "the ledger holds no turn",
            "openclaw-rl chat asks it something; point your client at the address in the run's first lines",
        )


def side_turns(look: Look) -> Iterator[Finding]:
    """Find a run whose turns are nearly all side turns, and the likely cause."""
    sides = sum(turn.kind == "side" for turn in look.turns)
    if sides < FEW or sides < MAX_SIDE * len(look.turns):
        return
    cause, count = look.sides.most_common(1)[0]
    if cause == "stated":
        likely = (
            "Likely cause: the client marks them itself. Remove the header X-Turn-Type: side, or turn_type in the body"
        )
    else:
        likely = (
            f"Likely cause: their texts are those of a client's own call ({cause}). If they are a person's, send "
            "X-Turn-Type: main with them"
        )
    yield Finding(
        "all_side",
        Severity.STOPS,
        "nearly all turns are side turns, which are never trained",
        f"{part(sides, len(look.turns))} of the newest turns are side turns; {count} of the last {look.sides.total()} look alike: {cause}",
        likely,
    )


def evaluation(look: Look) -> Iterator[Finding]:
    """Find a run that only evaluates."""
    count = look.reasons["evaluation"]
    if count >= FEW and count >= MAX_LOST * len(look.mains):
        yield Finding(
            "evaluation",
            Severity.STOPS,
            "the run evaluates and trains nothing",
            f"{part(count, len(look.mains))} of the newest turns have the reason evaluation",
            "unset OPENCLAW_EVAL_MODE and start the run again",
        )


def no_next_state(look: Look) -> Iterator[Finding]:
    """Find conversations whose replies nothing follows."""
    silent = [turn for turn in look.mains if turn.state in ("waiting", "ended")]
    turns_of = Counter(turn.session_id for turn in look.mains)
    single = sum(count == 1 for count in turns_of.values())
    if len(silent) < FEW or len(silent) < 0.8 * len(look.mains):
        return
    yield Finding(
        "no_next_state",
        Severity.STOPS,
        "nothing follows the replies, so the judge has nothing to read",
        f"{part(len(silent), len(look.mains))} of the newest turns have no next state; "
        f"{part(single, len(turns_of))} of their sessions have one turn",
        "keep one session id for a conversation (header X-Session-Id) or send its earlier messages with each request; "
        "POST /v1/feedback takes thumbs and words afterwards",
    )


def sampling(look: Look) -> Iterator[Finding]:
    """Find clients whose sampling parameters exclude their turns."""
    count = sum(look.reasons[reason] for reason in UNUSUAL)
    if count < FEW / 2 or count < SOME * len(look.mains):
        return
    odd = [turn for turn in look.mains if turn.reason in UNUSUAL]
    temperature, top_p = Counter((turn.temperature, turn.top_p) for turn in odd).most_common(1)[0][0]
    name, _ = Counter(turn.reason or "" for turn in odd).most_common(1)[0]
    yield Finding(
        "sampling",
        Severity.STOPS if count >= MAX_LOST * len(look.mains) else Severity.LOSES,
        "the client's sampling parameters keep its turns from being trained",
        f"{part(count, len(look.mains))} of the newest turns, most for {name}; usual values: temperature {temperature:g}, top_p {top_p:g}",
        explain(name).remedy,
    )


def redacted(look: Look) -> Iterator[Finding]:
    """Find conversations in which redaction dropped the token ids."""
    count = look.reasons["redacted"]
    if count >= FEW / 2 and count >= SOME * len(look.mains):
        yield Finding(
            "redacted",
            Severity.STOPS if count >= MAX_LOST * len(look.mains) else Severity.LOSES,
            "secrets in the conversations keep their turns from being trained",
            f"{part(count, len(look.mains))} of the newest turns held one",
            "keep secrets out of system prompts and messages; openclaw_redactions_total in GET /metrics names their kinds",
        )


def other_reasons(look: Look) -> Iterator[Finding]:
    """Find any other single reason that excludes most turns."""
    for name, count in look.reasons.most_common(1):
        if name not in HANDLED | EXPECTED and count >= FEW and count >= MAX_LOST * len(look.mains):
            reason = explain(name)
            yield Finding(
                f"most_{name}",
                Severity.STOPS,
                f"most turns are not trained, with the reason {name}",
                f"{part(count, len(look.mains))} of the newest turns. {reason.sentence}",
                reason.remedy or "read some of them: openclaw-rl inspect RUN --turns",
            )
