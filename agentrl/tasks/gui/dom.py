"""A page as text: its visible elements, numbered, for models without eyes and for oracles.

An element is listed if it takes input, has text of its own, or is a visible shape without children. ``element`` of an
action names its number (`agentrl.tasks.gui.actions`). Guarantee: what is listed is what a person sees of the page; hidden
elements, scripts and their data are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.exceptions import InvalidError
from agentrl.tasks.gui.browser.interface import Page, Screen

MAX_ELEMENTS = 200
MAX_CHARACTERS = 120
READ = """(() => {
  const found = [], most = %d, width = %d, height = %d;
  const hidden = new Set(%s);
  const takesInput = e => /^(a|button|input|textarea|select|option|label|summary)$/i.test(e.tagName)
      || e.hasAttribute('onclick') || e.hasAttribute('role') || e.hasAttribute('tabindex') || e.isContentEditable;
  const own = e => [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join(' ').replace(/\\s+/g, ' ').trim();
  const named = e => e.getAttribute('aria-label') || (e.labels && e.labels[0] && e.labels[0].textContent.trim())
      || e.getAttribute('placeholder') || e.getAttribute('title') || e.getAttribute('alt') || '';
  const walk = e => {
    if (found.length >= most || hidden.has(e.id) || /^(script|style|head|defs|noscript|template)$/i.test(e.tagName)) return;
    const style = getComputedStyle(e), box = e.getBoundingClientRect();
    if (style.display === 'none' || Number(style.opacity) === 0) return;
    const seen = style.visibility !== 'hidden' && box.width > 0 && box.height > 0
        && box.bottom > 0 && box.right > 0 && box.top < height && box.left < width;
    const text = own(e), leaf = e.children.length === 0;
    if (seen && (takesInput(e) || text || (leaf && e !== document.body))) {
      const input = e instanceof HTMLInputElement;
      const item = {tag: e.tagName.toLowerCase() + (input ? '(' + e.type + ')' : ''), text: text || (takesInput(e) && !leaf
          ? e.textContent.replace(/\\s+/g, ' ').trim() : ''), name: named(e), x: box.left + box.width / 2,
          y: box.top + box.height / 2, left: box.left, top: box.top, width: box.width, height: box.height, states: []};
      const kinds = [e.id, ...(typeof e.className === 'string' ? e.className : e.className.baseVal).split(/\\s+/)];
      item.hint = kinds.filter(k => k).join(' ');
      if (!text && leaf && !input) item.color = e instanceof SVGElement ? e.getAttribute('fill') || '' : style.backgroundColor;
      if (input && /^(checkbox|radio)$/.test(e.type)) { if (e.checked) item.states.push('checked'); }
      else if ('value' in e && /^(input|textarea|select)$/i.test(e.tagName)) item.value = String(e.value);
      if (e.disabled) item.states.push('disabled');
      if (document.activeElement === e && e !== document.body) item.states.push('focused');
      found.push(item);
    }
    for (const child of e.children) walk(child);
  };
  walk(document.body);
  return found;
})()"""


@dataclass(frozen=True)
class Element:
    """One visible element; lengths in CSS pixels.

    Attributes:
        tag: such as ``button`` or ``input(text)``.
        text: of its own.
        name: its label or placeholder.
        hint: its id and classes.
        value: of a field; None for other elements.
        states: such as ``checked``.
        color: of a shape without text.
        x: of its middle, and ``y``.
        box: left, top, width, height.
    """

    tag: str
    text: str
    name: str
    hint: str
    value: str | None
    states: tuple[str, ...]
    color: str
    x: float
    y: float
    box: tuple[float, float, float, float]


async def elements(page: Page, screen: Screen, hidden: Sequence[str] = ()) -> list[Element]:
    """Return the elements on a screen, in the order of the document; ``hidden`` are ids to leave out."""
    asked = READ % (MAX_ELEMENTS, screen.width, screen.height, list(hidden))
    read: list[dict[str, Any]] = await page.evaluate(asked)
    return [element_of(item) for item in read]


def element_of(item: Mapping[str, Any]) -> Element:
    """Return the element that a program on the screen describes."""
    return Element(
        item["tag"],
        item["text"],
        item["name"],
        item["hint"],
        item.get("value"),
        tuple(item["states"]),
        item.get("color", ""),
        item["x"],
        item["y"],
        (item["left"], item["top"], item["width"], item["height"]),
    )


def numbered(found: Sequence[Element], number: int) -> Element:
    """Return the element that `as_text` gives a number.

    Raises:
        InvalidError: there is none.
    """
    if number > len(found):
        raise InvalidError(f"there is no element {number}; the screen has {len(found)}", code="no_element")
    return found[number - 1]


def as_text(found: Sequence[Element]) -> str:
    """Return the elements as lines, ``[NUMBER] tag "text"`` and what else is known of them."""
    lines: list[str] = []
    for number, item in enumerate(found, start=1):
        parts = [f"[{number}] {item.tag}"]
        parts += [f'"{_short(item.text)}"'] if item.text else []
        parts += [f'named "{_short(item.name)}"'] if item.name else []
        parts += [f'value "{_short(item.value)}"'] if item.value is not None else []
        parts += [f"color {item.color}"] if item.color else []
        parts += [f"({_short(item.hint)})"] if item.hint and not item.text else []
        lines.append(" ".join([*parts, *item.states]))
    return "\n".join(lines) or "(nothing is visible)"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= MAX_CHARACTERS else f"{flat[: MAX_CHARACTERS - 3]}..."
