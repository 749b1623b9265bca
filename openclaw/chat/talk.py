"""The conversation: messages, thumbs and commands.

Guarantees: the history holds complete exchanges only, so a message that failed or was stopped can be sent again. Nothing
but ``/quit``, the end of the input or a second Ctrl-C ends the chat. Owns the session of the conversation.
"""

from __future__ import annotations

import re
import uuid
from contextlib import closing
from difflib import get_close_matches

from groundwork.chat_messages import Message
from openclaw.chat.screen import Screen
from openclaw.chat.server import ChatError, Reply, Server
from openclaw.chat.watch import Watch
from openclaw.messages.thumbs import thumb_of

COMMANDS = {
    "/up": "the last reply was good; also + or \N{THUMBS UP SIGN}",
    "/down": "the last reply was bad; also - or \N{THUMBS DOWN SIGN}; words may follow: /down too long",
    "/new": "end this conversation and start another",
    "/help": "this list",
    "/quit": "end the chat; also Ctrl-D",
}
SHORT = {"+": "/up", "-": "/down"}
THUMBS = {"/up": "up", "/down": "down"}
WEIGHTS_ROSE = "the model has learned: weights {} -> {}"


class Talk:
    """One chat with a server."""

    def __init__(self, server: Server, model: str, screen: Screen, watch: Watch) -> None:
        """Start the first conversation."""
        self._server, self._model, self._screen, self._watch = server, model, screen, watch
        self._weights: str | None = None
        self.failures = 0
        """Number of messages without a whole reply."""
        self._start()

    def _start(self) -> None:
        self._session_id = f"chat-{uuid.uuid4().hex[:16]}"
        self._messages: list[Message] = []
        self._last: Reply | None = None
        self._spoken = False

    def run(self) -> None:
        """Talk until the user quits."""
        warned = False
        while True:
            try:
                line = self._screen.read()
            except KeyboardInterrupt:
                self._screen.line("")
                if warned or not self._screen.interactive:
                    break
                warned = True
                self._screen.note("type /quit, or press Ctrl-C again to quit")
                continue
            warned = False
            if line is None or not self._take(line.strip()):
                break
        self._end()

    def _take(self, line: str) -> bool:
        """Handle one line; return whether the chat goes on."""
        thumb = thumb_of(line, self._last.text if self._last else "")
        word, _, rest = (f"/{thumb}" if thumb else SHORT.get(line, line)).partition(" ")
        if word == "/quit":
            return False
        try:
            if not re.fullmatch(r"/\w+", word):
                if line:
                    self._say(line)
            elif word in THUMBS:
                self._rate(THUMBS[word], rest.strip() or None)
            elif word == "/new":
                self._end()
                self._start()
                self._screen.note("a new conversation; the model has forgotten this one, but not what it learned")
            elif word == "/help":
                for name, what in COMMANDS.items():
                    self._screen.line(f"{name:6} {what}")
            else:
                near = get_close_matches(word, COMMANDS, n=1)
                self._screen.line(f"no command {word}; type {near[0] if near else '/help'}")
        except ChatError as error:
            self._screen.line(f"error: {error}")
        except KeyboardInterrupt:
            self._stopped()
        return True

    def _stopped(self) -> None:
        """Begin a new line after Ctrl-C; without a terminal it ends the program."""
        if not self._screen.interactive:
            raise KeyboardInterrupt
        self._screen.line("")

    def _say(self, text: str) -> None:
        """Send a message and show its reply; the exchange counts once the reply is whole."""
        message = {"role": "user", "content": text}
        reply = Reply()
        self._spoken = True
        self.failures += 1
        try:
            self._show(message, reply)
        except KeyboardInterrupt:
            self._stopped()
            self._screen.note("stopped; the model forgets this message and its reply")
            return
        self.failures -= 1
        if self._last is not None and self._last.id is not None:
            self._watch.add(self._last.id, text)
        self._messages += [message, {"role": "assistant", "content": reply.text}]
        self._last = reply
        self._report(reply)

    def _show(self, message: Message, reply: Reply) -> None:
        """Print the reply to ``message`` while it comes; its thoughts are dim and end with a new line."""
        messages = [*self._messages, message]
        thought = begun = False
        try:
            with closing(self._server.stream(self._model, messages, self._session_id, reply)) as pieces:
                for piece in pieces:
                    if thought and not piece.thought:
                        self._screen.line("")
                    thought, begun = piece.thought, True
                    self._screen.piece(piece.text, dim=thought)
        except ChatError:
            if begun:
                self._screen.line("")
            raise
        self._screen.line("" if begun else "(an empty reply)")

    def _report(self, reply: Reply) -> None:
        """Print which weights replied, and whether they have learned since the reply before."""
        if reply.finish_reason == "length":
            self._screen.note("the reply reached the limit of its length")
        before, now = self._weights, reply.weights
        if now is None:
            return
        self._weights = now
        risen = before is not None and later(now, before)
        self._screen.note(WEIGHTS_ROSE.format(before, now) if risen else f"weights {now}")

    def _rate(self, thumbs: str, text: str | None) -> None:
        """Send thumbs and words about the last reply."""
        if self._last is None or self._last.id is None:
            self._screen.line("there is no reply to rate yet; say something first")
            return
        reason = self._server.feedback(self._last.id, thumbs, text)
        if reason is None:
            self._screen.note(f"noted: thumbs {thumbs}")
            self._watch.add(self._last.id, text or f"thumbs {thumbs}")
        else:
            self._screen.note(f"stored, but not learned from: {reason}")

    def _end(self) -> None:
        """End the session at the server; a server that is away ends it by itself."""
        if self._spoken:
            try:
                self._server.end(self._session_id)
            except (ChatError, KeyboardInterrupt):
                return


def later(version: str, before: str) -> bool:
    """Return whether a weight version comes after another one."""
    return int(version) > int(before) if version.isdecimal() and before.isdecimal() else version != before
