"""The gateway's page of parameters names every parameter, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from openclaw.gateway.schema import IGNORED, ChatRequest


def test_parameters_are_documented(repository: Path) -> None:
    text = (repository / "openclaw/gateway/parameters.md").read_text().split("## Usage")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    documented = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert documented == ChatRequest.model_fields.keys() | IGNORED
