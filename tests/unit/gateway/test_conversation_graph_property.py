"""Any mix of edits, branches, regenerations, failures, heartbeats, restarts and evictions gives each turn its next state.

The model knows a reply by the messages before it. The next state of a complete main reply is what followed it in the
conversation that went on last; until one went on, it is what followed in the newest request. After a restart or an
eviction the sessions may take a conversation for one that went on, so that the next state stays as it was.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from openclaw.ledger.records import Turn
from openclaw.sessions.follow import TurnContext
from openclaw.sessions.table import NODES_PER_SESSION
from tests.helpers.conversations import World, assistant, tool, user

WORDS = ("ok", "thanks", "go on", "no bold please")
REPLIES = ("Done.", "Sure.", "Here it is.")
CLIENTS = ("s0", "s1", None, None)
LOADED = 8


@dataclass
class Reply:
    """A reply in the model: its turn, the messages up to and with it, and what followed in which request."""

    turn: Turn
    history: list[dict[str, Any]]
    complete: bool
    next_state: list[dict[str, Any]] | None = None
    asked_again: bool = False
    followed_by: str = ""
    went_on: bool = False


@dataclass
class Conversation:
    """What a client shows: its session and the messages so far, the last of them a reply."""

    session: str | None
    messages: list[dict[str, Any]] = field(default_factory=list)


def key(messages: list[dict[str, Any]]) -> str:
    return repr([(message["role"], message["content"], message.get("tool_calls")) for message in messages])


class Conversations(RuleBasedStateMachine):
    """Clients that talk, change their minds, fail and come back, before sessions that forget."""

    conversations = Bundle("conversations")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="sessions-"))
        self.runner = asyncio.Runner()
        self.world = World(self.folder / "ledger.sqlite")
        self.replies: dict[str, Reply] = {}
        self.number = 0
        self.remembers = False

    @initialize(memory=st.sampled_from([1, 2, 100]))
    def bound_memory(self, memory: int) -> None:
        self.memory = memory
        self.restart()
        self.remembers = memory == 100

    def unique(self, text: str) -> str:
        self.number += 1
        return f"{text} ({self.number})"

    def ask(
        self, conversation: Conversation, messages: list[dict[str, Any]], reply: dict[str, Any], **options: Any
    ) -> None:
        """Send ``messages`` and get ``reply``; tell the model, and compare what the request gave to the turn before."""
        history = [*messages, reply]
        if key(history) in self.replies:
            reply = {**reply, "content": self.unique(reply["content"])}
            history = [*messages, reply]
        siblings = [known for known in self.replies.values() if known.complete and known.history[:-1] == messages]
        context, turn = self.runner.run(self.world.turn(messages, reply, session=conversation.session, **options))
        if context.kind == "main" and self.hear(messages) is None:
            for sibling in siblings:
                sibling.asked_again = True
        self.remember(context, turn, history)
        conversation.messages = history

    def remember(self, context: TurnContext, turn: Turn, history: list[dict[str, Any]]) -> None:
        complete = context.kind == "main" and turn.finish_reason != "abort"
        self.replies[key(history)] = Reply(turn, history, complete)

    def hear(self, messages: list[dict[str, Any]]) -> Reply | None:
        """Tell the model what a main request says, compare it with the ledger, and return whose first next state it is."""
        positions = [
            position
            for position, message in enumerate(messages)
            if message["role"] == "assistant" and not self.is_heartbeat(messages[position - 1])
        ]
        first = None
        remembers = self.remembers and len(self.replies) < NODES_PER_SESSION
        for position, end in zip(positions, [*positions, None][1:], strict=True):
            before = self.replies.get(key(messages[: position + 1]))
            if before is None or not before.complete:
                continue
            said = messages[:end]
            answered = end is not None and key(messages[: end + 1]) in self.replies
            state = self.after(said)
            if before.next_state is None:
                first = before
            elif before.followed_by == key(said):
                before.went_on = before.went_on or end is not None
                continue
            elif before.next_state != state and (before.went_on if end is None else not answered):
                continue
            if before.next_state is not None and not remembers:
                held = self.world.ledger.turns.get(before.turn.id).next_state
                assert held in (before.next_state, state)
                if held == before.next_state:
                    continue
            before.next_state, before.followed_by, before.went_on = state, key(said), end is not None
        return first

    def is_heartbeat(self, message: dict[str, Any]) -> bool:
        return message["role"] == "user" and message["content"].startswith("[OpenClaw heartbeat poll]")

    def last_reply(self, messages: list[dict[str, Any]]) -> Reply | None:
        """Return the last reply in ``messages`` that answered no heartbeat."""
        for position in range(len(messages) - 1, -1, -1):
            if messages[position]["role"] == "assistant" and not self.is_heartbeat(messages[position - 1]):
                return self.replies.get(key(messages[: position + 1]))
        return None

    def after(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages at the end that are not replies, and none of the client's own exchanges."""
        tail: list[dict[str, Any]] = []
        for message in reversed(messages):
            if message["role"] == "assistant":
                break
            tail.append(message)
        return [message for message in tail[::-1] if not self.is_heartbeat(message)]

    @rule(target=conversations, session=st.sampled_from(CLIENTS), reply=st.sampled_from(REPLIES))
    def start(self, session: str | None, reply: str) -> Conversation:
        conversation = Conversation(session)
        self.ask(conversation, [user(self.unique("hello"))], assistant(reply))
        return conversation

    @rule(conversation=conversations, text=st.sampled_from(WORDS), reply=st.sampled_from(REPLIES))
    def say(self, conversation: Conversation, text: str, reply: str) -> None:
        self.ask(conversation, [*conversation.messages, user(text)], assistant(reply))

    @rule(conversation=conversations, results=st.integers(1, 2), reply=st.sampled_from(REPLIES))
    def use_tools(self, conversation: Conversation, results: int, reply: str) -> None:
        calls = assistant("", *[("read", f'{{"path": "{n}"}}') for n in range(results)])
        self.ask(conversation, [*conversation.messages, user("read")], calls)
        self.ask(conversation, [*conversation.messages, *[tool(f"file {n}") for n in range(results)]], assistant(reply))

    @rule(conversation=conversations)
    def heartbeat(self, conversation: Conversation) -> None:
        self.ask(conversation, [*conversation.messages, user("[OpenClaw heartbeat poll]")], assistant("NO_REPLY"))

    @rule(conversation=conversations, data=st.data(), text=st.sampled_from(WORDS), reply=st.sampled_from(REPLIES))
    def edit(self, conversation: Conversation, data: st.DataObject, text: str, reply: str) -> None:
        users = [n for n, message in enumerate(conversation.messages) if message["role"] == "user"]
        position = data.draw(st.sampled_from(users))
        words = self.unique(text) if position == 0 else text
        self.ask(conversation, [*conversation.messages[:position], user(words)], assistant(reply))

    @rule(conversation=conversations, keep=st.booleans(), reply=st.sampled_from(REPLIES))
    def regenerate(self, conversation: Conversation, keep: bool, reply: str) -> None:
        if conversation.session is None and len(conversation.messages) <= 2:
            return  # nothing tells it from somebody else's first message
        first = conversation.messages
        self.ask(conversation, first[:-1], assistant(reply))
        if not keep:
            conversation.messages = first

    @rule(conversation=conversations, text=st.sampled_from(WORDS), reply=st.sampled_from(REPLIES), fails=st.booleans())
    def fail_and_retry(self, conversation: Conversation, text: str, reply: str, fails: bool) -> None:
        messages = [*conversation.messages, user(text)]
        if fails:
            headers = {"x-session-id": conversation.session} if conversation.session else {}
            context = self.runner.run(self.world.sessions.begin(headers, messages))
            self.world.sessions.abandon(context)
            self.hear(messages)
        else:
            self.ask(conversation, messages, assistant(self.unique("par")), finish_reason="abort")
        self.ask(conversation, messages, assistant(reply))

    @rule(conversation=consumes(conversations), reply=st.sampled_from(REPLIES))
    def compact(self, conversation: Conversation, reply: str) -> None:
        """The messages before the last exchange become a summary; the last reply is recognised by its own words."""
        before = self.last_reply(conversation.messages)
        waiting = [
            known
            for known in self.replies.values()
            if known.turn.session_id == conversation.session and known.complete and known.next_state is None
        ]
        if conversation.session is None or before is None or before.history != conversation.messages:
            return
        if len(waiting) > LOADED or sum(known.history[-1] == before.history[-1] for known in waiting) > 1:
            return  # the same words were said more than once, and only the conversation tells which is meant
        messages = [user(self.unique("<summary>")), *conversation.messages[-2:], user("next")]
        context, turn = self.runner.run(self.world.turn(messages, assistant(reply), session=conversation.session))
        self.remember(context, turn, [*messages, assistant(reply)])
        if before.complete and before.next_state is None:
            before.next_state, before.followed_by = [user("next")], key(messages)
            assert context.next_state_of == before.turn.id

    @rule()
    def restart(self) -> None:
        self.remembers = False
        self.runner.run(self.world.restart(max_sessions=self.memory))

    @rule()
    def be_idle(self) -> None:
        self.world.now += 61
        self.runner.run(self.world.sessions.sweep())
        assert self.world.ledger.views.counts()["turns"].get("waiting", 0) == 0

    @invariant()
    def memory_is_bounded(self) -> None:
        if hasattr(self, "memory"):
            assert len(self.world.sessions) <= self.memory

    def teardown(self) -> None:
        try:
            for reply in self.replies.values():
                turn = self.world.ledger.turns.get(reply.turn.id)
                assert turn.next_state == reply.next_state
                if turn.signal == "regenerated":
                    assert reply.asked_again
                    assert turn.next_state is None
            assert self.world.count("conflict") == 0
        finally:
            self.runner.run(self.world.close())
            self.runner.close()
            shutil.rmtree(self.folder)


TestConversations = Conversations.TestCase
TestConversations.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
