"""The promises of the interface, kept by a real sandbox of bubblewrap; see tests/unit/agentrl for the other providers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.interface import Sandbox
from tests.helpers.sandbox_cases import CASES, SPEC, Case
from tests.helpers.sandboxes import REASON, groups_of, installed, sandbox

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not installed(REPOSITORY), reason=REASON)


@pytest.fixture(scope="module")
def provider() -> Bubblewrap:
    return Bubblewrap()


@pytest.fixture
async def box(provider: Bubblewrap, tmp_path: Path) -> AsyncIterator[Sandbox]:
    """Return a sandbox; no control group of it is left in the end."""
    before = groups_of(provider, os.getpid())
    async with sandbox(provider, tmp_path, SPEC) as started:
        yield started
    assert groups_of(provider, os.getpid()) <= before


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_a_promise_holds(box: Sandbox, case: Case) -> None:
    await case(box)
