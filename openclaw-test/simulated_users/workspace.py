"""How a user hands over a problem and reads the answer: in the chat, or as files of a workspace.

* chat: the problem is the message, the answer is the reply
* workspace, simulated: the problem lies in ``homework/NN.txt`` and its content is also in the message, because the client has no
  tools; the reply is written to ``answers/NN.txt``, as an agent's tool would
* workspace of an agent: the message only names the two files; the agent reads the one and writes the other itself

Guarantees: the user always judges the content of the answer file, so a missing file is a reply that nobody likes. File names
are made of session and problem numbers; nothing that a model says becomes a path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

HOMEWORK, ANSWERS = "homework", "answers"
CHAT, SIMULATED, AGENT = "chat", "workspace, files simulated in messages", "workspace, files of a real agent"


class Form(Protocol):
    """How problems go to the assistant and answers come back; ``number`` is the session, ``nth`` the problem in it."""

    described: str
    through_agent: bool
    """Whether the client is an agent with a memory of its own, which gets only the user's newest message."""

    def hand_over(self, number: int, nth: int, message: str) -> str:
        """Return the message that hands over a problem, given the user's words about it."""
        ...

    def answer(self, number: int, nth: int, reply: str) -> str:
        """Return what the user reads after a reply."""
        ...


class Chat:
    """The plain form."""

    described = CHAT
    through_agent = False

    def hand_over(self, number: int, nth: int, message: str) -> str:
        """Return the user's words."""
        return message

    def answer(self, number: int, nth: int, reply: str) -> str:
        """Return the reply."""
        return reply


class Workspace:
    """Homework in files below one folder; makes `homework/` and `answers/` there and overwrites files of the same number."""

    def __init__(self, folder: Path, agent: bool = False) -> None:
        """Create the two folders.

        Args:
            folder: the workspace; of a real agent, the one that its tools see.
            agent: whether a real agent reads and writes the files.
        """
        self.folder, self.through_agent = folder, agent
        self.described = AGENT if agent else SIMULATED
        for name in (HOMEWORK, ANSWERS):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def hand_over(self, number: int, nth: int, message: str) -> str:
        """Write the homework file and return the message that names it; simulated, the message has its content, too."""
        homework, answer = self.names(number, nth)
        (self.folder / homework).write_text(f"{message}\n")
        (self.folder / answer).unlink(missing_ok=True)
        if self.through_agent:
            return f"Do the homework in {homework} and write the answer to {answer}."
        return f"{homework}: {message}"

    def answer(self, number: int, nth: int, reply: str) -> str:
        """Return the content of the answer file, empty if there is none; simulated, the reply is written to it first."""
        path = self.folder / self.names(number, nth)[1]
        if not self.through_agent:
            path.write_text(reply)
        return path.read_text(errors="replace") if path.is_file() else ""

    @staticmethod
    def names(number: int, nth: int) -> tuple[str, str]:
        """Return the names of the homework file and of the answer file, relative to the workspace."""
        name = f"{number:02d}.txt" if nth == 0 else f"{number:02d}-{nth + 1}.txt"
        return f"{HOMEWORK}/{name}", f"{ANSWERS}/{name}"
