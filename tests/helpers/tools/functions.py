"""Functions for tools of kind ``python``."""

from __future__ import annotations

import os
import time


def weather(city: str) -> dict[str, str]:
    print("this is not shown")
    return {"city": city, "sky": "clear"}


def fail(city: str) -> str:
    raise LookupError(f"no {city}")


def hang(city: str) -> str:
    time.sleep(600)
    return city


def environment(city: str) -> list[str]:
    return sorted(os.environ)
