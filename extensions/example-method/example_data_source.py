"""Prompts of the example: an endless, resumable series of small sums, derived from seed and position."""

from __future__ import annotations

import json
import random
from pathlib import Path

from slime.rollout.data_source import DataSource
from slime.utils.types import Sample


class SumsDataSource(DataSource):
    """Gives groups of ``--n-samples-per-prompt`` samples, returned groups first."""

    def __init__(self, args):
        self.args = args
        self.position = 0
        self.returned = []
        self.marks = {}

    def get_samples(self, num_samples):
        """Return ``num_samples`` groups: returned ones, then new sums."""
        groups, self.returned = self.returned[:num_samples], self.returned[num_samples:]
        return groups + [self._next_group() for _ in range(num_samples - len(groups))]

    def _next_group(self):
        numbers = random.Random(f"{self.args.rollout_seed} {self.position}")
        a, b = numbers.randint(0, 9), numbers.randint(0, 9)
        size = self.args.n_samples_per_prompt
        group = [
            Sample(
                group_index=self.position,
                index=self.position * size + member,
                prompt=f"<|im_start|>user\n{a} + {b} =<|im_end|>\n<|im_start|>assistant\n",
                label=str(a + b),
            )
            for member in range(size)
        ]
        self.position += 1
        return group

    def add_samples(self, samples):
        """Take groups back."""
        self.returned.extend(samples)

    def _file(self, folder, rollout_id):
        return Path(folder) / "rollout" / f"example_sums_{rollout_id}.json"

    def _state(self):
        """Return the position and the returned groups as immutable text."""
        returned = [[sample.to_dict() for sample in group] for group in self.returned]
        return json.dumps({"position": self.position, "returned": returned})

    def mark(self, rollout_id):
        """Record the state after ``rollout_id``, because the next rollout takes prompts before its step is saved."""
        kept = {marked: state for marked, state in self.marks.items() if marked >= rollout_id - 2}
        self.marks = {**kept, rollout_id: self._state()}

    def save(self, rollout_id):
        """Write the state after ``rollout_id`` next to the trainer's checkpoint."""
        if self.args.save:
            file = self._file(self.args.save, rollout_id)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.marks.get(rollout_id, self._state()))

    def load(self, rollout_id=None):
        """Continue after the checkpoint of ``rollout_id``; without one, start from the beginning."""
        if self.args.load and rollout_id is not None and rollout_id >= 0:
            state = json.loads(self._file(self.args.load, rollout_id).read_text())
            self.position = state["position"]
            self.returned = [[Sample.from_dict(sample) for sample in group] for group in state["returned"]]
