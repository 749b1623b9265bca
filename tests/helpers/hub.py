"""A stand-in for the Hugging Face hub: serves the files of one model, can break off in the middle of one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.helpers.threaded_server import serving

REVISION = "a" * 40


class StandInHub:
    """What the hub has, and which requests arrived."""

    def __init__(self, hub: str, files: Mapping[str, bytes]) -> None:
        self.hub, self.files = hub, dict(files)
        self.break_after: dict[str, int] = {}
        self.digests: dict[str, str] = {}
        self.ranges: list[str] = []
        self.url = ""

    def listing(self) -> dict[str, Any]:
        """The answer to a question about the model."""
        siblings = [
            {"rfilename": name, "size": len(data), "blobId": self.etag(name)} | self.large(name)
            for name, data in self.files.items()
        ]
        return {"id": self.hub, "sha": REVISION, "tags": ["license:apache-2.0"], "siblings": siblings}

    def large(self, name: str) -> dict[str, Any]:
        """What the hub adds for weights: their checksum."""
        data = self.files[name]
        digest = self.digests.get(name) or hashlib.sha256(data).hexdigest()
        facts = {"sha256": digest, "size": len(data), "pointerSize": 134}
        return {"lfs": facts} if name.endswith(".safetensors") else {}

    def etag(self, name: str) -> str:
        """The fingerprint of a file."""
        return hashlib.sha1(self.files[name]).hexdigest()


@contextmanager
def stand_in_hub(hub: str, files: Mapping[str, bytes]) -> Iterator[StandInHub]:
    """Run a hub on a free port for the duration of the block."""
    state = StandInHub(hub, files)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Stay silent."""

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            path = self.path.split("?")[0]
            if path.startswith(f"/api/models/{state.hub}"):
                self.reply(200, json.dumps(state.listing()).encode(), {"Content-Type": "application/json"}, with_body)
                return
            name = path.rpartition("/")[2]
            if not path.startswith(f"/{state.hub}/resolve/") or name not in state.files:
                self.reply(404, b"", {"X-Error-Code": "RepoNotFound"}, with_body)
                return
            data, start = state.files[name], 0
            if given := self.headers.get("Range"):
                state.ranges.append(given)
                start = int(given.removeprefix("bytes=").split("-")[0])
            headers = {"ETag": f'"{state.etag(name)}"', "X-Repo-Commit": REVISION}
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            end = state.break_after.get(name)
            self.reply(
                206 if start else 200, data[start:], headers, with_body, None if end is None else max(0, end - start)
            )

        def reply(
            self, status: int, body: bytes, headers: Mapping[str, str], with_body: bool, end: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body if end is None else body[:end])
                self.wfile.flush()
            if end is not None and with_body:
                self.close_connection = True

    with serving(Handler) as url:
        state.url = url
        yield state
