"""Renders what a view found as a page. Guarantees: every text is escaped, and has no control character; no inline script, no inline style."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from openclaw.gateway.window_views import LOG_OUT, SCRIPT, STYLE, WINDOW, Asked
from openclaw.messages.preview import harmless, preview, shown_time
from openclaw.window.lanes import draw_lanes

PACKAGE = "openclaw.window"


def render(
    asked: Asked, titles: Mapping[str, str], template: str, found: Mapping[str, Any], revision: str | None
) -> bytes:
    """Return the page of what a view found.

    Args:
        asked: the look.
        titles: of the views that the page leads to, by name.
        template: of the view.
        found: its values.
        revision: of the values, for a page that is kept up to date.
    """
    page = _environment().get_template(f"{template}.html.jinja")
    links = {"window": WINDOW, "style": STYLE, "script": SCRIPT, "log_out": LOG_OUT}
    return page.render(asked=asked, titles=titles, links=links, template=template, revision=revision, **found).encode(
        errors="replace"
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clock": shown_time,
        "share": _share,
        "signed": _signed,
        "thousands": "{:,}".format,
        "dollars": "{:,.4f}".format,
        "lasting": _lasting,
        "preview": preview,
    }
    environment.globals |= {"address": _address, "draw_lanes": draw_lanes}
    return environment


def _address(view: str, **words: Any) -> str:
    """Return the address of a view; words that are None are left out."""
    query = urlencode({name: word for name, word in words.items() if word is not None})
    return f"{WINDOW}/{view}" + (f"?{query}" if query else "")


def _plain(value: Any) -> Any:
    return harmless(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _lasting(seconds: float) -> str:
    """Return a length of time as people say it."""
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


def _signed(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:+.{digits}f}" if value else "0"
