"""What tells an open page that it has changed: the page's own values alone, and looks that cost little."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lab.testkit.ledger_records import make_turn
from openclaw.gateway.window_views import Asked
from openclaw.ledger.store import Ledger
from openclaw.owners import root, stored_id
from openclaw.window import views
from openclaw.window.changes import BATCH_SECONDS, RENEW_SECONDS, SHARE, Changes
from openclaw.window.views import VIEWS, Window, open_window
from tests.helpers.made_runs import MadeRun


def page(view: str, owner: str | None, **words: str) -> Asked:
    return Asked(view, words, "page", owner or "root", owner, root(owner or ""), logged_in=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run in which alice and bob have talked."""
    run = MadeRun(tmp_path / "run").healthy(2)
    for person in ("alice", "bob"):
        run.talk(1, session_id=stored_id(person, "talk"))
    return run.close()


@pytest.fixture
def window(folder: Path) -> Iterator[Window]:
    window = open_window(str(folder / "ledger.sqlite"), str(folder))
    yield window
    window.ledger.close()


def say(folder: Path, person: str, turn: str) -> None:
    """Record a turn as another process does."""
    with closing(Ledger(folder / "ledger.sqlite")) as ledger:
        ledger.turns.record(make_turn(turn, session_id=stored_id(person, "talk"), created_at=1.8e9, finished_at=1.8e9))


def test_nobody_learns_that_somebody_else_talks(folder: Path, window: Window) -> None:
    looks = [page(view, "alice") for view in VIEWS if VIEWS[view].in_menu]
    looks.append(page("conversation", "alice", id=stored_id("alice", "talk")))
    before = [window.revision(look) for look in looks]
    mark = window.mark()
    say(folder, "bob", "of-bob")
    assert window.mark() != mark
    assert [window.revision(look) for look in looks] == before
    everybody = window.revision(page("conversations", None))
    say(folder, "alice", "of-alice")
    changed = {look.view for look, old in zip(looks, before, strict=True) if window.revision(look) != old}
    assert {"conversations", "conversation", "machine"} <= changed
    assert window.revision(page("conversations", None)) != everybody


def test_a_page_carries_the_revision_of_what_it_shows(window: Window) -> None:
    for view, words in (("mine", {}), ("chat", {}), ("queue", {}), ("health", {})):
        look = page(view, "alice", **words)
        [shown] = re.findall(r'data-revision="(\w+)"', window.show(look).decode())
        assert shown == window.revision(look), view
    assert b"data-revision" not in window.show(page("health", None, doctor="1")), "nobody asks the doctor every second"
    assert window.revision(page("turn", "alice", id="of-nobody")) == "gone"


class Slow:
    """A window whose looks take time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 100.0
        self.version = 0
        self.looks: list[str] = []

    def mark(self) -> object:
        return self.version

    def revision(self, asked: Asked) -> str:
        self.now += self.seconds
        self.looks.append(asked.view)
        return f"{asked.view} {self.version}"


def test_nothing_is_read_again_while_nothing_has_changed() -> None:
    slow = Slow(0.0)
    changes = Changes(slow, lambda: slow.now)  # type: ignore[arg-type]
    looks = [page("mine", "alice"), page("mine", "bob"), page("queue", None)]
    assert changes.revisions(looks) == ["mine 0", "mine 0", "queue 0"]
    slow.now += 1
    assert changes.revisions(looks) == ["mine 0", "mine 0", "queue 0"]
    assert len(slow.looks) == 3
    slow.version = 1
    slow.now += 1
    assert changes.revisions(looks) == ["mine 1", "mine 1", "queue 1"]
    slow.now += RENEW_SECONDS
    changes.revisions(looks)
    assert len(slow.looks) == 9, "some files are no part of the mark"


def test_a_page_that_fails_is_unknown_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Slow):
        def revision(self, asked: Asked) -> str:
            if asked.view == "mine":
                raise OSError("the book is gone")
            return super().revision(asked)

    broken = Broken(0.0)
    changes = Changes(broken, lambda: broken.now)  # type: ignore[arg-type]
    looks = [page("mine", "alice"), page("queue", None)]
    for broken.version in range(3):
        assert changes.revisions(looks) == [None, f"queue {broken.version}"]
        broken.now += 1
    assert caplog.text.count("nobody knows what the page mine shows") == 1


def test_looks_take_a_share_of_the_time_and_each_page_gets_some() -> None:
    slow = Slow(BATCH_SECONDS * 0.7)
    changes = Changes(slow, lambda: slow.now)  # type: ignore[arg-type]
    looks = [page(str(number), None) for number in range(6)]
    rounds, started = 300, slow.now
    for slow.version in range(rounds):
        found = changes.revisions(looks)
        assert {each for each in found if each is not None} <= {f"{look.view} {slow.version}" for look in looks}
        slow.now += 1.0
    assert len(slow.looks) * slow.seconds <= SHARE * (slow.now - started) + 2 * slow.seconds
    counts = [slow.looks.count(look.view) for look in looks]
    assert min(counts) >= max(counts) - 1 > 5


def test_lanes_of_a_short_run_begin_with_it(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "short")
    for _ in range(4):
        run.talk(1, seconds=60.0)
    folder = run.close()
    window = open_window(str(folder / "ledger.sqlite"), str(folder))
    found = window.machine(page("machine", None))
    assert found["until"] - found["since"] == pytest.approx(182.5, abs=1.0), "from the first turn's begin"
    assert found["minutes"] == 60
    window.ledger.close()
    assert views.LEAST_SECONDS == 60.0
