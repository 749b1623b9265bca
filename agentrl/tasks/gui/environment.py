"""What all screen tasks share: a task begins, the agent looks and acts, a judge of the task's own decides.

Guarantees: a reset is verified, by the task's own check and by a picture of the right size with more than one colour; one
that fails is an InfraError, and nothing of it can be judged. After an InfraError the episode cannot go on and cannot be
judged. Every action is read strictly (`agentrl.tasks.gui.actions`).

A recording has what a person looks at: each episode has a folder of its own, which nobody removes or writes twice. The files hold no picture as text.
Only this user can read them. `agentrl.rollout.records` has the tokens; this is what a person looks at.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import secrets
import time
from abc import abstractmethod
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentrl.environment import Environment, Task
from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes import Processes
from agentrl.protocol import JsonObject, Observation, StepResult, Verdict
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.tasks.gui.actions import MOST_WAIT_S, Action, read_call
from agentrl.tasks.gui.computer import Computer, Look
from agentrl.tasks.gui.coordinates import on_screen
from agentrl.tasks.gui.settings import GuiSettings
from agentrl.tasks.gui.tool import SYSTEM, computer_use
from groundwork.private_files import private, private_folder

UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
FRAME_MS = 700
STEP_S = MOST_WAIT_S + 120.0
"""Longest time of a step; a computer that still owes an answer has failed."""


class Recording:
    """One episode's folder."""

    def __init__(self, folder: str, task_id: str, instruction: str, *, video: bool) -> None:
        """Make the folder below ``folder``."""
        name = f"{UNSAFE.sub('-', task_id)}-{secrets.token_hex(4)}"
        self.folder = Path(folder) / name
        private_folder(self.folder)
        self._video = video
        self._frames: list[Path] = []
        self._record: dict[str, Any] = {"task_id": task_id, "instruction": instruction, "steps": []}

    def add(self, action: Action | None, look: Look) -> None:
        """Add what the screen showed after an action; None stands for the reset."""
        steps: list[dict[str, Any]] = self._record["steps"]
        step: dict[str, Any] = {"step_num": len(steps), "time": round(time.time(), 3)}
        step["action"] = None if action is None else {key: value for key, value in asdict(action).items() if value}
        if look.png is not None:
            path = self.folder / f"step_{len(steps)}.png"
            self._write(path, look.png)
            self._frames.append(path)
            step["screenshot_file"] = path.name
        if look.text:
            step["text"] = look.text
        steps.append(step)
        self._save()

    def close(self, verdict: Verdict) -> None:
        """Add the verdict, and the animation."""
        self._record["verdict"] = verdict.model_dump()
        self._save()
        if self._video and self._frames:
            from PIL import Image

            first, *rest = (Image.open(path).convert("RGB") for path in self._frames)
            made = self.folder / "recording.gif"
            self._write(made, b"")
            first.save(made, save_all=True, append_images=rest, duration=FRAME_MS, loop=0)

    def _save(self) -> None:
        self._write(self.folder / "trajectory.json", json.dumps(self._record, ensure_ascii=False, indent=1).encode())

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        with open(path, "wb", opener=private) as file:
            file.write(data)


class GuiEnvironment(Environment):
    """A subclass says how a task begins, whether it is over and how it is judged."""

    provider = Bubblewrap()

    def __init__(self, processes: Processes) -> None:
        super().__init__(processes)
        self.settings = GuiSettings.from_env()
        self.status: str | None = None
        """What the agent said when it ended the task."""
        self._ready = False
        self._computer: Computer | None = None
        self._recording: Recording | None = None

    @abstractmethod
    async def begin(self, task: Task, seed: int) -> tuple[Computer, str]:
        """Start a task from the beginning; return its computer and instruction.

        Raises:
            InfraError: it does not start as it should.
        """

    @abstractmethod
    async def over(self) -> bool:
        """Return whether the task has ended by itself."""

    @abstractmethod
    async def judge(self) -> Verdict:
        """Judge what the agent did."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the task, and look whether that worked."""
        self._ready, self.status = False, None
        self._computer, instruction = await self.begin(task, seed)
        await asyncio.sleep(self.settings.reset_wait_seconds)
        look = await self._look(verify=True)
        if self.settings.result_dir:
            self._recording = Recording(self.settings.result_dir, task.id, instruction, video=self.settings.video)
            self._recording.add(None, look)
        self._ready = True
        tool = computer_use(self.settings.coordinates, self._computer.picture, elements=self.settings.text)
        data: JsonObject = {"system": SYSTEM, "tools": [tool], "actions": "computer_use", "step_seconds": STEP_S}
        return self._seen(look, f"Task: {instruction}", data)

    async def step(self, action: JsonObject) -> StepResult:
        """Act once, and look.

        Raises:
            InvalidError: the action makes no sense; the screen is as it was.
            InfraError: the computer is gone.
        """
        self._begun()
        read = read_call(action)
        try:
            if read.name == "terminate":
                self.status = read.status
                if self._recording:
                    self._recording.add(read, Look(None))
                return StepResult(observation=Observation(text="The task has ended."), done=True)
            await self._act(read)
            look = await self._look()
            done = await self.over()
        except InvalidError:
            raise
        except BaseException:
            self._ready = False
            raise
        if self._recording:
            self._recording.add(read, look)
        return StepResult(observation=self._seen(look, "", {}), done=done)

    async def evaluate(self) -> Verdict:
        """Judge the episode.

        Raises:
            InfraError: the reset or a step failed, or the computer is gone.
        """
        self._begun()
        verdict = await self.judge()
        if self._recording:
            await asyncio.to_thread(self._recording.close, verdict)
            self._recording = None
        return verdict

    def _begun(self) -> None:
        if not self._ready:
            raise InfraError("the episode has not begun, or is broken; reset it first", code="not_begun")

    async def _act(self, action: Action) -> None:
        computer = self._computer
        assert computer is not None
        if action.element is not None and not self.settings.text:
            raise InvalidError("elements have no numbers here; give a coordinate", code="invalid_action")
        point, start = (
            None if item is None else on_screen(item, self.settings.coordinates, computer.picture, computer.size)
            for item in (action.point, action.start)
        )
        await computer.act(action, point, start)
        await asyncio.sleep(self.settings.sleep_seconds)

    async def _look(self, *, verify: bool = False) -> Look:
        computer = self._computer
        assert computer is not None
        look = await computer.look(png=verify or self.settings.pictures, text=self.settings.text)
        if verify:
            check_picture(look.png or b"", computer.picture)
        return look

    def _seen(self, look: Look, before: str, data: JsonObject) -> Observation:
        text = listed(look.text) if self.settings.text else ""
        pictures = (base64.b64encode(look.png).decode(),) if self.settings.pictures and look.png else ()
        return Observation(text="\n\n".join(filter(None, [before, text])), images=pictures, data=data)


def listed(elements: str) -> str:
    """Return what the agent reads of a page."""
    return f"Elements on the screen:\n{elements}"


def check_picture(png: bytes, size: tuple[int, int]) -> None:
    """Refuse the picture of a screen that has not started.

    Raises:
        InfraError: it is not a picture, has another size, or one colour only.
    """
    from PIL import Image

    try:
        picture = Image.open(io.BytesIO(png))
        picture.load()
    except (OSError, SyntaxError) as error:
        raise InfraError("the reset failed: the screen gives no picture", code="reset_failed") from error
    if picture.size != size:
        raise InfraError(f"the reset failed: the picture has {picture.size} pixels, not {size}", code="reset_failed")
    if picture.convert("RGB").getcolors(maxcolors=1):
        raise InfraError("the reset failed: the screen is blank", code="reset_failed")
