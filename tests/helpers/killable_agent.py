"""A small agent program for a real sandbox, and the class that a pool's command finds it by.

The program asks for streamed replies, each of which must be complete, beside a process that ignores signals. The pool's
variable `FOLDER_VARIABLE` names a folder that decides what a run does: while it has the file `ENDLESS`, a run that begins
asks until it is ended. Any other run asks twice, and the first such run solves the task.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from agentrl.harness.interface import Assignment
from agentrl.sandbox.interface import ExecResult, Mount, Sandbox
from tests.helpers.shell_agents import oracle

TASK = "shell/write_word/train/1"
FOLDER_VARIABLE = "KILLABLE_AGENT"
ENDLESS, SOLVED = "endless", "solved"
TURNS = 2
PROGRAM = """
import json, os, subprocess, sys, urllib.request

subprocess.Popen(["bash", "-c", "trap '' TERM HUP INT; while :; do sleep 100; done"], start_new_session=True)
url, key, model = (os.environ[name] for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "MODEL"))

def ask(messages):
    body = {"model": model, "messages": messages, "stream": True, "max_tokens": 200}
    body["chat_template_kwargs"] = {"enable_thinking": True}
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    request = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), headers)
    text = ""
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:
            if line.startswith(b"data: [DONE]"):
                return text
            if line.startswith(b"data: "):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
    sys.exit("the reply broke off")

turns, messages = int(sys.argv[1]), [{"role": "user", "content": "Go."}]
while turns != 0:
    reply = ask(messages)
    turns -= 1
    if turns > 0:
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "On."}]
"""
"""Its argument is the number of replies; a negative one has no end."""


class KillableAgent:
    """See the module."""

    name = "killable"
    memory_mib = 128
    processes = 16

    def mounts(self) -> Sequence[Mount]:
        return []

    async def run(self, sandbox: Sandbox, assignment: Assignment) -> ExecResult:
        folder = Path(os.environ[FOLDER_VARIABLE])
        turns = -1 if (folder / ENDLESS).exists() else TURNS
        env = {"OPENAI_BASE_URL": assignment.base_url, "OPENAI_API_KEY": assignment.api_key, "MODEL": assignment.model}
        argv = ["/usr/bin/python3", "-I", "-c", PROGRAM, str(turns)]
        ended = await sandbox.execute(argv, env=env, timeout_s=assignment.timeout_s)
        if ended.exit_code == 0 and not (folder / SOLVED).exists():
            await sandbox.execute(["bash", "-c", oracle(TASK)], timeout_s=assignment.timeout_s)
            (folder / SOLVED).touch()
        return ended
