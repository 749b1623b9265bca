"""The generated tasks of the desktop: what the window shows, what the agent is asked to do, and what then must hold.

A task's name is ``desktop/FAMILY/SPLIT/NUMBER``; see `agentrl.tasks.names`. Guarantees: a name always gives the same task. What a
held-out task asks to type, to switch, to choose or to move is in no task for training. The window begins in another state than
the goal. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from pydantic import JsonValue

from agentrl.protocol import JsonObject, Verdict
from agentrl.tasks.names import Split, known_parts, random_of

TASKS_PER_FAMILY: dict[Split, int] = {"train": 200, "heldout": 20}
HELD_OUT_ONE_OF = 5
"""Of every list of words one of so many is held out."""
PEOPLE = (
    *(
        "Ada Lind",
        "Bo Karlsen",
        "Cleo Marsh",
        "Dev Anand",
        "Eva Novak",
        "Finn O'Hara",
        "Gita Rao",
        "Hugo Prat",
        "Iris Wong",
    ),
    *("Jan de Wit", "Kira Blum", "Leo Santos", "Mona Fahmy", "Nils Berg", "Olga Petrova", "Paul Mensah", "Quinn Abbot"),
    *("Rosa Diaz", "Sami Toivo", "Tara Singh"),
)
PLACES = (
    *("Oslo", "Lima", "Porto", "Kyoto", "Accra", "Bergen", "Cork", "Davos", "Essen", "Fargo", "Graz", "Hilo", "Izmir"),
    *("Jena", "Kiel", "Lyon", "Malmo", "Nice", "Omaha", "Perth"),
)
SWITCHES = (
    *(
        "Wi-Fi",
        "Bluetooth",
        "Dark mode",
        "Updates",
        "Location",
        "Sounds",
        "Backups",
        "Spell check",
        "Sharing",
        "Autosave",
    ),
    *(
        "Previews",
        "Reminders",
        "Captions",
        "Night light",
        "Mirroring",
        "Sync",
        "Badges",
        "Hot keys",
        "Animations",
        "Telemetry",
    ),
)
SIZES = ("Small", "Medium", "Large", "Huge", "Tiny", "Wide", "Narrow", "Tall", "Flat", "Square")
FILES = tuple(
    f"{word} {year}"
    for word in ("Report", "Invoice", "Letter", "Budget", "Survey", "Minutes")
    for year in range(2011, 2026)
)
CARDS = (
    *(
        "apples",
        "bread",
        "candles",
        "dates",
        "eggs",
        "flour",
        "grapes",
        "honey",
        "ink",
        "jam",
        "kale",
        "lemons",
        "milk",
    ),
    *("nuts", "olives", "pears", "quinces", "rice", "salt", "tea"),
)
BOXES = ("Kitchen", "Cellar", "Office", "Garden", "Attic", "Garage", "Hall", "Shed", "Porch", "Studio")
NOTES = tuple(f"{what} {when}" for what in ("Call the bank", "Water the plants", "Send <draft> to Kim", "Pay 30% now & rest")
              for when in ("on Monday", "at 9:15", "before noon", "next week", "today!"))  # fmt: skip
FARTHEST = (200, 180)
"""Of a window from the screen's left and top, in pixels, so that every window is whole."""


@dataclass(frozen=True)
class WindowTask:
    """A task.

    Attributes:
        instruction: for the agent.
        window: as `agentrl.tasks.gui.inside.window` reads it.
        values: of all fields, when the task is done.
        button: that must have been pressed.
    """

    instruction: str
    window: JsonObject
    values: Mapping[str, Any]
    button: str

    def verdict(self, state: Mapping[str, Any]) -> Verdict:
        """Judge what a window says of itself: a score of 1 if every field is as it should be, and the button was pressed."""
        right = sum(state["values"].get(name) == value for name, value in self.values.items())
        checks = [*[True] * right, *[False] * (len(self.values) - right), state["pressed"] == self.button]
        solved = all(checks)
        pressed = f"{state['pressed']} was pressed" if state["pressed"] else "no button was pressed"
        return Verdict(
            status="ok" if solved else "task_failed",
            score=float(solved),
            detail=f"{right} of {len(self.values)} fields are right; {pressed}",
            passed=sum(checks),
            total=len(checks),
        )


class Words:
    """Random choices of a split's words."""

    def __init__(self, random: Random, split: Split) -> None:
        self.random, self.split = random, split

    def some(self, words: tuple[str, ...], count: int) -> list[str]:
        """Return different words of a list."""
        held_out = words[HELD_OUT_ONE_OF - 1 :: HELD_OUT_ONE_OF]
        own = held_out if self.split == "heldout" else [word for word in words if word not in held_out]
        return self.random.sample(own, count)

    def window(
        self, title: str, fields: list[JsonObject], buttons: list[str], shortcuts: JsonObject | None = None
    ) -> JsonObject:
        """Return a window somewhere on the screen."""
        self.random.shuffle(buttons)
        at: list[JsonValue] = [self.random.randrange(most) for most in FARTHEST]
        return {"title": title, "at": at, "fields": [*fields], "buttons": [*buttons], "shortcuts": shortcuts or {}}


def fill_form(words: Words) -> WindowTask:
    """Type into two of three fields, and save."""
    (person,), (place,) = words.some(PEOPLE, 1), words.some(PLACES, 1)
    asked = {"Name": person, "City": place}
    names = [*asked, "Phone"]
    words.random.shuffle(names)
    fields: list[JsonObject] = [{"kind": "entry", "name": name, "value": ""} for name in names]
    said = " and ".join(f'"{value}" as {name}' for name, value in asked.items())
    window = words.window("New contact", fields, ["Save", "Discard"])
    return WindowTask(f"Enter {said}, and press Save.", window, {"Phone": "", **asked}, "Save")


def change_settings(words: Words) -> WindowTask:
    """Switch two of four settings on, choose a size, and apply."""
    switches, sizes = words.some(SWITCHES, 4), words.some(SIZES, 2)
    on = words.random.sample(switches, 2)
    fields: list[JsonObject] = [{"kind": "check", "name": name, "value": False} for name in switches]
    fields += [{"kind": "choice", "name": "Size", "value": sizes[0], "options": [*words.random.sample(sizes, 2)]}]
    values = {**{name: name in on for name in switches}, "Size": sizes[1]}
    said = f'Switch "{on[0]}" and "{on[1]}" on, choose the size "{sizes[1]}", and press Apply.'
    return WindowTask(said, words.window("Settings", fields, ["Apply", "Cancel"]), values, "Apply")


def open_file(words: Words) -> WindowTask:
    """Scroll to a file in a list, select it, and open it."""
    files = sorted(words.some(FILES, 18))
    file = words.random.choice(files[8:])
    fields: list[JsonObject] = [{"kind": "list", "name": "File", "value": None, "options": [*files]}]
    window = words.window("Open a file", fields, ["Open", "Cancel"])
    return WindowTask(
        f'Select the file "{file}", and press Open. Scroll the list to find it.', window, {"File": file}, "Open"
    )


def sort_cards(words: Words) -> WindowTask:
    """Drag two of three cards into boxes."""
    cards, boxes = words.some(CARDS, 3), words.some(BOXES, 2)
    moved = dict(zip(cards[:2], words.random.sample(boxes, 2), strict=True))
    shown = words.random.sample(cards, 3)
    fields: list[JsonObject] = [{"kind": "board", "name": "Things", "value": [*shown], "options": [*boxes]}]
    said = " and ".join(f'"{card}" into "{box}"' for card, box in moved.items())
    values = {"Things": {card: moved.get(card) for card in shown}}
    return WindowTask(
        f"Drag {said}, and press Done.", words.window("Put things away", fields, ["Done"]), values, "Done"
    )


def write_note(words: Words) -> WindowTask:
    """Replace the text of a note, and save it with the keyboard."""
    old, new = words.some(NOTES, 2)
    fields: list[JsonObject] = [{"kind": "note", "name": "Note", "value": old}]
    window = words.window("Notes", fields, ["Close"], {"Control-s": "saved"})
    return WindowTask(
        f'Replace the text of the note by "{new}", and save it with ctrl and s.', window, {"Note": new}, "saved"
    )


FAMILIES: Mapping[str, Callable[[Words], WindowTask]] = {
    task.__name__: task for task in (fill_form, change_settings, open_file, sort_cards, write_note)
}


def families() -> tuple[str, ...]:
    """Return all families."""
    return tuple(FAMILIES)


def families_of(split: Split) -> list[str]:
    """Return the families that have tasks of a split: all of them."""
    return [*FAMILIES]


def task_name(family: str, split: Split, number: int) -> str:
    """Return the name of a task, such as ``desktop/fill_form/train/7``."""
    return f"desktop/{family}/{split}/{number}"


def window_task(name: str) -> WindowTask:
    """Return the task of a name.

    Raises:
        ConfigError: there is no such task.
    """
    family, split, number = known_parts("desktop", name, families_of)
    return FAMILIES[family](Words(random_of(family, split, number), split))
