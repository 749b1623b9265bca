"""What both versions are asked about an update, and what their answers say.

Guarantees: prompts and replies are the ledger's stored ids. The same ledger and tasks give the same questions. Reads the
ledger; decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openclaw.config.gate_variables import GateVariables
from openclaw.gate.decision import Evidence, Paired, Scored
from openclaw.gate.replies import Reply, reply_reader, sound, unread
from openclaw.gate.tasks import Task, read_tasks
from openclaw.ledger.decisions import Window
from openclaw.ledger.probes import Candidate, choose_probes, part_of
from openclaw.ledger.records import Turn
from openclaw.ledger.store import Ledger
from openclaw.owners import owner_of, root
from slime.args import Arguments
from slime.rollout.before_push import Answer, Probe

REPLY_HEADROOM = 32
"""A greedy reply may have twice the tokens of the stored one, and this many more, before it counts as cut off."""


@dataclass(frozen=True)
class Questions:
    """Stored turns, the opinions on those that are probes, tasks, and a probe for each turn and task, in this order."""

    turns: Sequence[Turn]
    opinions: Mapping[str, Candidate]
    tasks: Sequence[Task]
    probes: Sequence[Probe]
    tokenizer: str

    def evidence(self, serving: Sequence[Answer], candidate: Sequence[Answer]) -> Evidence:
        """Return what the answers of both versions say.

        Raises:
            ValueError: an answer is not about all tokens of a stored reply.
        """
        scored: list[Scored] = []
        replies: list[Paired] = []
        tasks: list[Paired] = []
        asked = list(zip(self.probes, serving, candidate, strict=True))
        for turn, (probe, before, after) in zip(self.turns, asked[: len(self.turns)], strict=True):
            opinion = self.opinions.get(turn.id)
            scored.append(
                Scored(
                    turn_id=turn.id,
                    part=part_of(turn.session_id, turn.id, turn.index),
                    liked=None if opinion is None else opinion.liked,
                    stated=opinion is not None and opinion.stated,
                    serving=mean(before.log_probs, turn),
                    candidate=mean(after.log_probs, turn),
                    owner=root(owner_of(turn.session_id)),
                )
            )
            if probe.max_new_tokens:
                replies.append(sound(self._reply(turn, before), self._reply(turn, after)))
        for task, (probe, before, after) in zip(self.tasks, asked[len(self.turns) :], strict=True):
            reader = reply_reader(self.tokenizer)
            old, new = (task.solved_by(reader.read(probe.prompt_ids, each).text) for each in (before, after))
            tasks.append(Paired(old, new, task.weight))
        return Evidence(scored, replies, tasks)

    def _reply(self, turn: Turn, answer: Answer) -> Reply:
        """Return a greedy reply to a turn's prompt; only one that may call tools has to be read."""
        return reply_reader(self.tokenizer).read(turn.prompt_ids, answer, turn.tools) if turn.tools else unread(answer)


def ask_about(args: Arguments, ledger: Ledger, window: Window, rollout_id: int, bounds: GateVariables) -> Questions:
    """Return the questions about a batch: probes and trained turns of a window, and the tasks.

    Too few of them are filled up with the newest trained turns, which tell about drift and degenerate replies.

    Raises:
        ConfigError: the file of tasks is bad.
    """
    candidates = ledger.probes.candidates(window.first, window.end, rollout_id, bounds.gate_probes)
    chosen = choose_probes(candidates, bounds.gate_probes, bounds.gate_tokens)
    turns = ledger.probes.turns([each.turn_id for each in chosen])
    if (missing := bounds.gate_replies - len(turns)) > 0:
        left = bounds.gate_tokens - sum(len(each.prompt_ids) + len(each.response_ids) for each in turns)
        turns += ledger.probes.newest_turns(missing, left)
    short = [turn.id for turn in turns if len(turn.response_ids) <= bounds.gate_reply_tokens]
    answered = set(short[: bounds.gate_replies])
    probes = [
        Probe(turn.prompt_ids, turn.response_ids, _reply_limit(turn, bounds) if turn.id in answered else 0)
        for turn in turns
    ]
    tokenizer = str(args.hf_checkpoint)
    tasks = read_tasks(bounds.gate_tasks) if bounds.gate_tasks else []
    if tasks:
        reader = reply_reader(tokenizer)
        probes += [Probe(reader.prompt(task.messages), (), bounds.gate_task_tokens) for task in tasks]
    return Questions(turns, {each.turn_id: each for each in chosen}, tasks, probes, tokenizer)


def _reply_limit(turn: Turn, bounds: GateVariables) -> int:
    return min(bounds.gate_reply_tokens, 2 * len(turn.response_ids) + REPLY_HEADROOM)


def mean(log_probs: Sequence[float], turn: Turn) -> float:
    """Return the mean log-probability per token of a stored reply.

    Raises:
        ValueError: there is not one number per token.
    """
    if len(log_probs) != len(turn.response_ids):
        raise ValueError(f"turn {turn.id}: {len(log_probs)} log-probabilities for {len(turn.response_ids)} tokens")
    return math.fsum(log_probs) / len(log_probs)
