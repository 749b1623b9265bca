"""The families of generated repositories by name: three for each kind of mistake, in the order of the kinds, and easy ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType

from agentrl.tasks.swe.draft import Draft
from agentrl.tasks.swe.families.accounts import accounts
from agentrl.tasks.swe.families.caches import caches
from agentrl.tasks.swe.families.durations import durations
from agentrl.tasks.swe.families.easy import calls, defaults, limits
from agentrl.tasks.swe.families.events import events
from agentrl.tasks.swe.families.groups import groups
from agentrl.tasks.swe.families.names import names
from agentrl.tasks.swe.families.once import once
from agentrl.tasks.swe.families.pages import pages
from agentrl.tasks.swe.families.reports import reports
from agentrl.tasks.swe.families.settings import settings
from agentrl.tasks.swe.families.spans import spans
from agentrl.tasks.swe.families.tallies import tallies
from agentrl.tasks.swe.families.versions import versions
from agentrl.tasks.swe.families.windows import windows
from agentrl.tasks.swe.families.workers import workers

Families = Mapping[str, Callable[[Random], Draft]]
FAMILIES: Families = MappingProxyType(
    {
        family.__name__: family
        for family in (
            *(pages, spans, windows),
            *(names, groups, reports),
            *(caches, accounts, events),
            *(tallies, once, workers),
            *(settings, durations, versions),
        )
    }
)
EASY: Families = MappingProxyType({family.__name__: family for family in (limits, defaults, calls)})
"""One command mends them, so that a tiny model can learn something."""
