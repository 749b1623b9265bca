"""Names of keys, and what the DevTools protocol and pyautogui call them.

`key_of` takes the names of both, and of xdotool, in any case. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Key:
    """One key of a keyboard of the United States.

    Attributes:
        key: the value of a DOM event's ``key``.
        code: its physical place, a DOM event's ``code``.
        number: Windows' virtual key code.
        text: that it types; empty for none.
        modifier: its bit among the protocol's modifiers, or 0.
        pyautogui: its name there.
    """

    key: str
    code: str
    number: int
    text: str = ""
    modifier: int = 0
    pyautogui: str = ""


def _named() -> dict[str, Key]:
    keys: dict[str, Key] = {}

    def add(names: str, key: str, number: int, *, code: str = "", text: str = "", modifier: int = 0) -> None:
        first, *others = names.split()
        for name in (first, *others):
            keys[name] = Key(key, code or key, number, text, modifier, first)

    add("enter return kp_enter", "Enter", 13, text="\r")
    add("tab", "Tab", 9)
    add("backspace", "Backspace", 8)
    add("delete del", "Delete", 46)
    add("esc escape", "Escape", 27)
    add("space spacebar", " ", 32, code="Space", text=" ")
    add("insert ins", "Insert", 45)
    add("home", "Home", 36)
    add("end", "End", 35)
    add("pageup page_up pgup prior", "PageUp", 33)
    add("pagedown page_down pgdn next", "PageDown", 34)
    for name, number in (("left", 37), ("up", 38), ("right", 39), ("down", 40)):
        add(f"{name} arrow{name} arrow_{name}", f"Arrow{name.title()}", number)
    add("ctrl control ctrlleft control_l", "Control", 17, code="ControlLeft", modifier=2)
    add("shift shiftleft shift_l", "Shift", 16, code="ShiftLeft", modifier=8)
    add("alt option altleft alt_l", "Alt", 18, code="AltLeft", modifier=1)
    add("win meta super cmd command winleft super_l", "Meta", 91, code="MetaLeft", modifier=4)
    add("capslock caps_lock", "CapsLock", 20)
    for number in range(1, 13):
        add(f"f{number}", f"F{number}", 111 + number)
    return keys


NAMED = _named()
PUNCTUATION = {
    **{";": ("Semicolon", 186), "=": ("Equal", 187), ",": ("Comma", 188), "-": ("Minus", 189), ".": ("Period", 190)},
    **{"/": ("Slash", 191), "`": ("Backquote", 192), "[": ("BracketLeft", 219), "\\": ("Backslash", 220)},
    **{"]": ("BracketRight", 221), "'": ("Quote", 222)},
}
SHIFTED = dict(zip('~!@#$%^&*()_+{}|:"<>?', "`1234567890-=[]\\;',./", strict=True))


def key_of(name: str) -> Key | None:
    """Return the key of a name or of a printable character; None if there is none."""
    if named := NAMED.get(name.lower()):
        return named
    if len(name) != 1 or not name.isprintable():
        return None
    if name == " ":
        return NAMED["space"]
    base = SHIFTED.get(name, name.lower())
    if base.isascii() and base.isalpha():
        return Key(name, f"Key{base.upper()}", ord(base.upper()), name, 0, name.lower())
    if base.isascii() and base.isdigit():
        return Key(name, f"Digit{base}", ord(base), name, 0, name)
    if base in PUNCTUATION:
        code, number = PUNCTUATION[base]
        return Key(name, code, number, name, 0, name)
    return Key(name, "", 0, name, 0, name)


def needs_shift(character: str) -> bool:
    """Return whether a character is typed with the shift key."""
    return character in SHIFTED or (character.isascii() and character.isupper())
