"""Recordings of episodes: a folder with a PNG of each look, ``trajectory.json``, and on wish an animation.

Guarantees: each episode has a folder of its own, which nobody removes or writes twice. The files hold no picture as text.
Only this user can read them. `agentrl.rollout.records` has the tokens; this is what a person looks at.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentrl.protocol import Verdict
from agentrl.tasks.gui.actions import Action
from agentrl.tasks.gui.computer import Look
from groundwork.private_files import private, private_folder

UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
FRAME_MS = 700


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
