"""A simulated student hands homework over to the real OpenClaw, whose agent reads and writes the files with its own tools."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from openclaw.messages.text import content_text
from tests.helpers.node import node_packages
from tests.helpers.openclaw_client import TOKEN, OpenClaw, configuration, provider
from tests.helpers.stand_in_server import stand_in_server

pytestmark = pytest.mark.timeout(900)

ASKED = re.compile(r"Do the homework in (homework/\S+\.txt) and write the answer to (answers/\S+\.txt)\.")
COMMAND_SECONDS = 420.0
BOLD, PLAIN = "**5**", "It is 5."


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def answer(prompt: str) -> str:
    """Read the homework, write a bold answer, and a plain one after the complaint."""
    homework = list(ASKED.finditer(prompt))[-1]
    results = prompt[homework.end() :].count("<tool_response>")
    if results == 0:
        return call("read", path=homework[1])
    if results == 1:
        return call("write", path=homework[2], content=BOLD)
    if results == 2 and prompt.rfind("<tool_response>") < prompt.rfind("Done."):
        return call("write", path=homework[2], content=PLAIN)
    return "Done."


@pytest.mark.long
def test_an_agents_answer_files_are_judged_and_its_turns_are_one_session(repository: Path, tmp_path: Path) -> None:
    installed = node_packages("openclaw")
    with stand_in_server(tmp_path, answer, context_length=65536) as server:
        plugins = {repository / "extensions/rl-training-headers": {"providers": ["openclaw-rl"]}}
        config = configuration(plugins, {"openclaw-rl": provider(f"{server.url}/v1")})
        openclaw = OpenClaw(installed, tmp_path / "home", config)
        workspace = openclaw.home / ".openclaw" / "workspace"
        openclaw.start()
        try:
            openclaw.wait_ready()
            words = ["--agent-url", f"http://127.0.0.1:{openclaw.port}/v1", "--workspace", str(workspace)]
            words += ["--model", "openclaw/openclaw-rl", "--num-problems", "1"]
            done = subprocess.run(
                [sys.executable, str(repository / "openclaw-test" / "student_chat.py"), *words],
                env={**os.environ, "OPENCLAW_GATEWAY_TOKEN": TOKEN},
                capture_output=True,
                text=True,
                timeout=COMMAND_SECONDS,
            )
        finally:
            openclaw.stop()
        turns = server.turns()
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{openclaw.tail()}"
    assert "1 session, 3 turns, 1 complaint, 0 refused; first replies liked: 0.00" in " ".join(done.stdout.split())
    assert re.findall(r"^assistant.*", done.stdout, re.MULTILINE) == ["assistant -", "assistant +", "assistant"]
    assert (workspace / "answers" / "00.txt").read_text() == PLAIN
    assert {turn.kind for turn in turns} == {"main"}
    assert len({turn.session_id for turn in turns}) == 1
    bold = [turn for turn in turns if BOLD in json.dumps(turn.response_message)]
    [written] = bold[0].next_state or []
    assert (written["role"], "answers/00.txt" in content_text(written["content"])) == ("tool", True)
    said = [turn for turn in turns if turn.finish_reason == "stop"]
    assert all(turn.next_state and turn.next_state[0]["role"] == "user" for turn in said[:-1])
