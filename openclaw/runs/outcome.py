"""What became of a turn, in a sentence: which step used it, what it waits for, or why it is not trained. Imports no torch."""

from __future__ import annotations

from openclaw.ledger.views import SampleRecord, TurnRecord
from openclaw.messages.preview import harmless, shown_time
from openclaw.runs.reasons import in_words

WAITS = {
    "waiting": "It waits for its next state: the judge reads what follows the reply.",
    "pending": "It waits for the judge.",
    "ready": "It waits for its batch, which takes a step as soon as it is full.",
}


def outcome(record: TurnRecord, *, numbered: bool = True) -> str:
    """Return in words which step used a turn, what it waits for, or why it is not trained.

    ``numbered``: with the numbers of step and sample, which count what all people do.
    """
    own = [sample for sample in record.samples if not sample.of_practice]
    used = [sample for sample in own if sample.state in ("leased", "trained")]
    if used:
        return " ".join(_used(item, numbered) for item in used)
    if ready := [sample for sample in own if sample.state == "ready"]:
        return f"{WAITS['ready']} ({len(ready)} sample{'s' * (len(ready) > 1)})"
    if own:
        reason = own[-1].reason or ""
        return f"Not trained ({reason}). {in_words(reason)}"
    if record.turn.reason is not None:
        return f"Not trained ({record.turn.reason}). {in_words(record.turn.reason)}"
    if record.turn.state == "pending" and record.judge_error:
        return f"Not judged after {record.judge_attempts} attempts; the last failed with {harmless(record.judge_error)}"
    return WAITS.get(record.turn.state, f"It is {record.turn.state}.")


def _used(sample: SampleRecord, numbered: bool) -> str:
    step, whose = (f"Step {sample.rollout_id}", f"sample {sample.id}") if numbered else ("A step", "it")
    kept = "a checkpoint holds it" if sample.state == "trained" else "the next checkpoint will hold it"
    if sample.weight_version is None:
        return f"{step} is using {whose}; its weights are not live yet."
    return (
        f"{step} used {whose}; its weights are live as version {sample.weight_version} since "
        f"{shown_time(sample.live_at)}, and {kept}."
    )
