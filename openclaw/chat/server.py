"""The requests of the chat to the server.

Guarantees: a failed request raises `ChatError` with one line for the person at the prompt. A streamed reply counts as
whole only after ``data: [DONE]``. Safe for several threads. Owns the connections.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from groundwork.chat_messages import Message
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.exceptions import OpenClawError
from openclaw.launch.methods import demo_command
from openclaw.runtime.where import DEFAULT_URL

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 120.0
"""Longest silence within a reply; the gateway sends a comment every few seconds."""
QUICK_SECONDS = 5.0
"""Longest wait for requests that need no engine."""
KEY_VARIABLE = RuntimeVariables.declared("api_key").name
NO_PROXY = {f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")}
"""A proxy of the environment is not asked for this machine."""
DONE = "[DONE]"
AGAIN = "send the message again"
FINGERPRINT = "weights-"


class ChatError(OpenClawError):
    """A request failed; the message is one line for the person at the prompt."""


class MissingRecordError(ChatError):
    """The server does not know the reply or session, or lacks the route."""


@dataclass
class Reply:
    """A reply, filled in while it streams.

    Attributes:
        id: of the chat completion; None until the first chunk.
        text: what was said so far, without thoughts.
        weights: the weight version that sampled it; None if the server names none.
        lessons: number of the person's lessons in its prompt.
        finish_reason: None until the end.
    """

    id: str | None = None
    text: str = ""
    weights: str | None = None
    lessons: int = 0
    finish_reason: str | None = None


@dataclass(frozen=True)
class Piece:
    """The next piece of a reply: of what is said, or of a thought before it."""

    text: str
    thought: bool = False


class Server:
    """A server at ``base_url``."""

    def __init__(self, base_url: str, key: str | None) -> None:
        """Prepare for requests to ``base_url``, with or without its ``/v1``; ``key`` may be None.

        Raises:
            ChatError: for a URL that cannot be one.
        """
        self.url = base_url.rstrip("/").removesuffix("/v1") + "/v1"
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise ChatError(f"--base-url {base_url!r}: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ChatError(f"--base-url {base_url!r} is not a URL; write http://HOST:PORT/v1")
        self._has_key = key is not None
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(QUICK_SECONDS, connect=CONNECT_SECONDS)
        self._http = httpx.Client(headers=headers, timeout=timeout, mounts=NO_PROXY)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def model(self) -> str:
        """Return the name of the first model that the server lists."""
        listed = self._call("GET", "/models").get("data", [])
        try:
            return str(listed[0]["id"])
        except (LookupError, TypeError) as error:
            raise self._foreign() from error

    def stream(self, model: str, messages: list[Message], session_id: str, reply: Reply) -> Generator[Piece]:
        """Yield the reply to ``messages`` as it comes; fill in ``reply``.

        Raises:
            ChatError: if there is no reply, or it broke off.
        """
        body = {"model": model, "messages": messages, "stream": True}
        timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
        with (
            self._named_errors(),
            self._http.stream(
                "POST",
                f"{self.url}/chat/completions",
                json=body,
                headers={"X-Session-Id": session_id},
                timeout=timeout,
            ) as response,
        ):
            if response.status_code != 200:
                response.read()
                raise self._refused(response)
            reply.weights = response.headers.get("x-weight-version")
            lessons = response.headers.get("x-openclaw-lessons", "")
            reply.lessons = int(lessons) if lessons.isdecimal() else 0
            for data in events(response.iter_bytes()):
                if data == DONE:
                    return
                yield from self._pieces(data, reply)
        raise ChatError(f"the reply broke off; {AGAIN}")

    def _pieces(self, data: str, reply: Reply) -> Iterator[Piece]:
        """Yield the pieces in one event; take its other fields into ``reply``."""
        try:
            chunk: dict[str, Any] = json.loads(data)
            if "error" in chunk:
                raise ChatError(f"the reply broke off: {_message_of(chunk)}; {AGAIN}")
            reply.id = chunk.get("id", reply.id)
            fingerprint = chunk.get("system_fingerprint") or ""
            if fingerprint.startswith(FINGERPRINT):
                reply.weights = fingerprint.removeprefix(FINGERPRINT)
            for choice in chunk["choices"]:
                delta = choice["delta"]
                if thought := delta.get("reasoning_content"):
                    yield Piece(thought, thought=True)
                if text := delta.get("content"):
                    reply.text += text
                    yield Piece(text)
                reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._foreign() from error

    def feedback(self, response_id: str, thumbs: str, text: str | None) -> str | None:
        """Send thumbs and words about a reply; return why they do not count, or None if they do."""
        answer = self._call("POST", "/feedback", {"response_id": response_id, "thumbs": thumbs, "text": text})
        return None if answer.get("applied") else str(answer.get("reason"))

    def outcome(self, response_id: str) -> dict[str, Any]:
        """Return what became of a reply, as ``GET /v1/turns/{id}`` tells it.

        Raises:
            MissingRecordError: if the server cannot tell.
        """
        answer = self._call("GET", f"/turns/{quote(response_id, safe='')}")
        if answer.get("object") != "turn":
            raise MissingRecordError(f"{self.url} does not tell what became of a reply")
        return answer

    def lessons(self) -> tuple[str, list[dict[str, Any]]]:
        """Return the mode of the key's person, and its lessons, the oldest first."""
        answer = self._call("GET", "/lessons")
        try:
            return str(answer["lessons"]), sorted(answer["data"], key=lambda lesson: lesson["created_at"])
        except (LookupError, TypeError, ValueError) as error:
            raise self._foreign() from error

    def change_lessons(self, method: str, path: str = "", **body: object) -> None:
        """Add, change or delete a lesson: ``path`` is below ``/lessons``, or set the mode without a path by ``PUT``."""
        self._call(method, "/me" if method == "PUT" else f"/lessons{path}", body or None)

    def end(self, session_id: str) -> None:
        """End a session."""
        self._call("POST", f"/sessions/{quote(session_id, safe='')}/done")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the JSON object that a request gets.

        Raises:
            ChatError: if it gets another answer, or none.
        """
        with self._named_errors():
            response = self._http.request(method, f"{self.url}{path}", json=body)
        if response.status_code != 200:
            raise self._refused(response)
        try:
            answer = response.json()
        except ValueError as error:
            raise self._foreign() from error
        if not isinstance(answer, dict):
            raise self._foreign()
        return answer

    def _refused(self, response: httpx.Response) -> ChatError:
        """Return the error for an answer with another status than 200."""
        if response.status_code == 401:
            problem = f"the key in {KEY_VARIABLE} is not one" if self._has_key else f"{KEY_VARIABLE} is not set"
            return ChatError(f"{self.url} asks for a key, and {problem}; type: export {KEY_VARIABLE}=KEY")
        try:
            body = response.json()
            said = _message_of(body)
            code = body["error"].get("code")
        except (ValueError, LookupError, TypeError, AttributeError):
            said, code = f"{self.url} answered {response.status_code}", None
        if code == "context_length_exceeded":
            return ChatError("the conversation is too long for the model; /new starts another")
        kind = MissingRecordError if response.status_code == 404 else ChatError
        return kind(f"{response.status_code}: {said}")

    def _start_command(self) -> str:
        """Return the command that starts a server on this port."""
        port = httpx.URL(self.url).port
        usual = port in (None, httpx.URL(DEFAULT_URL).port)
        return demo_command("--live", *([] if usual else ["--port", str(port)]))

    def _foreign(self) -> ChatError:
        return ChatError(f"{self.url} is not an OpenAI-compatible server; check --base-url")

    @contextmanager
    def _named_errors(self) -> Generator[None]:
        """Turn errors of the connection into lines."""
        try:
            yield
        except httpx.ConnectError as error:
            if "CERTIFICATE" in str(error):
                raise ChatError(f"{self.url}: {error}; name its certificate with SSL_CERT_FILE") from error
            raise ChatError(f"nothing answers on {self.url}; start a server: {self._start_command()}") from error
        except httpx.TimeoutException as error:
            raise ChatError(f"{self.url} took too long to answer; {AGAIN}") from error
        except httpx.TransportError as error:
            raise ChatError(f"the connection to {self.url} broke off; {AGAIN}") from error


def events(chunks: Iterator[bytes]) -> Iterator[str]:
    """Yield the data of server-sent events; only line feeds end a line, because replies may have any other separator."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode("utf-8", "replace")


def _message_of(body: dict[str, Any]) -> str:
    return " ".join(str(body["error"]["message"]).split())
