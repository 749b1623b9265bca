"""The plugins to test: of ``--plugin-<option> path``, of ``SLIME_CONTRACT_<OPTION>``, or the ones of this repository."""

from __future__ import annotations

import os
import shlex

import pytest

from slime.contract.clauses import KINDS
from tests.helpers.contract_plugins import ARGUMENTS, OWN, named


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare ``--plugin-custom-loss-function-path`` and so on."""
    group = parser.getgroup("plugins under contract")
    for kind in KINDS.values():
        group.addoption(f"--plugin-{kind.flag[2:]}", metavar="PATH", help=f"the plugin of {kind.flag} to test")


@pytest.fixture
def plugin(request: pytest.FixtureRequest) -> tuple[str, str, list[str]]:
    """Kind, path and further flags of the trainer; a kind that is not asked for is skipped when another is."""
    kind = request.param
    path = named(request.config, kind)
    if path is None and any(named(request.config, other) for other in KINDS):
        pytest.skip(f"no {KINDS[kind].flag} is named")
    return kind, path or OWN[kind], shlex.split(os.environ.get(ARGUMENTS, ""))
