"""Calls of ``computer_use``: exactly one in a reply, read strictly before it reaches the environment."""

from __future__ import annotations

from agentrl.exceptions import InvalidError
from agentrl.rollout.actions import Action, Malformed, ToolCalls
from agentrl.rollout.prompts import Reply
from agentrl.tasks.gui.actions import HOW, read_call


class ComputerUse(ToolCalls):
    """See `agentrl.rollout.actions.Form`; the loop counts a `Malformed` reply as a format error."""

    def actions(self, reply: Reply) -> list[Action]:
        """Return the one action of a reply."""
        found = super().actions(reply)
        if len(found) != 1:
            raise Malformed(f"the reply has {len(found)} calls; write exactly one")
        if "text" in found[0].content:
            raise Malformed(f"the reply has no call; {HOW}")
        try:
            read_call(found[0].content)
        except InvalidError as error:
            raise Malformed(error.message) from error
        return found
