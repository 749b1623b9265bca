"""The rollout manager's part of the gate before a push: it runs the plugin and holds its questions (`slime.ray.gate`)."""

from __future__ import annotations

from slime.args import Arguments, required
from slime.exceptions import PluginError
from slime.rollout.before_push import Answer, Decision
from slime.rollout.canary import Canary
from slime.rollout.data_source import DataSource
from slime.rollout.questions import Question, Questions
from slime.utils.misc import load_function


class Decisions:
    """Methods of the rollout manager's actor; each may run in its own thread."""

    args: Arguments
    _source_hooks: DataSource
    _data_source: object
    _questions = Questions()
    _canary: Canary | None = None

    def open_questions(self) -> None:
        """Begin a decision; :meth:`decide` and :meth:`next_question` follow."""
        self._questions = Questions()

    def decide(self, rollout_id: int, serving: str, candidate: str) -> Decision:
        """Run the plugin on two weight versions, tell the data source what it decided, and return it.

        Raises:
            PluginError: the plugin returned no `Decision`.
        """
        questions = self._questions
        path = required("--before-push-path", self.args.before_push_path)
        try:
            policies = questions.policies(serving, candidate, canary=self.args.canary_engine)
            decision = load_function(path)(self.args, rollout_id, self._data_source, policies)
            if not isinstance(decision, Decision):
                raise PluginError(f"--before-push-path {path} returned {decision!r:.100}; return a Decision")
            self._source_hooks.gate_decided(rollout_id, decision)
            return decision
        finally:
            questions.end(f"the decision about rollout {rollout_id} is made")

    def next_question(self) -> Question | None:
        """Wait for the plugin's next question; None once it has decided."""
        return self._questions.next()

    def answer_question(self, answers: list[Answer]) -> None:
        """Give the plugin the answers to its question."""
        self._questions.answer(answers)

    def canary_has_candidate(self) -> None:
        """Give the plugin the engine that the driver has set apart and given the candidate."""
        assert self._canary is not None
        self._questions.answer([], self._canary)

    def end_questions(self, why: str) -> None:
        """Let the plugin's thread end, because nobody will answer."""
        self._questions.end(why)
        if self._canary is not None:
            self._canary.end(why)

    def on_step_undone(self, rollout_id: int, why: str) -> None:
        """Tell the data source that the steps of ``rollout_id`` were undone."""
        self._source_hooks.step_undone(rollout_id, why)

    def on_weights_restored(self, rollout_id: int, from_rollout_id: int, version: str) -> None:
        """Tell the data source that the weights went back on command."""
        self._source_hooks.weights_restored(rollout_id, from_rollout_id, version)
