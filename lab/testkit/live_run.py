"""A live run of the launcher on the tiny model, and clients that talk to it, for tests of the whole loop."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
from openai import AsyncOpenAI

from groundwork.network import find_available_port
from lab.testkit.processes import answers
from lab.testkit.waiting import wait_until

__all__ = ["KEYS", "FolderRun", "LiveRun", "call_tool", "keys_file", "talk", "wait_until"]

END_SECONDS = 240.0
KEYS = {"alice": "key-of-alice-0123456789", "bob": "key-of-bob-0123456789"}
"""Of the two people of a run with `keys_file`."""


def keys_file(folder: Path) -> Path:
    """Write the file for ``OPENCLAW_API_KEYS_FILE`` that has `KEYS`."""
    path = folder / "keys"
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()))
    return path


class LiveRun:
    """``python -m openclaw.launch --profile tiny_cpu`` as a child, its output in a file."""

    def __init__(self, repository: Path, folder: Path, model: Path, method: str, *flags: str, **variables: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._trainer: psutil.Process | None = None
        self.port = int(variables.get("PORT") or find_available_port())
        self.output = folder / f"launch-{len(list(folder.glob('launch-*')))}.log"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(repository), str(repository / "slime")]),
            "HF_CKPT": str(model),
            "PRM_MODEL_PATH": str(model),
            "RUN_DIR": str(folder),
            "PORT": str(self.port),
            "GATE": "0",
            **{name: str(value) for name, value in variables.items()},
        }
        command = [sys.executable, *self._program(repository, method), *flags]
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    def _program(self, repository: Path, method: str) -> list[str]:
        return ["-m", "openclaw.launch", "--profile", "tiny_cpu", "--method", method]

    @property
    def base_url(self) -> str:
        """The OpenAI base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def ledger_path(self) -> Path:
        """The ledger's file."""
        return self.folder / "checkpoints" / "ledger.sqlite"

    def text(self) -> str:
        """What the driver has printed."""
        return self.output.read_text(errors="replace")

    def steps(self) -> list[int]:
        """Rollout ids of the steps that the driver has reported, in order."""
        return [int(line.split()[1]) for line in self.text().splitlines() if line.startswith("step ")]

    def healthy(self) -> bool:
        """Whether the gateway answers; fails when the driver has ended."""
        assert self.process.poll() is None, f"the run ended with {self.process.returncode}:\n{self.text()[-4000:]}"
        return answers(f"http://127.0.0.1:{self.port}/healthz")

    def wait_ready(self) -> None:
        """Wait until the gateway answers."""
        wait_until(self.healthy, lambda: f"the gateway did not come up:\n{self.text()[-4000:]}")

    def family(self) -> list[psutil.Process]:
        """Every process of the run."""
        return [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]

    def trainer_in_a_step(self) -> psutil.Process | None:
        """The trainer's process while it is inside ``train``, else None; Ray writes the method into its title."""
        with contextlib.suppress(psutil.Error):
            for process in [self._trainer] if self._trainer else self.family():
                title = " ".join(process.cmdline())
                if title.startswith("ray::FSDPTrainActor"):
                    self._trainer = process
                    return process if "FSDPTrainActor.train" in title else None
        return None

    def stop(self) -> int:
        """End it as a user does, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait_end()

    def wait_end(self) -> int:
        """Wait for its end and return its exit code."""
        try:
            return self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run did not end:\n{self.text()[-4000:]}") from None


class FolderRun(LiveRun):
    """The method's ``train_async.py`` on the ledger of an earlier run, which it goes on serving and training."""

    def _program(self, repository: Path, method: str) -> list[str]:
        kept = str(self.ledger_path.parent)
        script = repository / f"openclaw-{method}" / "train_async.py"
        options = ["--rollout-dir", kept, "--checkpoint-dir", kept, "--gpus", "cpu", "--method", method]
        return [str(script), *options, "--keep-running"]


async def talk(
    client: AsyncOpenAI, rng: random.Random, session: str, *, thinking: bool = False, stream: bool = False
) -> list[str]:
    """Have one conversation of three messages with the student's taste and return the ids of the replies."""
    from word_problems.feedback import approval, complaint
    from word_problems.problems import draw_short
    from word_problems.replies import follows_rule

    ids, messages = [], [{"role": "user", "content": draw_short(rng, "held").question}]
    extra: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}} if thinking else {}
    for _ in range(3):
        request: dict[str, Any] = {"model": "tiny", "messages": messages, "extra_body": extra}
        request["extra_headers"] = {"X-Session-Id": session}
        if stream:
            text = ""
            async for chunk in await client.chat.completions.create(stream=True, **request):
                reply_id = chunk.id
                text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        else:
            reply = await client.chat.completions.create(**request)
            reply_id, text = reply.id, reply.choices[0].message.content or ""
        ids.append(reply_id)
        words = (
            approval(rng, "held", draw_short(rng, "held").question) if follows_rule(text) else complaint(rng, "held")
        )
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": words}]
    return ids


async def call_tool(client: AsyncOpenAI, rng: random.Random, session: str) -> list[str]:
    """Offer a calculator, answer the call if one comes, and return the ids of the replies."""
    from word_problems.problems import draw_short

    from lab.tiny_models.episodes import CALCULATOR

    problem = draw_short(rng, "held")
    messages: list[Any] = [{"role": "user", "content": problem.question}]
    ids = []
    for _ in range(2):
        reply = await client.chat.completions.create(
            model="tiny",
            messages=messages,
            tools=[CALCULATOR],  # type: ignore[list-item]
            extra_headers={"X-Session-Id": session},
        )
        ids.append(reply.id)
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or []:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(problem.answer)})
        if not message.tool_calls:
            messages.append({"role": "user", "content": "Thanks!"})
    return ids
