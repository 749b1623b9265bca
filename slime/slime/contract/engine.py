"""Serve a stand-in for engine and router, without a model, on a loopback port.

It has the routes and fields that plugins use. Guarantees: a reply depends on the request and on the number of earlier
requests, so samples of one prompt differ. Every reply ends with the reason ``finish``. Owns a thread until ``close``.
"""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REPLY_TOKENS = 6
FIRST_LETTER, LETTERS = 33, 90


def _ids(request: dict[str, Any], count: int, number: int) -> list[int]:
    """Return ids of printable letters."""
    start = len(request.get("input_ids") or request.get("text") or "") + 31 * number
    return [FIRST_LETTER + (start + 7 * position) % LETTERS for position in range(count)]


def _generated(request: dict[str, Any], finish: str, number: int) -> dict[str, Any]:
    limit = (request.get("sampling_params") or {}).get("max_new_tokens", REPLY_TOKENS)
    count = 2 if finish == "abort" else min(limit, REPLY_TOKENS)
    ids = _ids(request, count, number)
    prompt = list(request.get("input_ids") or [])
    kind = "length" if finish == "stop" and limit < REPLY_TOKENS else finish
    scored = [[None, prompt[0], None], *[[-0.5, token, None] for token in prompt[1:]]] if prompt else []
    top = [None, *[[[-0.5, token, None]] for token in prompt[1:]]] if prompt else []
    return {
        "text": "".join(map(chr, ids)),
        "output_ids": ids,
        "meta_info": {
            "id": "stand-in",
            "finish_reason": {"type": kind},
            "output_token_logprobs": [[-0.25 - position / 8, token, None] for position, token in enumerate(ids)],
            "input_token_logprobs": scored[request.get("logprob_start_len", 0) :],
            "input_top_logprobs": top[request.get("logprob_start_len", 0) :],
            "weight_version": "1",
            "cached_tokens": 0,
            "prompt_tokens": len(prompt),
            "completion_tokens": count,
        },
    }


def _completed(request: dict[str, Any], finish: str, number: int) -> dict[str, Any]:
    text = "".join(map(chr, _ids({"text": json.dumps(request.get("messages"))}, REPLY_TOKENS, number)))
    content = [{"token": letter, "logprob": -0.25, "top_logprobs": []} for letter in text]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None},
        "finish_reason": finish,
        "logprobs": {"content": content},
    }
    usage = {"prompt_tokens": 1, "completion_tokens": REPLY_TOKENS, "total_tokens": 1 + REPLY_TOKENS}
    return {"id": "stand-in", "object": "chat.completion", "model": "stand-in", "choices": [choice], "usage": usage}


class StandInEngine:
    """The stand-in server of this module.

    Attributes:
        finish: ``stop``, ``length`` or ``abort``.
        generations: number of requested replies.
    """

    def __init__(self) -> None:
        self.finish = "stop"
        self.generations = 0
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                workers = [{"url": engine.url, "worker_type": "regular", "is_healthy": True}]
                found = {"/workers": {"workers": workers}, "/list_workers": {"urls": [engine.url]}}
                self._answer(found.get(self.path, {}))

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
                if self.path in ("/generate", "/v1/chat/completions"):
                    engine.generations += 1
                    make = _generated if self.path == "/generate" else _completed
                    self._answer(make(request, engine.finish, engine.generations))
                else:
                    self._answer({})

            def _answer(self, value: Any) -> None:
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                with contextlib.suppress(ConnectionError):  # a plugin may have dropped its request
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *values: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
