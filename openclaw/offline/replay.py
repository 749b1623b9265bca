"""Does the method make the samples of a finished run again from its turns and verdicts?

Each recorded turn and verdict goes through the method once more, with the teacher's numbers that the ledger holds. The result
is compared with the stored sample: ids, log-probabilities, teacher's numbers, reward, loss mask. Then a new run's batches
from this ledger are compared with the steps of the finished one. A sample's baseline was fixed when its verdict was
committed; it is stored and copied, not computed again.

Guarantees: the run's ledger is only read. No engine and no judge is asked. Floats are equal only bit by bit. A difference
is named: turn and field.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from openclaw.ledger.copying import copy_run
from openclaw.ledger.feedback import CORRECTS, weighted
from openclaw.ledger.logs import RESCORED
from openclaw.ledger.records import BASELINE, BLAMED, OF_SESSION, TopK
from openclaw.ledger.samples import rollout_of
from openclaw.ledger.store import Ledger
from openclaw.ledger.turns import SUPERSEDED
from openclaw.ledger.views import SampleRecord, TurnRecord, counted
from openclaw.method import Method
from slime.utils.types import Sample

SHOWN = 5
ADDED = ("ledger_id", "turn_id", "person", "origin", BASELINE, BLAMED)
"""Entries of the metadata that the ledger and the judge loop add."""
CORRECTED = "corrected"
"""Samples of a turn whose verdict a person corrected after a step."""
OF_A_SESSION = "of_a_session_or_episode"
"""Samples that no single turn makes."""
OF_PRACTICE = "of_practice"
"""Replies that lessons made; no verdict gives them."""


@dataclass
class Replay:
    """The outcome.

    Attributes:
        same: samples that are equal.
        different: one line per sample that is not.
        skipped: samples that are not compared, by reason.
        batches: steps whose batch a new run gets again.
        other_batches: one line per step whose batch it does not.
    """

    same: int = 0
    different: list[str] = field(default_factory=list[str])
    skipped: Counter[str] = field(default_factory=Counter[str])
    batches: int = 0
    other_batches: list[str] = field(default_factory=list[str])

    @property
    def exact(self) -> bool:
        """Whether everything that was compared is equal, and something was."""
        return bool(self.same) and not self.different and not self.other_batches

    def lines(self) -> Iterator[str]:
        """Yield the outcome for a person."""
        yield f"{counted(self.same, 'sample')} reproduced bit by bit, {len(self.different)} different"
        yield from (f"  {line}" for line in self.different[:SHOWN])
        yield f"{counted(self.batches, 'step')} with the same batch, {len(self.other_batches)} with another"
        yield from (f"  {line}" for line in self.other_batches[:SHOWN])
        yield from (f"not compared: {reason} {count}" for reason, count in sorted(self.skipped.items()))


def replay(ledger: Ledger, method: Method) -> Replay:
    """Compare the samples that ``method`` makes of a ledger's turns and verdicts with the stored ones."""
    result, kept = Replay(), ledger.views.sample_records()
    stored = [sample for sample in kept if not sample.of_practice]
    if practised := len(kept) - len(stored):
        result.skipped[OF_PRACTICE] = practised
    turns = {record.turn.id: record for record in ledger.views.turn_records()}
    corrected = {sample.turn_id for sample in stored if CORRECTS in sample.sample.metadata}
    for sample in stored:
        record = turns.get(sample.turn_id)
        if record is None or record.verdict is None or {"episode", OF_SESSION} & sample.sample.metadata.keys():
            result.skipped[OF_A_SESSION] += 1
        elif sample.reason in (SUPERSEDED, RESCORED):
            result.skipped[sample.reason] += 1
        elif sample.turn_id in corrected:
            result.skipped[CORRECTED] += 1
        elif wrong := _difference(ledger, method, record, sample.sample):
            result.different.append(f"turn {sample.turn_id}: {wrong}")
        else:
            result.same += 1
    with (
        tempfile.TemporaryDirectory(prefix="openclaw-replay-") as folder,
        closing(Ledger(Path(folder) / "ledger.sqlite")) as copy,
    ):
        copy_run(ledger, copy, ledger.views.session_ids())
        _compare_batches(stored, copy, result)
    return result


def _difference(ledger: Ledger, method: Method, record: TurnRecord, stored: Sample) -> str | None:
    """Return how the method's samples of a turn differ from a stored one; None if one of them is equal."""
    assert record.verdict is not None
    verdict = replace(record.verdict, teacher_topk=_teacher_topk(stored))
    decision = method.samples(record.turn, verdict)
    made = weighted(decision.samples, verdict, ledger.turns.choices(record.turn.id))
    if not made:
        return f"the method gives no sample ({decision.reason})"
    fewest = min((fields_that_differ(sample, stored) for sample in made), key=len)
    return f"other {', '.join(fewest)}" if fewest else None


def _teacher_topk(sample: Sample) -> TopK | None:
    """Return the teacher's top K, which is stored with the sample only."""
    log_probs, ids = sample.teacher_topk_log_probs, sample.teacher_topk_indices
    return None if log_probs is None or ids is None else TopK(log_probs, ids)


def fields_that_differ(made: Sample, stored: Sample) -> list[str]:
    """Return the fields in which two samples of a turn are not equal."""
    ours, theirs = made.to_dict(), stored.to_dict()
    for values in (ours, theirs):
        values["metadata"] = {name: item for name, item in values["metadata"].items() if name not in ADDED}
    return [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]


def _compare_batches(stored: list[SampleRecord], copy: Ledger, result: Replay) -> None:
    """Hand out the copied samples as a new run does, and compare them with the steps."""
    used: dict[int, list[SampleRecord]] = {}
    for record in stored:
        if record.state in ("leased", "trained") and record.rollout_id is not None:
            used.setdefault(record.rollout_id, []).append(record)
    for rollout_id, batch in sorted(used.items()):
        again = copy.samples.claim(rollout_id, len({rollout_of(record.sample) for record in batch}))
        if [sample.metadata["turn_id"] for sample in again] == [record.turn_id for record in batch]:
            result.batches += 1
        else:
            result.other_batches.append(f"step {rollout_id}: other samples, or another order")
