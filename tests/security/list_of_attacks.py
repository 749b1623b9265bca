"""All attacks; importing their modules registers them."""

from __future__ import annotations

from tests.security import (
    hostile_connections,
    hostile_feedback,
    hostile_lessons,
    hostile_owners,
    hostile_pages,
    hostile_requests,
)
from tests.security.attack import ATTACKS

MODULES = (hostile_requests, hostile_connections, hostile_pages, hostile_owners, hostile_feedback, hostile_lessons)

__all__ = ["ATTACKS", "MODULES"]
