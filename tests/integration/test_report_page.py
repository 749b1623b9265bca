"""A real Chromium opens the report of a hostile conversation: nothing runs, and nothing is loaded."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from groundwork.private_files import write_output
from openclaw.ledger.records import Vote
from openclaw.report.build import build
from openclaw.runs.folder import open_run
from tests.helpers.made_runs import MadeRun
from tests.helpers.threaded_server import serving
from tests.security import chromium

MARK = "data-attacked"
SECONDS = 90


@pytest.fixture
def attackers_server() -> Iterator[tuple[str, list[str]]]:
    """A server that an attack may load from: its URL, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    with serving(Handler) as url:
        yield url, asked


def attack(url: str) -> str:
    """Return a text that runs a script and loads from ``url`` wherever it is not escaped."""
    script = f"document.documentElement.setAttribute('{MARK}', 1)"
    return (
        f'</div></style></title></svg>"><script>{script}</script><img src="{url}/image" onerror="{script}">'
        f'<svg onload="{script}"></svg><link rel="stylesheet" href="{url}/style"><style>@import "{url}/import";</style>'
    )


def opened(page: Path, folder: Path) -> str:
    """Return the page as Chromium has it after its scripts ran."""
    program = chromium.find()
    if program is None:
        pytest.skip(chromium.MISSING)
    command = [
        program,
        *chromium.FLAGS,
        f"--user-data-dir={folder}",
        "--virtual-time-budget=3000",
        "--dump-dom",
        page.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout


def root_of(shown: str) -> str:
    """Return the attributes of a page's root."""
    return shown.partition("<html")[2].partition(">")[0]


def test_a_hostile_conversation_does_nothing(tmp_path: Path, attackers_server: tuple[str, list[str]]) -> None:
    url, asked = attackers_server
    control = tmp_path / "control.html"
    control.write_text(f"<!doctype html><title>x</title><div>{attack(url)}</div>")
    assert MARK in root_of(opened(control, tmp_path / "profile"))
    assert {"/image", "/style"} <= set(asked), "the attack works where it is not escaped"
    asked.clear()
    run = MadeRun(tmp_path / "run", hf_checkpoint=attack(url))
    for _ in range(6):
        for score in (1, -1, 1, -1):
            words = [{"role": "user", "content": attack(url)}]
            turn_id = run.turn(messages=words, response_message={"role": "assistant", "content": attack(url)})
            run.judge(run.react(turn_id, words), score, votes=[Vote("prm", attack(url), score)], hint=attack(url))
        run.step()
    run.judge(run.react(run.turn()), None, reason=attack(url))
    run.ledger.judging.postpone(run.react(run.turn()), attack(url), run.now)
    page = tmp_path / "report.html"
    write_output(page, build(open_run(run.close())).page)
    shown = opened(page, tmp_path / "profile")
    assert "Is it learning?" in shown
    assert "&lt;script&gt;" in shown, "the attack is on the page, as text"
    assert MARK not in root_of(shown)
    assert asked == []


def test_the_policy_stops_what_would_not_be_escaped(tmp_path: Path, attackers_server: tuple[str, list[str]]) -> None:
    url, asked = attackers_server
    run = MadeRun(tmp_path / "run").healthy()
    page = build(open_run(run.close())).page
    target = tmp_path / "injected.html"
    write_output(target, page.replace("<h2>Faults</h2>", attack(url)))
    shown = opened(target, tmp_path / "profile")
    assert "<script>" in shown, "the attack is in the page"
    assert MARK not in root_of(shown)
    assert asked == []
