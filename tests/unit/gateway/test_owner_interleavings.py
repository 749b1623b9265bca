"""A thousand interleavings of two owners' equal conversations: each word and each next state stays with its owner.

Two owners hold two conversations each. All of them say the same and get the same replies, as at temperature 0, and no
request has a session id. In some steps a user says a word that names the owner. The order of the requests is generated;
sessions are evicted and the runtime restarts meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from openclaw.ledger.records import Turn
from openclaw.owners import LOCAL, new_completion_id, owner_of, tool_call_id
from tests.helpers.conversations import World, assistant, tool, user

pytestmark = pytest.mark.slow

INTERLEAVINGS = 1000
TOGETHER = 100
STEPS = 3


@dataclass
class Talk:
    """One conversation: its owner, what its user says, the history that its client holds, and its turns."""

    owner: str
    words: list[str]
    calls: list[bool]
    history: list[dict[str, Any]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    given: list[str | None] = field(default_factory=list)

    async def step(self, world: World) -> None:
        """Send the next request; the reply depends on nothing but the number of the step."""
        number = len(self.turns)
        self.history.append(tool(f"result {number}") if number and self.calls[number - 1] else user(self.words[number]))
        completion = new_completion_id()
        reply = assistant(f"reply {number}")
        if self.calls[number]:
            reply = assistant(None, ("read", f'{{"path": "{number}"}}'))
            reply["tool_calls"][0]["id"] = tool_call_id(completion, 0, 0)
        context, turn = await world.turn(list(self.history), reply, turn_id=completion, owner=self.owner)
        self.history.append(reply)
        self.turns.append(turn)
        self.given.append(context.next_state_of)


@dataclass
class Interleaving:
    """Four conversations and the order of their requests."""

    talks: list[Talk]
    order: list[int]

    @staticmethod
    def generate(number: int, owners: tuple[str, str], chance: random.Random) -> Interleaving:
        calls = [chance.random() < 0.4 for _ in range(STEPS)]
        spoken = [chance.random() < 0.3 for _ in range(STEPS)]
        talks = [
            Talk(owner, [f"{number} {owner or 'local'}" if own else f"{number} and so on" for own in spoken], calls)
            for owner in owners
            for _ in range(2)
        ]
        order = [position for position in range(len(talks)) for _ in range(STEPS)]
        chance.shuffle(order)
        return Interleaving(talks, order)

    def check(self, world: World, *, remembered: bool) -> None:
        """Check every word that the ledger holds, and whose turn got which next state.

        With ``remembered``, memory had every turn, so that each reply got its next state. Otherwise the equal words of
        one owner may have hidden a turn that only the ledger had.
        """
        for owner in {talk.owner for talk in self.talks}:
            mine = [talk for talk in self.talks if talk.owner == owner]
            ids = {turn.id for talk in mine for turn in talk.turns}
            foreign = {other.owner or "local" for other in self.talks} - {owner or "local"}
            for talk in mine:
                assert {owner_of(turn.session_id) for turn in talk.turns} == {owner}
                assert set(talk.given) <= ids | {None}
                assert talk.given[0] is None
                for turn, given in zip(talk.turns[:-1], talk.given[1:], strict=True):
                    if turn.response_message.get("tool_calls"):
                        assert given == turn.id, "the id of a call names the turn"
                for turn in talk.turns:
                    stored = world.ledger.turns.get(turn.id)
                    kept = f"{stored.messages} {stored.next_state}"
                    assert not any(word in kept for word in foreign)
            followed = [given for talk in mine for given in talk.given if given is not None]
            assert len(followed) == len(set(followed)), "a reply got two next states"
            if remembered:
                assert len(followed) == len(mine) * (STEPS - 1), "a reply got no next state"


@pytest.mark.parametrize(
    ("owners", "memory", "restarts"),
    [(("alice", "bob"), 150, 0.1), ((LOCAL, "alice/tests"), 10 * INTERLEAVINGS, 0.0)],
    ids=["two keys, evictions and restarts", "operator and child"],
)
async def test_equal_conversations_of_two_owners_never_meet(
    world: World, owners: tuple[str, str], memory: int, restarts: float
) -> None:
    chance = random.Random(13)
    await world.restart(max_sessions=memory)
    for start in range(0, INTERLEAVINGS // 2, TOGETHER):
        batch = [Interleaving.generate(start + n, owners, chance) for n in range(TOGETHER)]
        for step in range(len(batch[0].order)):
            await asyncio.gather(*(each.talks[each.order[step]].step(world) for each in batch))
            if chance.random() < restarts:
                await world.restart(max_sessions=memory)
        for each in batch:
            each.check(world, remembered=not restarts)
    assert world.count("next_state") > INTERLEAVINGS
    assert world.count("conflict") == 0
