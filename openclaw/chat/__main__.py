"""``openclaw-rl chat``: its command line, and the conversation with its messages, thumbs and commands.

Guarantees: the history holds complete exchanges only, so a message that failed or was stopped can be sent again. Nothing
but ``/quit``, the end of the input or a second Ctrl-C ends the chat. Owns the session of the conversation.

On the terminal, news from another thread never tears a reply or a half-typed message. It appears above an empty prompt at
once, else before the next prompt. What comes from the server cannot control the terminal. Without a terminal there is
no prompt, and the same text is written.

After the user's reaction a reply is followed: the judge's verdict, then the weights that learned from it. A thread of its own asks
the server, so nobody waits. Each piece of news is told once. A server that cannot
tell is asked no more. Owns the thread, which ends with `Watch.close`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

from rich.console import Console

from groundwork.chat_messages import Message
from groundwork.command_line import CommandLine, server_url
from groundwork.exceptions import ConfigError
from openclaw.chat.server import ChatError, MissingRecordError, Reply, Server
from openclaw.config.runtime_variables import client_key
from openclaw.ledger.views import counted
from openclaw.lessons.lesson import MODES
from openclaw.messages.preview import harmless, preview
from openclaw.messages.thumbs import thumb_of
from openclaw.runtime.where import DEFAULT_URL

FIRST_SECONDS = 0.25
MAX_SECONDS = 5.0
MAX_WATCHED = 16
PREVIEW = 48
PROBE = "probe"
"""The reason of a turn that the gate keeps (`openclaw.ledger.probes`)."""


class OutcomeSource(Protocol):
    """What tells what became of a reply, like `openclaw.chat.server.Server`."""

    def outcome(self, response_id: str) -> dict[str, Any]: ...


@dataclass
class Watched:
    """A reply under watch: the reaction to it, and what was told already."""

    reaction: str
    judged: bool = False
    troubled: bool = False


class Watch:
    """Tells ``announce`` one line per piece of news."""

    def __init__(self, source: OutcomeSource, announce: Callable[[str], None]) -> None:
        """Start watching; nothing is watched yet."""
        self._source = source
        self._announce = announce
        self._watched: dict[str, Watched] = {}
        self._known: set[str] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._pause = FIRST_SECONDS
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def add(self, response_id: str, reaction: str) -> None:
        """Watch a reply that got ``reaction``, unless it had one before."""
        with self._changed:
            if response_id in self._known:
                return
            self._known.add(response_id)
            self._watched[response_id] = Watched(quoted(reaction))
            while len(self._watched) > MAX_WATCHED:
                del self._watched[next(iter(self._watched))]
            self._pause = FIRST_SECONDS
            self._changed.notify()

    def close(self) -> None:
        """Ask no more; wait for a request that is under way."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        """Ask about every reply, in pauses that grow while there is nothing new."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._watched)
                if self._closed or self._changed.wait_for(lambda: self._closed, self._pause):
                    return
                due = list(self._watched.items())
                self._pause = min(2 * self._pause, MAX_SECONDS)
            for response_id, watched in due:
                if self._closed:
                    return
                if self._ask(response_id, watched):
                    with self._changed:
                        self._watched.pop(response_id, None)

    def _ask(self, response_id: str, watched: Watched) -> bool:
        """Announce what is new about one reply; return whether nothing more will be."""
        try:
            outcome = self._source.outcome(response_id)
        except MissingRecordError:
            return True
        except ChatError:
            return False
        for line in news(outcome, watched):
            self._announce(line)
            self._pause = FIRST_SECONDS
        return settled(outcome)


def settled(outcome: dict[str, Any]) -> bool:
    """Return whether nothing more will become of a reply."""
    if outcome["state"] == "judged":
        return outcome["sample"] in (None, "dropped") or outcome["weight_version"] is not None
    return outcome["state"] in ("ended", "excluded")


def news(outcome: dict[str, Any], watched: Watched) -> Iterator[str]:
    """Yield the lines that were not told yet; note them in ``watched``."""
    state, reason, sample = outcome["state"], outcome["reason"], outcome["sample"]
    if state == "excluded":
        yield f"not trained on: {reason}"
    if state == "pending" and outcome["judge_attempts"] and not watched.troubled:
        watched.troubled = True
        yield f"the judge failed on {watched.reaction} and tries again; openclaw-rl inspect RUN shows its error"
    if state != "judged":
        return
    if not watched.judged:
        watched.judged = True
        if sample:
            learns = f"it learns from {watched.reaction}"
        elif reason == PROBE:
            learns = f"kept to compare weights, so it does not learn from {watched.reaction}: {reason}"
        else:
            learns = f"nothing to learn from {watched.reaction}: {reason}"
        yield f"judged: {verdict(outcome)} ({learns})"
    if sample == "dropped":
        yield f"not trained on {watched.reaction}: {reason}"
    elif outcome["weight_version"] is not None:
        yield f"learned from {watched.reaction}: weights {outcome['weight_version']}"


def verdict(outcome: dict[str, Any]) -> str:
    """Return score and hint in words."""
    score, hint = outcome["score"], outcome["hint"]
    parts = [] if score is None else [f"{score:+d}" if score else "0"]
    return ", ".join([*parts, *([f"hint {quoted(hint)}"] if hint else [])]) or "no score"


def quoted(text: str) -> str:
    """Return ``text`` in quotes, on one line and not too long."""
    return f'"{preview(text, PREVIEW)}"'


PROMPT = "you> "
ERASE_LINE = "\r\x1b[K"


class Screen:
    """Standard input and output."""

    def __init__(self) -> None:
        """Use the terminal, with line editing if there is one."""
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._readline = None
        if self.interactive:
            with contextlib.suppress(ImportError):  # a Python without it still reads lines
                import readline

                self._readline = readline
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._lock = threading.RLock()
        self._news: list[str] = []
        self._asking = False

    def read(self) -> str | None:
        """Return the next line that the user types, None at the end of the input."""
        with self._lock:
            self.show_news()
            self._asking = True
        try:
            line = input(PROMPT if self.interactive else "")
        except EOFError:
            if self.interactive:
                self.line("")
            return None
        finally:
            self._asking = False
        return line.encode("utf-8", "replace").decode()

    def piece(self, text: str, *, dim: bool = False) -> None:
        """Write a piece of a reply as it is."""
        if dim:
            self._console.print(harmless(text), style="dim", end="")
        else:
            self._console.file.write(harmless(text))
        self._console.file.flush()

    def line(self, text: str) -> None:
        """Write a line."""
        self.piece(f"{text}\n")

    def note(self, text: str) -> None:
        """Write a dim line about the conversation."""
        self._console.print(harmless(text), style="dim")

    def announce(self, text: str) -> None:
        """Write a dim line that another thread brings, now or before the next prompt."""
        with self._lock:
            self._news.append(text)
            if self._asking and self._readline is not None and not self._readline.get_line_buffer():
                self._console.file.write(ERASE_LINE)
                self.show_news()
                self._console.file.write(PROMPT)
                self._console.file.flush()

    def show_news(self) -> None:
        """Write the news that came meanwhile."""
        with self._lock:
            for text in self._news:
                self.note(text)
            self._news.clear()


COMMANDS = {
    "/up": "the last reply was good; also + or \N{THUMBS UP SIGN}",
    "/down": "the last reply was bad; also - or \N{THUMBS DOWN SIGN}; words may follow: /down too long",
    "/lessons": "what it keeps in mind for you; /lessons auto, confirm or off; add WORDS; on N, off N, rm N",
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
                    self._screen.line(f"{name:8} {what}")
            elif word == "/lessons":
                self._lessons(*rest.split(maxsplit=1))
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
        lessons = f", {counted(reply.lessons, 'lesson')}" if reply.lessons else ""
        self._screen.note((WEIGHTS_ROSE.format(before, now) if risen else f"weights {now}") + lessons)

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

    def _lessons(self, act: str = "", what: str = "") -> None:
        """List the person's lessons, or change what ``act`` names: the mode, or the lesson with the number ``what``."""
        if act in MODES and not what:
            self._server.change_lessons("PUT", lessons=act)
        elif act == "add" and what:
            self._server.change_lessons("POST", text=what)
        elif act in ("on", "off", "rm"):
            _, lessons = self._server.lessons()
            if not what.isdecimal() or not 1 <= int(what) <= len(lessons):
                self._screen.line(f"no lesson {what or 'named'}; /lessons numbers them")
                return
            path = f"/{lessons[int(what) - 1]['id']}"
            if act == "rm":
                self._server.change_lessons("DELETE", path)
            else:
                self._server.change_lessons("PATCH", path, on=act == "on")
        elif act:
            self._screen.line(
                "type /lessons, /lessons auto, confirm or off, /lessons add WORDS, or /lessons on, off or rm NUMBER"
            )
            return
        mode, lessons = self._server.lessons()
        for number, lesson in enumerate(lessons, start=1):
            reason = f" ({lesson['reason']})" if lesson["reason"] else ""
            self._screen.line(f"{number}. {lesson['text']}  [{lesson['state']}{reason}]")
            if lesson["reason"] == "learned" and (found := lesson["measure"]):
                self._screen.note(
                    f"   the weights know it: {found['plain']:.2f} without it, {found['taught']:.2f} with it; since then "
                    f"liked {lesson['liked_without']}, disliked {lesson['disliked_without']}"
                )
        self._screen.note(f"lessons: {mode}; {counted(len(lessons), 'lesson')}")

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


PROG = "openclaw-rl chat"
FAILED_EXIT = 1
CONFIG_EXIT = 2
INTERRUPTED_EXIT = 130


def build_parser() -> CommandLine:
    """Return the command line."""
    parser = CommandLine(
        prog=PROG,
        description="Talk to a running server. It learns from what you say about its replies. SGLANG_API_KEY has the key, "
        "if the server needs one.",
        epilog="/help in the chat lists its commands. Without a terminal, every line of the input is a message, and the "
        "exit status is 1 if one got no reply.",
    )
    parser.add_argument(
        "--base-url",
        type=server_url,
        default=DEFAULT_URL,
        metavar="URL",
        help=f"of the server (default: {DEFAULT_URL})",
    )
    parser.add_argument("--model", metavar="NAME", help="model to ask for (default: the one that the server lists)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Chat; return the exit status."""
    options = build_parser().parse_args(argv)
    try:
        return chat(options.base_url, options.model)
    except (ChatError, ConfigError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return CONFIG_EXIT
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED_EXIT


def chat(base_url: str, model: str | None) -> int:
    """Talk with the server at ``base_url`` until the user quits; return the exit status.

    Raises:
        ChatError: if it does not answer.
        ConfigError: if the key's variable is invalid.
    """
    server = Server(base_url, client_key())
    try:
        served = server.model()
        screen = Screen()
        watch = Watch(server, screen.announce)
        screen.note(f"{model or served} at {server.url}; /help lists the commands")
        talk = Talk(server, model or served, screen, watch)
        try:
            talk.run()
        finally:
            watch.close()
        screen.show_news()
    finally:
        server.close()
    return FAILED_EXIT if talk.failures and not screen.interactive else 0


if __name__ == "__main__":
    sys.exit(main())
