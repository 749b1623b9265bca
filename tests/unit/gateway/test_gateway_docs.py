"""The gateway's page of parameters names every parameter, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from openclaw.gateway.dialects.responses import ResponseRequest
from openclaw.gateway.dialects.text_completions import CompletionRequest
from openclaw.gateway.schema import IGNORED, ChatRequest


def test_parameters_are_documented(repository: Path) -> None:
    text = (repository / "openclaw/gateway/parameters.md").read_text().split("## Usage")[0]
    assert documented(text) == ChatRequest.model_fields.keys() | IGNORED
    page = (repository / "openclaw/gateway/text_completions.md").read_text()
    assert documented(page) == CompletionRequest.model_fields.keys()


def test_parameters_of_responses_are_documented(repository: Path) -> None:
    text = (repository / "openclaw/gateway/responses.md").read_text().split("## Stored responses")[0]
    assert documented(text) == ResponseRequest.model_fields.keys()


def documented(text: str) -> set[str]:
    """The parameters in the first column of the tables in ``text``."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
