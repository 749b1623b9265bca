"""What both versions are asked about an update, and what their answers say.

Guarantees: prompts and replies are the ledger's stored ids. The same ledger and tasks give the same questions. Prompts are rendered
and replies parsed by the gateway's own code, so a task is asked as a client would ask it, and a tool call is broken here if the
gateway could not read it. Reads the ledger; decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from chat_codec.formats import reply_format
from chat_codec.renderer import Renderer
from chat_codec.reply_parser import Content, ReplyParser
from groundwork.chat_messages import Message
from groundwork.processors import load_tokenizer
from openclaw.config.runtime import RuntimeConfig
from openclaw.config.runtime_variables import GateVariables
from openclaw.gate.decision import Evidence, Paired, Scored
from openclaw.gate.tasks import Task, read_tasks
from openclaw.judge.hygiene import is_repetitive
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
class Reply:
    """A greedy reply: its visible text; whether the length limit cut it, it repeats, or it has an unreadable tool call."""

    text: str
    cut: bool
    repeats: bool
    broken_call: bool

    @property
    def degenerate(self) -> bool:
        """Whether any of the rules of `openclaw.judge.hygiene` speaks against it."""
        return self.cut or self.repeats or self.broken_call


def unread(answer: Answer) -> Reply:
    """Return a reply without its text and tool calls, for which no tokenizer is needed."""
    ids = answer.greedy_ids[:-1] if answer.finished else answer.greedy_ids
    return Reply("", not answer.finished, is_repetitive(ids), broken_call=False)


def sound(serving: Reply, candidate: Reply) -> Paired:
    """Return which of two replies to the same prompt is not degenerate; a limit that cuts both says nothing about them."""
    if serving.cut and candidate.cut:
        return Paired(not serving.repeats, not candidate.repeats)
    return Paired(not serving.degenerate, not candidate.degenerate)


class ReplyReader:
    """Renders prompts and reads replies with one tokenizer."""

    def __init__(self, tokenizer: Any, config: RuntimeConfig) -> None:
        self._tokenizer = tokenizer
        self._renderer = Renderer(tokenizer)
        self._form = reply_format(
            getattr(tokenizer, "chat_template", None) or "",
            reasoning_parser=config.reasoning_parser,
            tool_call_parser=config.tool_call_parser,
            reasoning_tags=config.reasoning_tags,
        )

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt ids of a request without tools."""
        return self._renderer.render(messages)

    def read(
        self, prompt_ids: Sequence[int], answer: Answer, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> Reply:
        """Return a version's reply.

        Args:
            prompt_ids: that it answers.
            answer: with greedy ids.
            tools: of the request; without any a tool call is text.
        """
        ids, result = answer.greedy_ids[:-1] if answer.finished else answer.greedy_ids, unread(answer)
        functions = [tool.get("function") or {} for tool in tools or ()]
        schemas = {str(function.get("name")): function.get("parameters") or {} for function in functions}
        reasoning = self._form.reasoning
        parser = ReplyParser(
            reasoning=reasoning,
            tools=self._form.tools.parser(schemas, "call_{}".format) if tools and self._form.tools else None,
            inside_reasoning=reasoning is not None and self._renderer.thought_at_end(prompt_ids, reasoning) == "open",
        )
        deltas = parser.push(self._tokenizer.decode(ids, skip_special_tokens=False)) + parser.finish()
        text = "".join(delta.text for delta in deltas if isinstance(delta, Content))
        return replace(result, text=text, broken_call=parser.malformed > 0)


@cache
def reply_reader(tokenizer_path: str) -> ReplyReader:
    """Return the reader of a checkpoint's tokenizer, loaded once per process."""
    return ReplyReader(load_tokenizer(tokenizer_path), RuntimeConfig.from_env())


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
            old, new = (task.solved_by(reader.read(probe.prompt_ids, item).text) for item in (before, after))
            tasks.append(Paired(old, new, task.weight))
        return Evidence(scored, replies, tasks)

    def _reply(self, turn: Turn, answer: Answer) -> Reply:
        """Return a greedy reply to a turn's prompt; only one that may call tools has to be read."""
        return reply_reader(self.tokenizer).read(turn.prompt_ids, answer, turn.tools) if turn.tools else unread(answer)


def ask_about(
    args: Arguments,
    ledger: Ledger,
    window: Window,
    rollout_id: int,
    bounds: GateVariables,
    person: str | None = None,
) -> Questions:
    """Return the questions about a batch: probes and trained turns of a window, and the tasks.

    Too few of them are filled up with the newest trained turns, which tell about drift and degenerate replies. With
    ``person``, all turns are this person's; the tasks are everybody's.

    Raises:
        ConfigError: the file of tasks is bad.
    """
    candidates = ledger.probes.candidates(window.first, window.end, rollout_id, bounds.gate_probes, person)
    chosen = choose_probes(candidates, bounds.gate_probes, bounds.gate_tokens)
    turns = ledger.probes.turns([item.turn_id for item in chosen])
    if (missing := bounds.gate_replies - len(turns)) > 0:
        left = bounds.gate_tokens - sum(len(item.prompt_ids) + len(item.response_ids) for item in turns)
        turns += ledger.probes.newest_turns(missing, left, person)
    short = [turn.id for turn in turns if len(turn.response_ids) <= bounds.gate_reply_tokens]
    answered = set(short[: bounds.gate_replies])
    probes = [
        Probe(turn.student_ids, turn.response_ids, _reply_limit(turn, bounds) if turn.id in answered else 0)
        for turn in turns
    ]
    tokenizer = str(args.hf_checkpoint)
    tasks = read_tasks(bounds.gate_tasks) if bounds.gate_tasks else []
    if tasks:
        reader = reply_reader(tokenizer)
        probes += [Probe(reader.prompt(task.messages), (), bounds.gate_task_tokens) for task in tasks]
    return Questions(turns, {item.turn_id: item for item in chosen}, tasks, probes, tokenizer)


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
