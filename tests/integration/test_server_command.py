"""`openclaw.server` on the CPU: a real engine, the OpenAI SDK and curl over https with a key, Ctrl-C, and what is left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
import trustme
from openai import OpenAI

from lab.testkit.live_run import wait_until
from lab.testkit.processes import alive, title_of
from openclaw.ledger.store import Ledger
from openclaw.server.collect import Collector

pytestmark = pytest.mark.timeout(900)

KEY = "key-of-the-laptop"
ADDRESS = re.compile(r"at (https://127\.0\.0\.1:\d+)/v1")
SECONDS = 120.0
SAID = "What is two plus three, marmalade?"


@dataclass
class Served:
    """A running server and how to reach it."""

    process: subprocess.Popen[bytes]
    authority: Path
    folder: Path
    output: Path

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def url(self) -> str:
        """Where it says that it serves; it takes a free port when it is about to listen."""
        found = ADDRESS.search(self.text())
        assert found, f"it did not come up:\n{self.text()[-4000:]}"
        return found.group(1)


@pytest.fixture
def served(repository: Path, tiny_random_model: Path, tmp_path: Path) -> Iterator[Served]:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(tmp_path / "cert.pem", append=number > 0)
    issued.private_key_pem.write_to_path(tmp_path / "cert.key")
    (tmp_path / "keys").write_text(f"laptop:{KEY}\n")
    for name in ("cert.key", "keys"):
        (tmp_path / name).chmod(0o600)
    output = tmp_path / "server.log"
    command = [sys.executable, str(repository / "openclaw-combine" / "serve_model.py")]
    command += ["--model-path", str(tiny_random_model), "--port", "0", "--device", "cpu"]
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "OPENCLAW_API_KEYS_FILE": str(tmp_path / "keys"),
        "OPENCLAW_TLS_CERT": str(tmp_path / "cert.pem"),
        "OPENCLAW_TLS_KEY": str(tmp_path / "cert.key"),
        "ROLLOUT_LOG_LEVEL": "DEBUG",
    }
    with output.open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    running = Served(process, tmp_path / "authority.pem", tmp_path / "rl_buffer", output)
    try:
        yield running
    finally:
        process.kill()
        process.wait()


def serving(served: Served) -> bool:
    assert served.process.poll() is None, served.text()[-4000:]
    return ADDRESS.search(served.text()) is not None


def test_serve_talk_collect_stop(served: Served, tmp_path: Path) -> None:
    wait_until(lambda: serving(served), lambda: f"it did not come up:\n{served.text()[-4000:]}")
    context = ssl.create_default_context(cafile=str(served.authority))
    with OpenAI(
        base_url=f"{served.url}/v1",
        api_key=KEY,
        max_retries=0,
        http_client=httpx.Client(verify=context, trust_env=False),
    ) as client:
        messages = [{"role": "user", "content": SAID}]
        options = {"model": "tiny", "max_tokens": 20, "extra_headers": {"X-Session-Id": "jane@example.org"}}
        first = client.chat.completions.create(messages=messages, **options)  # type: ignore[call-overload]
        messages += [first.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "Shorter."}]
        chunks = list(client.chat.completions.create(messages=messages, stream=True, **options))  # type: ignore[call-overload]
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")

    feedback = {"response_id": chunks[-1].id, "thumbs": "down"}
    answer = curl(served, "/v1/feedback", json.dumps(feedback), f"Authorization: Bearer {KEY}")
    assert json.loads(answer) == {"object": "feedback", "response_id": chunks[-1].id, "applied": True, "reason": None}
    assert (
        json.loads(curl(served, "/v1/feedback", "{}", "Authorization: Bearer wrong"))["error"]["code"]
        == "invalid_api_key"
    )

    collector = Collector(
        *(served.url, tmp_path / "collected"),
        key=KEY,
        client=httpx.Client(verify=context, trust_env=False, timeout=SECONDS),
    )
    assert collector.collect() == 2
    collected = [record.turn.response_ids for record in collector.ledger.views.turn_records()]
    collector.close()

    rename_key(served, tmp_path / "keys")
    family = psutil.Process(served.process.pid).children(recursive=True)
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(SECONDS) == 130, served.text()[-4000:]
    assert alive(family) == []

    (line,) = (served.folder / "conversations.jsonl").read_text().splitlines()
    turns = json.loads(line)["turns"]
    assert [turn["prompt"][-1]["content"] for turn in turns] == [SAID, "Shorter."]
    assert turns[0]["next_state"] == [{"role": "user", "content": "Shorter."}]
    ledger = Ledger(served.folder / "ledger.sqlite")
    recorded = [record.turn for record in ledger.views.turn_records()]
    ledger.close()
    assert [turn.response_ids for turn in recorded] == collected
    assert [(turn.state, turn.signal) for turn in recorded] == [("pending", "next_state"), ("pending", "feedback")]

    log = (served.folder / "runtime.log").read_text()
    assert log.count("key=laptop POST /v1/chat/completions status=200") == 2
    for text in (log, served.text()):
        for secret in (KEY, "marmalade", "jane@example.org"):
            assert secret not in text


def rename_key(served: Served, keys: Path) -> None:
    """Replace the only key, and tell the runtime with SIGHUP; it goes on serving, with the new key alone."""
    keys.write_text("desk:another-key\n")
    family = psutil.Process(served.process.pid).children(recursive=True)
    (runtime,) = [process for process in family if "openclaw.runtime" in title_of(process).split()]
    runtime.send_signal(signal.SIGHUP)

    def accepted(key: str) -> bool:
        context = ssl.create_default_context(cafile=str(served.authority))
        with httpx.Client(verify=context, trust_env=False, timeout=SECONDS) as client:
            return client.get(f"{served.url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200

    wait_until(lambda: accepted("another-key"), lambda: "the new key is not taken")
    assert not accepted(KEY)


def curl(served: Served, path: str, body: str, header: str) -> str:
    """Post with the real curl."""
    program = shutil.which("curl")
    assert program, "install curl"
    command = [program, "-sS", "--noproxy", "*", "--cacert", str(served.authority), f"{served.url}{path}"]
    command += ["-H", "Content-Type: application/json", "-H", header, "-d", body]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
