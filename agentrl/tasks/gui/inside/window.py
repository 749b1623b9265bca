"""A window of fields and buttons: the program of the desktop tasks, ``window.py WINDOW``.

WINDOW is JSON: ``title``, ``at`` (x and y of the window), ``fields``, ``buttons`` and ``shortcuts`` (a key of Tk and the button
that it presses). A field has ``kind``, ``name``, ``value``, and ``options`` where it has some:

* ``entry`` and ``note``: a line, and several lines of text.
* ``check``: on or off. ``choice``: one of a few. ``list``: one of many, of which some are in sight.
* ``board``: cards that lie somewhere, ``value``, and the boxes that they can be dragged to, ``options``.

Each line of stdin is answered with a line of JSON: ``{"values": ..., "pressed": ..., "elements": ...}``. Guarantees: nothing changes
after a button was pressed; ``elements`` are what a person sees, in the terms of `agentrl.tasks.gui.dom`.
"""

from __future__ import annotations

import json
import sys
import tkinter
from collections.abc import Iterator
from tkinter import font
from typing import Any

WIDTH, ROWS_IN_SIGHT = 44, 6
CARD, BOX, GAP = (110, 34), (140, 90), 16
BACKGROUND, PAPER, INK, CARD_COLOR, BOX_COLOR = "#ececec", "#ffffff", "#202020", "#ffd97a", "#c9daf0"
EVENTS_IN_A_ROW = 4
"""An event may cause another one, such as the change of a focus; so often the window looks for more."""


class Field:
    """One field."""

    def __init__(self, place: tkinter.Frame, field: dict[str, Any]) -> None:
        self.name: str = field["name"]
        self.build(place, field)

    def build(self, place: tkinter.Frame, field: dict[str, Any]) -> None:
        """Make the widgets."""
        raise NotImplementedError

    @property
    def value(self) -> Any:
        """Return what the field holds."""
        raise NotImplementedError

    @property
    def elements(self) -> Iterator[dict[str, Any]]:
        """Yield what is seen of it."""
        raise NotImplementedError

    def element(self, widget: tkinter.Misc, tag: str, **more: Any) -> dict[str, Any]:
        """Return an element at a widget, or at ``box`` inside of it."""
        left, top, width, height = more.pop("box", (0, 0, widget.winfo_width(), widget.winfo_height()))
        left, top = left + widget.winfo_rootx(), top + widget.winfo_rooty()
        known = {
            "tag": tag,
            "text": "",
            "name": "",
            "hint": "",
            "states": [],
            "x": left + width / 2,
            "y": top + height / 2,
        }
        return {**known, "left": left, "top": top, "width": width, "height": height, **more}

    def label(self, place: tkinter.Frame) -> None:
        """Put the name beside the field."""
        tkinter.Label(place, text=self.name, anchor="ne", width=12, bg=BACKGROUND, fg=INK).pack(
            side="left", anchor="n", padx=6
        )


class Entry(Field):
    """A line of text."""

    def build(self, place: tkinter.Frame, field: dict[str, Any]) -> None:
        self.label(place)
        self.widget = tkinter.Entry(place, insertofftime=0, width=WIDTH - 16, bg=PAPER, fg=INK)
        self.widget.insert(0, field["value"])
        self.widget.pack(side="left")

    @property
    def value(self) -> Any:
        return self.widget.get()

    @property
    def elements(self) -> Iterator[dict[str, Any]]:
        states = ["focused"] if self.widget.focus_get() is self.widget else []
        yield self.element(self.widget, "input(text)", name=self.name, value=self.value, states=states)


class Note(Entry):
    """Several lines of text."""

    def build(self, place: tkinter.Frame, field: dict[str, Any]) -> None:
        self.label(place)
        self.widget = tkinter.Text(place, insertofftime=0, width=WIDTH - 16, height=5, bg=PAPER, fg=INK)
        self.widget.insert("1.0", field["value"])
        self.widget.pack(side="left")

    @property
    def value(self) -> Any:
        return self.widget.get("1.0", "end-1c")

    @property
    def elements(self) -> Iterator[dict[str, Any]]:
        for element in super().elements:
            yield {**element, "tag": "textarea"}


class Check(Field):
    """On or off."""

    def build(self, place: tkinter.Frame, field: dict[str, Any]) -> None:
        self.on = tkinter.BooleanVar(value=field["value"])
        self.widget = tkinter.Checkbutton(place, text=self.name, variable=self.on, bg=BACKGROUND, fg=INK)
        self.widget.pack(side="left", padx=90)

    @property
    def value(self) -> Any:
        return self.on.get()

    @property
    def elements(self) -> Iterator[dict[str, Any]]:
        yield self.element(self.widget, "input(checkbox)", name=self.name, states=["checked"] if self.value else [])


class Choice(Field):
    """One of a few."""

    def build(self, place: tkinter.Frame, field: dict[str, Any]) -> None:
        self.label(place)
        self.chosen = tkinter.StringVar(value=field["value"])
        self.widgets = {}
        for option in field["options"]:
            self.widgets[option] = tkinter.Radiobutton(
                place, text=option, value=option, variable=self.chosen, bg=BACKGROUND, fg=INK
            )
            self.widgets[option].pack(side="left")

    @property
    def value(self) -> Any:
        return self.chosen.get()

    @property
    def elements(self) -> Iterator[dict[str, Any]]:
        for option, widget in self.widgets.items():
            yield self.element(widget, "input(radio)", name=option, states=["checked"] if option == self.value else [])


class List(Field):
    """One of many."""

    def build(self, place: tkinter.Frame, field: dict[str, Any]) -> None:
        self.label(place)
        self.options = field["options"]
        self.widget = tkinter.Listbox(
            place, height=ROWS_IN_SIGHT, width=WIDTH - 18, exportselection=False, activestyle="none", bg=PAPER, fg=INK
        )
        bar = tkinter.Scrollbar(place, command=self.widget.yview)
        self.widget.config(yscrollcommand=bar.set)
        self.widget.insert("end", *self.options)
        self.widget.pack(side="left")
        bar.pack(side="left", fill="y")

    @property
    def value(self) -> Any:
        chosen = self.widget.curselection()
        return self.options[chosen[0]] if chosen else None

    @property
    def elements(self) -> Iterator[dict[str, Any]]:
        yield self.element(self.widget, "list", name=self.name)
        for number, option in enumerate(self.options):
            if box := self.widget.bbox(number):
                states = ["checked"] if option == self.value else []
                yield self.element(self.widget, "option", text=option, box=box, states=states)


class Board(Field):
    """Cards and boxes."""

    def build(self, place: tkinter.Frame, field: dict[str, Any]) -> None:
        boxes, cards = field["options"], field["value"]
        width = max(len(boxes) * (BOX[0] + GAP), len(cards) * (CARD[0] + GAP)) + GAP
        self.canvas = tkinter.Canvas(
            place, width=width, height=CARD[1] + BOX[1] + 3 * GAP, bg=PAPER, highlightthickness=0
        )
        self.canvas.pack(side="left", padx=6)
        self.boxes = {
            name: self.draw(name, number, BOX, CARD[1] + 2 * GAP, BOX_COLOR) for number, name in enumerate(boxes)
        }
        self.cards = {name: self.draw(name, number, CARD, GAP, CARD_COLOR) for number, name in enumerate(cards)}
        for name, (square, text) in self.cards.items():
            for item in (square, text):
                self.canvas.tag_bind(item, "<ButtonPress-1>", lambda event, name=name: self.take(name, event))
        self.canvas.bind("<B1-Motion>", self.move)
        self.canvas.bind("<ButtonRelease-1>", lambda event: self.take(None, event))
        self.held: str | None = None
        self.last = 0, 0

    def draw(self, name: str, number: int, size: tuple[int, int], top: int, color: str) -> tuple[int, int]:
        left = GAP + number * (size[0] + GAP)
        square = self.canvas.create_rectangle(left, top, left + size[0], top + size[1], fill=color, outline=INK)
        return square, self.canvas.create_text(left + size[0] / 2, top + 17, text=name, fill=INK)

    def take(self, name: str | None, event: Any) -> None:
        self.held, self.last = name, (event.x, event.y)
        for item in self.cards.get(name or "", ()):
            self.canvas.tag_raise(item)

    def move(self, event: Any) -> None:
        for item in self.cards.get(self.held or "", ()):
            self.canvas.move(item, event.x - self.last[0], event.y - self.last[1])
        self.last = event.x, event.y

    @property
    def value(self) -> Any:
        return {name: self.box_of(square) for name, (square, _) in self.cards.items()}

    def box_of(self, card: int) -> str | None:
        left, top, right, bottom = self.canvas.coords(card)
        x, y = (left + right) / 2, (top + bottom) / 2
        for name, (square, _) in self.boxes.items():
            left, top, right, bottom = self.canvas.coords(square)
            if left <= x <= right and top <= y <= bottom:
                return name
        return None

    @property
    def elements(self) -> Iterator[dict[str, Any]]:
        for tag, items in (("box", self.boxes), ("card", self.cards)):
            for name, (square, _) in items.items():
                left, top, right, bottom = self.canvas.coords(square)
                yield self.element(self.canvas, tag, text=name, box=(left, top, right - left, bottom - top))


KINDS = {"entry": Entry, "note": Note, "check": Check, "choice": Choice, "list": List, "board": Board}


class Window:
    """The window, and what was done in it."""

    def __init__(self, described: dict[str, Any]) -> None:
        self.root = tkinter.Tk()
        for name in ("TkDefaultFont", "TkTextFont"):
            font.nametofont(name, self.root).configure(family="DejaVu Sans", size=10)
        self.root.configure(bg=BACKGROUND, padx=8, pady=8)
        self.root.geometry("+{}+{}".format(*described["at"]))
        tkinter.Label(self.root, text=described["title"], bg=INK, fg=PAPER, anchor="w", padx=8).pack(
            fill="x", pady=(0, 10)
        )
        self.fields = [KINDS[field["kind"]](self.row(), field) for field in described["fields"]]
        row = self.row()
        self.buttons = {
            name: tkinter.Button(row, text=name, command=lambda name=name: self.press(name))
            for name in described["buttons"]
        }
        for button in self.buttons.values():
            button.pack(side="left", padx=8)
        for keys, name in described["shortcuts"].items():
            self.root.bind_all(f"<{keys}>", lambda _, name=name: self.press(name))
        self.root.event_delete("<<LineStart>>", "<Control-a>")
        self.root.event_add("<<SelectAll>>", "<Control-a>")
        self.done: dict[str, Any] | None = None
        self.root.createfilehandler(sys.stdin, tkinter.READABLE, lambda *_: self.answer())
        self.root.update()
        self.root.focus_force()

    def row(self) -> tkinter.Frame:
        """Return the place of the next field."""
        row = tkinter.Frame(self.root, bg=BACKGROUND)
        row.pack(fill="x", pady=5)
        return row

    def values(self) -> dict[str, Any]:
        """Return what the fields hold."""
        return {field.name: field.value for field in self.fields}

    def press(self, name: str) -> None:
        """Take the values as they are, and take no more."""
        if self.done is None:
            self.done = {"pressed": name, "values": self.values()}

    def settle(self) -> None:
        """Handle what has happened on the display, and wait until the display has drawn what that changes."""
        for _ in range(EVENTS_IN_A_ROW):
            self.root.winfo_pointerxy()  # its answer comes after all events before it
            self.root.update()
        self.root.winfo_pointerxy()

    def elements(self) -> Iterator[dict[str, Any]]:
        """Return what is seen."""
        for field in self.fields:
            yield from field.elements
        for name, button in self.buttons.items():
            yield self.fields[0].element(button, "button", text=name)

    def answer(self) -> None:
        """Answer a line of stdin; end with its end."""
        if not sys.stdin.readline():
            sys.exit(0)
        self.settle()
        state = self.done or {"pressed": None, "values": self.values()}
        print(json.dumps({**state, "elements": list(self.elements())}), flush=True)


if __name__ == "__main__":
    Window(json.loads(sys.argv[1])).root.mainloop()
