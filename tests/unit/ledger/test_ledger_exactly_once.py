"""Relative to the checkpoint that is restored, every sample is trained exactly once, whatever crashes and when.

The model of the state machine is a trainer whose weights are the list of samples it was trained on. A checkpoint copies
that list; a crash goes back to the copy. The ledger must then hand out exactly the samples that are not in it. Sessions
of one sample each are forgotten at any moment: their samples are never handed out again, and steps keep their count.
Episodes of two samples each go the same way; both of their samples always have the same state. The gate may refuse a step: its batch
is in quarantine until a person accepts it. A rollback takes steps back; their samples are dropped. Another one may go forward
to them again.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lab.testkit.ledger_records import judged_sample
from openclaw.credit.episodes import settle
from openclaw.ledger.samples import rollout_of
from openclaw.ledger.store import Ledger
from tests.helpers.episodes import RULES, create, three_turns


class TrainingRun(RuleBasedStateMachine):
    """Claims, steps, checkpoints, crashes and restores in any order that a run can produce."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ledger-"))
        self.ledger = Ledger(self.folder / "ledger.sqlite")
        self.created = 0
        self.episodes: dict[int, str] = {}
        self.weights: list[int] = []
        self.next_rollout = 0
        self.next_step = 0
        self.batches: dict[int, list[int]] = {}
        self.dropped: dict[int, int] = {}
        self.refused: dict[int, int] = {}
        self.trained_in: dict[int, int] = {}
        self.forgotten: set[int] = set()
        self.uncounted: set[int] = set()
        self.versions = 100
        self.steps: dict[int, int] = {}
        self.checkpoints: list[tuple[int, list[int], dict[int, int]]] = [(-1, [], {})]

    def teardown(self) -> None:
        self.crash_and_restore(back=0)
        ready = self.ledger.samples.ready_count()
        if ready:
            self.claim(ready)
            self.step()
        assert set(self.weights) | set(self.dropped) | self.forgotten == set(range(1, self.created + 1))
        self.ledger.close()
        shutil.rmtree(self.folder)

    @rule(count=st.integers(1, 5))
    def judge(self, count: int) -> None:
        for _ in range(count):
            self.created += 1
            judged_sample(self.ledger, f"turn-{self.created}", session_id=f"session-{self.created}")

    @rule(killed_before_its_samples=st.booleans())
    def reward_an_episode(self, killed_before_its_samples: bool) -> None:
        episode = create(self.ledger, f"{self.created:04}", ttl=1e9)
        three_turns(self.ledger, episode)
        self.ledger.episodes.close(episode.id, "ok", 1.0 if self.created % 2 else -1.0)
        if killed_before_its_samples:
            self.ledger.close()
            self.ledger = Ledger(self.folder / "ledger.sqlite")
        for _ in range(2):
            settle(self.ledger, RULES)
        for _ in range(2):
            self.created += 1
            self.episodes[self.created] = episode.id

    def whole(self, sample: int) -> set[int]:
        """Return a sample with the others of its episode."""
        name = self.episodes.get(sample)
        return {sample} if name is None else {number for number, each in self.episodes.items() if each == name}

    @precondition(lambda self: self.created > len(self.forgotten))
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        sample = data.draw(st.sampled_from(sorted(set(range(1, self.created + 1)) - self.forgotten)))
        name = self.episodes.get(sample)
        self.ledger.sessions.forget(f"@alice/{name}:other" if name else f"session-{sample}")
        self.forgotten |= self.whole(sample)
        self.uncounted |= self.whole(sample) & set(self.dropped)

    @precondition(lambda self: self.next_rollout - self.next_step < 2 and self.ledger.samples.ready_count() > 0)
    @rule(count=st.integers(1, 4))
    def claim(self, count: int) -> None:
        wanted = min(count, self.ledger.samples.ready_count())
        samples = self.ledger.samples.claim(self.next_rollout, count)
        assert len({rollout_of(sample) for sample in samples}) == wanted
        self.batches[self.next_rollout] = [sample.metadata["ledger_id"] for sample in samples]
        self.next_rollout += 1

    @precondition(lambda self: self.next_rollout > self.next_step)
    @rule()
    def claim_again_after_the_caller_died(self) -> None:
        rollout_id = self.next_rollout - 1
        rollouts = {min(self.whole(sample)) for sample in self.batches[rollout_id]}
        again = self.ledger.samples.claim(rollout_id, len(rollouts))
        held = [sample for sample in self.batches[rollout_id] if sample not in self.forgotten]
        got = [sample.metadata["ledger_id"] for sample in again]
        assert set(held) <= set(got)
        self.batches[rollout_id] = sorted({*self.batches[rollout_id], *got})

    @precondition(lambda self: self.next_rollout > self.next_step and len(self.batches[self.next_rollout - 1]) > 2)
    @rule()
    def drop(self) -> None:
        rollout_id = self.next_rollout - 1
        sample_id = self.batches[rollout_id][-1]
        self.ledger.samples.drop(sample_id, "stale", rollout_id)
        gone = self.whole(sample_id)
        self.batches[rollout_id] = [sample for sample in self.batches[rollout_id] if sample not in gone]
        self.dropped |= dict.fromkeys(gone, rollout_id)

    @precondition(lambda self: self.next_rollout > self.next_step)
    @rule()
    def step(self) -> None:
        self.steps[self.next_step] = len(self.batches[self.next_step])
        batch = self.batches.pop(self.next_step)
        self.weights += batch
        self.trained_in |= dict.fromkeys(batch, self.next_step)
        self.ledger.samples.record_step(self.next_step, str(self.next_step + 1), 1.0, 2.0)
        self.next_step += 1

    @precondition(lambda self: self.next_rollout > self.next_step)
    @rule(killed_before_its_quarantine=st.booleans())
    def refuse(self, killed_before_its_quarantine: bool) -> None:
        rollout_id = self.next_step
        self.ledger.decisions.record(rollout_id, "refused", "9", "worse", by_margin=True)
        if killed_before_its_quarantine:
            self.crash_and_restore(back=0)
            return
        for _ in range(2):
            self.ledger.decisions.quarantine(rollout_id)
        batch = self.batches.pop(rollout_id)
        self.next_step += 1
        self.dropped |= dict.fromkeys(batch, rollout_id)
        self.refused |= dict.fromkeys(batch, rollout_id)

    @rule(fewest=st.integers(1, 2))
    def accept(self, fewest: int) -> None:
        batches = {each.rollout_id for each in self.ledger.decisions.refusals()}
        accepted = self.ledger.decisions.accept_refused(fewest)
        assert (accepted is not None) == (len(batches) >= fewest)
        if accepted is not None:
            released = {sample for sample, rollout in self.refused.items() if rollout in batches}
            assert accepted.samples == len(released - self.forgotten)
            for sample in released:
                del self.refused[sample], self.dropped[sample]

    @precondition(lambda self: len(self.checkpoints) > 1)
    @rule(data=st.data(), killed_before_the_checkpoint=st.booleans())
    def roll_back(self, data: st.DataObject, killed_before_the_checkpoint: bool) -> None:
        to, weights, steps = data.draw(st.sampled_from(self.checkpoints))
        last = self.next_step - 1
        if to > last:
            return
        self.versions += 1
        self.go_back_to(to, last, weights, steps)
        if killed_before_the_checkpoint:
            self.crash_and_restore(back=0)
            if self.next_step - 1 != last:
                return
            self.go_back_to(to, last, weights, steps)  # the note is still there
        kept = [each for each in self.checkpoints if each[0] < last]
        self.checkpoints = [*kept, (last, list(weights), dict(self.steps))]
        self.ledger.samples.mark_trained(last)

    def go_back_to(self, to: int, last: int, weights: list[int], steps: dict[int, int]) -> None:
        """Record a rollback and do to the model what it does."""
        gone = {sample for sample in self.weights if sample not in weights}
        self.ledger.decisions.record_rollback(to, last, str(self.versions), 3.0)
        self.weights = list(weights)
        self.dropped = {sample: rollout for sample, rollout in self.dropped.items() if sample not in weights}
        self.dropped |= {sample: self.trained_in[sample] for sample in gone}
        self.uncounted |= gone & self.forgotten
        self.steps = {last: 0} | self.steps_of(weights, steps)

    def steps_of(self, weights: list[int], steps: dict[int, int]) -> dict[int, int]:
        """Return the steps of a checkpoint as they count now; one that comes back counts what is left of its samples."""
        found = {}
        for step, count in steps.items():
            own = [sample for sample in weights if self.trained_in[sample] == step]
            if step in self.steps:
                found[step] = self.steps[step]
            elif count == 0:
                found[step] = 0  # a rollback
            elif set(own) - self.forgotten:
                found[step] = len(set(own) - self.uncounted)
        return found

    @precondition(lambda self: self.next_step - 1 > self.checkpoints[-1][0])
    @rule(killed_before_the_ledger_knows=st.booleans())
    def checkpoint(self, killed_before_the_ledger_knows: bool) -> None:
        self.checkpoints.append((self.next_step - 1, list(self.weights), dict(self.steps)))
        if killed_before_the_ledger_knows:
            self.crash_and_restore(back=0)
        else:
            self.ledger.samples.mark_trained(self.next_step - 1)

    @rule(back=st.integers(0, 2))
    def crash_and_restore(self, back: int) -> None:
        self.ledger.close()
        del self.checkpoints[max(1, len(self.checkpoints) - back) :]
        rollout_id, weights, steps = self.checkpoints[-1]
        self.ledger = Ledger(self.folder / "ledger.sqlite")
        self.ledger.samples.reconcile(rollout_id)
        self.weights = list(weights)
        self.batches = {}
        back = {sample for sample, rollout in self.dropped.items() if rollout > rollout_id or sample in weights}
        self.dropped = {sample: rollout for sample, rollout in self.dropped.items() if sample not in back}
        self.refused = {sample: rollout for sample, rollout in self.refused.items() if rollout <= rollout_id}
        self.steps = self.steps_of(weights, steps)
        self.next_rollout = self.next_step = rollout_id + 1
        assert self.ready() == self.created - len({*self.weights, *self.dropped, *self.forgotten})

    def ready(self) -> int:
        """Return the number of ready samples."""
        return self.ledger.views.counts()["samples"].get("ready", 0)

    @invariant()
    def nothing_is_trained_twice(self) -> None:
        assert len(set(self.weights)) == len(self.weights)

    @invariant()
    def the_ledger_knows_what_the_weights_have_learned(self) -> None:
        known = {each.id for each in self.ledger.views.sample_records() if each.state in ("leased", "trained")}
        waiting = {sample for batch in self.batches.values() for sample in batch}
        assert known - waiting == set(self.weights) - self.forgotten

    @invariant()
    def nothing_is_lost(self) -> None:
        leased = {sample for batch in self.batches.values() for sample in batch}
        gone = {*leased, *self.weights, *self.dropped, *self.forgotten}
        assert self.ready() + len(gone) == self.created

    @invariant()
    def the_samples_of_an_episode_share_their_state(self) -> None:
        states: dict[str, set[object]] = {}
        for record in self.ledger.views.sample_records():
            if name := self.episodes.get(record.id):
                states.setdefault(name, set()).add((record.state, record.rollout_id))
        assert all(len(found) == 1 for found in states.values())

    @invariant()
    def steps_keep_their_count(self) -> None:
        assert {step["rollout_id"]: step["samples"] for step in self.ledger.views.step_records()} == self.steps


TestTrainingRun = TrainingRun.TestCase
TestTrainingRun.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
