"""A desktop of its own: Xvfb, one program on it, and pyautogui as its mouse, keyboard and camera.

``screen.py SETTINGS`` reads an order for each line of stdin, and answers it with a line of JSON: ``{"png": ..., "state": ...}``.
Guarantees: the display lies in the sandbox, which shows no other one. An answer comes after the program has seen the order's
events and drawn what they change. Whatever fails ends this process with a line on stderr, and the display with it.
"""

from __future__ import annotations

import base64
import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NoReturn

LEFT_OVER = 8
"""Keycodes below are no keys."""


def fail(message: str) -> NoReturn:
    """End with a message."""
    print(message, file=sys.stderr, flush=True)
    sys.exit(1)


def start_display(width: int, height: int) -> subprocess.Popen[bytes]:
    """Start Xvfb on a free display; return its process, and set DISPLAY."""
    ours, theirs = os.pipe()
    size = ["-screen", "0", f"{width}x{height}x24", "-dpi", "96"]
    command = ["Xvfb", "-displayfd", str(theirs), *size, "-nolisten", "tcp", "-noreset", "-extension", "GLX"]
    try:
        display = subprocess.Popen(command, pass_fds=[theirs], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    except FileNotFoundError:
        fail("there is no Xvfb; install it with scripts/setup_desktop.sh")
    os.close(theirs)
    with os.fdopen(ours) as said:
        number = said.readline().strip()
    if not number:
        fail("Xvfb did not start; its words are above")
    os.environ["DISPLAY"] = f":{number}"
    return display


def load_hands() -> Any:
    """Return pyautogui on this display, with pictures that need no further program."""
    hands, pictures = (importlib.import_module(name) for name in ("pyautogui", "pyscreeze"))
    # pyscreeze then lets Pillow read the display, which it does itself; else it would start the program of a whole desktop.
    vars(pictures)["GNOMESCREENSHOT_EXISTS"] = True
    return hands


class Program:
    """The program on the display: each line that it reads is answered with its state."""

    def __init__(self, argv: list[str]) -> None:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        self.asks, self.answers = process.stdin, process.stdout

    def state(self) -> dict[str, Any]:
        """Return the state, once the program has seen every event and has drawn."""
        try:
            self.asks.write(b"\n")
            self.asks.flush()
            line = self.answers.readline()
        except OSError:
            line = b""
        if not line:
            fail("the program on the desktop has ended; its words are above")
        return json.loads(line)


class OtherKeys:
    """Types characters that no key of the display has, by giving them a free one."""

    def __init__(self, hands: Any, settle: Callable[[], object]) -> None:
        self.hands = hands
        self.settle = settle
        self.display = hands.platformModule._display
        codes = self.display.display.info.min_keycode, self.display.display.info.max_keycode
        table = self.display.get_keyboard_mapping(codes[0], codes[1] - codes[0] + 1)
        self.free = next(
            codes[0] + number for number, keys in enumerate(table) if not any(keys) and number >= LEFT_OVER
        )

    def type(self, text: str) -> None:
        """Type a text."""
        codes = self.hands.platformModule.keyboardMapping
        for character in text:
            if codes.get(character):
                self.hands.write(character)
                continue
            # Keysyms of Unicode: Latin-1 as it is, all else above a constant.
            sym = ord(character) if ord(character) < 0x100 else 0x1000000 + ord(character)
            self.display.change_keyboard_mapping(self.free, [(sym, sym)])
            self.display.sync()
            codes[character] = self.free
            self.hands.press(character)
            del codes[character]
            self.settle()  # a program that is behind would read the next character's key


def main() -> None:
    """Serve until the end of stdin."""
    settings = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else may write between the answers
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:0] = [here, settings["packages"]]
    display = start_display(settings["width"], settings["height"])
    try:
        program = Program(
            [sys.executable, "-I", "-S", "-B", os.path.join(here, settings["program"]), json.dumps(settings["window"])]
        )
        hands_module, hands = importlib.import_module("hands"), load_hands()
        hands_module.prepare(hands, pause=0.0)
        other = OtherKeys(hands, program.state)
        for line in sys.stdin:
            asked = json.loads(line)
            if asked["order"] is not None:
                hands_module.carry_out(asked["order"], hands, other.type, calm=0)
            answer = {"state": program.state(), "png": None}
            if asked["png"]:
                picture = io.BytesIO()
                hands.screenshot().save(picture, "PNG")
                answer["png"] = base64.b64encode(picture.getvalue()).decode()
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        display.kill()


if __name__ == "__main__":
    main()
