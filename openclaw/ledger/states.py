"""The state machines of turns and samples, as tables that the database enforces.

Guarantees: triggers (`triggers_sql`) enforce `VALID_TURN_TRANSITIONS` and `VALID_SAMPLE_TRANSITIONS`, so no query of any
process can make an illegal transition. `openclaw.ledger.store` owns the rows.


Turn: waiting (no next state yet) -> pending (has one, waits for the judge) -> judged; judged -> pending when feedback
arrives before a step has used its samples; waiting -> ended when its session
ends, ended -> pending when the session resumes; excluded turns (side, aborted, evaluation) stay so.
Sample: ready -> leased (to a rollout id) -> trained (a checkpoint contains its step); leased or trained -> ready when a
checkpoint before that step is restored; ready or leased -> dropped with a reason, and back when the drop is undone by
a restored checkpoint or a quarantined batch is accepted; leased or trained -> dropped when a rollback takes the step back.
"""

from __future__ import annotations

from collections.abc import Mapping

VALID_TURN_TRANSITIONS: Mapping[str, frozenset[str]] = {
    "waiting": frozenset({"pending", "ended"}),
    "ended": frozenset({"pending"}),
    "pending": frozenset({"judged"}),
    "judged": frozenset({"pending"}),
    "excluded": frozenset(),
}
FIRST_TURN_STATES: frozenset[str] = frozenset({"waiting", "excluded"})

VALID_SAMPLE_TRANSITIONS: Mapping[str, frozenset[str]] = {
    "ready": frozenset({"leased", "dropped"}),
    "leased": frozenset({"ready", "trained", "dropped"}),
    "trained": frozenset({"ready", "dropped"}),
    "dropped": frozenset({"ready"}),
}
FIRST_SAMPLE_STATES: frozenset[str] = frozenset({"ready"})


def triggers_sql(table: str, transitions: Mapping[str, frozenset[str]], first: frozenset[str]) -> list[str]:
    """Return the statements that (re)create the triggers for ``table.state``."""
    allowed = [
        f"(OLD.state = '{source}' AND NEW.state = '{target}')"
        for source, targets in transitions.items()
        for target in sorted(targets)
    ]
    starts = ", ".join(f"'{state}'" for state in sorted(first))
    return [
        f"DROP TRIGGER IF EXISTS {table}_first_state",
        f"DROP TRIGGER IF EXISTS {table}_next_state",
        f"CREATE TRIGGER {table}_first_state BEFORE INSERT ON {table} WHEN NEW.state NOT IN ({starts}) "
        f"BEGIN SELECT RAISE(ABORT, 'illegal first state in {table}'); END",
        f"CREATE TRIGGER {table}_next_state BEFORE UPDATE OF state ON {table} WHEN NOT ({' OR '.join(allowed)}) "
        f"BEGIN SELECT RAISE(ABORT, 'illegal transition in {table}'); END",
    ]


def deletion_triggers_sql() -> list[str]:
    """Return the statements that (re)create the trigger that requires a tombstone before a sample is deleted."""
    return [
        "DROP TRIGGER IF EXISTS samples_deleted",
        "CREATE TRIGGER samples_deleted BEFORE DELETE ON samples"
        " WHEN NOT EXISTS (SELECT 1 FROM forgotten_samples WHERE id = OLD.id)"
        " BEGIN SELECT RAISE(ABORT, 'illegal deletion in samples'); END",
    ]
