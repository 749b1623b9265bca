"""Clients that are programs of their own, streaming and not, with tools and without: the OpenAI JS SDK, and curl."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.testkit.live_run import wait_until
from tests.helpers.node import node_packages
from tests.helpers.stand_in_server import StandInServer, stand_in_server

KEY = "s3cret"
COUNT = "and another " * 100
HELLO = "Hello, wörld 🙂."
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Rome"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def answer(prompt: str) -> str:
    asked = prompt.rpartition("<|im_start|>user")[2]
    if "<tool_response>" in asked:
        return "It is sunny."
    if "WEATHER" in asked:
        return CALL
    if "THINK" in asked:
        return "<think>\nTwo and two.\n</think>\n\nFour."
    return COUNT if "COUNT" in asked else HELLO


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInServer]:
    """The server; its engine stops in the middle of `COUNT` until the client goes away."""
    servers: list[StandInServer] = []

    def held(prompt: str) -> str:
        text = answer(prompt)
        servers[0].engine.token_gate = asyncio.Semaphore(8) if text is COUNT else None
        return text

    with stand_in_server(tmp_path_factory.mktemp("clients"), held, api_key=KEY) as server:
        servers.append(server)
        yield server


def test_the_javascript_sdk(server: StandInServer, repository: Path) -> None:
    installed, node = node_packages("js_client"), shutil.which("node")
    if node is None:
        pytest.skip("no node on the PATH; install it (apt-get install nodejs npm)")
    script = repository / "tests/integration/js_client/client.test.mjs"
    environment = {**os.environ, "BASE_URL": f"{server.url}/v1", "API_KEY": KEY, "INSTALLED": str(installed)}
    done = subprocess.run([node, "--test", script], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr

    def session(name: str) -> list[Any]:
        return [turn for turn in server.turns() if turn.session_id == name]

    assert [turn.finish_reason for turn in session("js-tools")] == ["tool_calls", "stop"]
    assert [message["content"] for message in session("js-tools")[0].next_state] == ["sunny"]
    wait_until(lambda: session("js-abort"), lambda: "the turn that the client aborted was not recorded")
    (aborted,) = session("js-abort")
    assert aborted.finish_reason == "abort"
    wait_until(lambda: not server.engine.running, lambda: f"still generating: {server.engine.running}")


class Curl:
    """``curl`` with the server's key; without it, curl is not installed."""

    def __init__(self, server: StandInServer) -> None:
        self.program = shutil.which("curl")
        self.base_url = f"{server.url}/v1"

    def post(self, text: str, *options: str, key: str = KEY, **request: Any) -> subprocess.CompletedProcess[str]:
        if self.program is None:
            pytest.skip("no curl on the PATH; install it (apt-get install curl)")
        body = {"model": "policy", "messages": [{"role": "user", "content": text}], **request}
        headers = ("-H", "Content-Type: application/json", "-H", f"Authorization: Bearer {key}")
        command = [self.program, "-sS", *options, f"{self.base_url}/chat/completions", *headers, "-d", json.dumps(body)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def curl(server: StandInServer) -> Curl:
    return Curl(server)


def events(output: str) -> list[dict[str, Any]]:
    """The JSON of a stream that ended well."""
    lines = [line.removeprefix("data: ") for line in output.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_curl_gets_a_whole_reply(curl: Curl) -> None:
    reply = json.loads(curl.post("Hello?").stdout)
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": HELLO}


def test_curl_gets_a_stream(curl: Curl) -> None:
    chunks = events(curl.post("Hello?", "-N", stream=True, stream_options={"include_usage": True}).stdout)
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == HELLO
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 1


def test_curl_gets_tool_calls_whole_and_streamed(curl: Curl) -> None:
    (call,) = json.loads(curl.post("WEATHER?", tools=[TOOL]).stdout)["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"place": "Rome"}
    chunks = events(curl.post("WEATHER?", "-N", tools=[TOOL], stream=True).stdout)
    deltas = [part for chunk in chunks for part in chunk["choices"][0]["delta"].get("tool_calls") or []]
    assert deltas[0]["function"]["name"] == "weather"
    arguments = "".join(delta["function"].get("arguments") or "" for delta in deltas)
    assert json.loads(arguments) == {"place": "Rome"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_curl_is_told_what_is_wrong(curl: Curl) -> None:
    refused = curl.post("Hello?", "-w", "%{http_code}", key="wrong").stdout
    assert refused.endswith("401")
    assert json.loads(refused[:-3])["error"]["code"] == "invalid_api_key"
    wrong = curl.post("Hello?", "--fail", temperature=9)
    assert wrong.returncode == 22
