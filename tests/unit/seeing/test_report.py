"""The report of a run: what it says, that it holds nothing but text, and that it costs two scans."""

from __future__ import annotations

import base64
import hashlib
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.report import write_run
from groundwork.paused import pause
from groundwork.start_timeline import DRIVER, GATEWAY, Beginning, Event, Step
from openclaw.ledger.copying import copy_run
from openclaw.ledger.database import Database
from openclaw.ledger.records import Vote
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import GateDecision
from openclaw.report import build as build_module
from openclaw.report.__main__ import main
from openclaw.report.build import CANDIDATES, PAIRS, FirstReply, build
from openclaw.report.svg import MAX_POINTS, Chart, Line, draw, nice_ticks, thinned
from openclaw.runs.evidence import MIN_TURNS
from openclaw.runs.folder import open_run
from openclaw.runs.reasons import REASONS
from tests.helpers.made_runs import MadeRun

HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(1)>\"'><svg onload=alert(1)>{{ 7*7 }}{% raw %}\ud800\u202e&lt;"
CHECKED_ELSEWHERE = {"meta", "link", "br", "hr", "img", "input", "line", "polyline", "circle"}


class Elements(HTMLParser):
    """Collects the elements of a page with their attributes, its text, and what is not balanced."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in CHECKED_ELSEWHERE:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path / "run")


def learned(run: MadeRun) -> MadeRun:
    """Let first replies become better over nine updates."""
    for update in range(9):
        for number in range(6):
            run.talk(
                1 if number < 1 + update // 2 else -1,
                messages=[{"role": "user", "content": f"How much is {number} and {update} apples?"}],
            )
        run.step(**{"train/ppo_kl": 0.001 * update, "train/entropy_loss": 0.3, "eval/gsm": 0.5})
    return run


def page_of(run: MadeRun, *options: str) -> str:
    run.close()
    assert main([str(run.folder), *options]) == 0
    return (run.folder / "report.html").read_text(encoding="utf-8")


def test_the_report_of_a_run_that_learned(run: MadeRun, capsys: pytest.CaptureFixture[str]) -> None:
    learned(run)
    for _ in range(3):
        run.turn(kind="side")
        run.judge(run.react(run.turn()), None, reason="no_quorum")
    page = page_of(run)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Yes: the judge liked 15 of 18 (83 %)") or said[0].startswith("Yes: the judge liked")
    assert re.fullmatch(r"wrote \S+report\.html \(\d+ kB\) in \d+\.\d s", said[1])
    text = Elements(page).text
    for words in (
        said[0].replace("Yes: the judge", "The judge"),
        "57 turns and 3 side turns in 60 sessions",
        "9 updates",
        "Liked share of judged first replies",
        "Evaluation sets",
        "Before, ",
        "How much is",
        "no_quorum 3 " + REASONS["no_quorum"].sentence,
        "9 8 4",
        "--rollout-batch-size 4",
        "not trained: no_quorum 3",
    ):
        assert words in text, words
    assert (run.folder / "report.html").stat().st_mode & 0o777 == 0o600


def test_the_start_is_a_table_of_everybodys_report(run: MadeRun) -> None:
    assert "The start" not in page_of(run)
    steps = ((4.0, DRIVER, Step.PUSHED), (6.0, GATEWAY, Step.LISTENS), (6.5, DRIVER, Step.READY_TO_STEP))
    Beginning(0.0, [Event(*step) for step in steps]).write(run.folder)
    page = page_of(run)
    assert f"<td>{DRIVER}</td><td>{Step.READY_TO_STEP}</td>" in page
    assert f"<td>{GATEWAY}: {Step.LISTENS}</td>" in page
    assert "The start" not in page_of(run, "--owner", "local")


def test_the_page_holds_no_script_and_loads_nothing(run: MadeRun) -> None:
    page = page_of(learned(run))
    elements = Elements(page)
    names = {name for name, _ in elements.found}
    assert names <= {
        *(
            "html",
            "head",
            "meta",
            "title",
            "style",
            "body",
            "h1",
            "h2",
            "h3",
            "p",
            "b",
            "div",
            "span",
            "table",
            "tr",
            "th",
            "td",
        ),
        *("figure", "figcaption", "details", "summary", "svg", "line", "polyline", "circle", "text"),
    }
    for _, attributes in elements.found:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "src", "href")]
    [policy] = [values["content"] for name, values in elements.found if values.get("http-equiv")]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def hostile_run(run: MadeRun) -> MadeRun:
    """Put hostile text wherever a conversation, a judge or an environment can write."""
    for update in range(9):
        for score in (1, -1, 1, -1):
            turn_id = run.turn(
                session_id=f"@{HOSTILE[:20]}:{run.now}".replace("\ud800", ""),
                messages=[{"role": "user", "content": f"{HOSTILE} apples and pears {update}"}],
                response_message={"role": "assistant", "content": f"{HOSTILE} reply {update}"},
            )
            run.judge(run.react(turn_id), score, votes=[Vote("prm", HOSTILE, score)])
        run.judge(run.react(run.turn()), None, reason="<script>alert(2)</script>")
        run.step()
    run.ledger.judging.postpone(run.react(run.turn()), HOSTILE.replace("\ud800", ""), run.now)
    run.tracker.log({"eval/<script>alert(3)</script>": 0.5, "eval/step": 1}, "eval/step")
    pause(run.folder, 3, "<script>alert(4)</script>")
    return run


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    run = hostile_run(MadeRun(tmp_path / "run", hf_checkpoint="<script>alert(5)</script>"))
    elements = Elements(page_of(run))
    names = [name for name, _ in elements.found]
    assert not {"script", "img", "iframe", "object", "embed", "form", "a", "base", "link"} & set(names)
    assert names.count("style") == names.count("body") == 1
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    for words in ("alert(1)", "alert(2)", "alert(3)", "alert(4)", "alert(5)", "{{ 7*7 }}"):
        assert words in elements.text, f"{words} was shown as text"
    assert "\u202e" not in elements.text
    assert elements.open == []


def test_an_owner_sees_nothing_of_another(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    for update in range(9):
        for owner, score in (("alice", 1), ("bob", -1), ("alice/laptop", 1), ("alicex", -1)):
            run.talk(
                score,
                session_id=f"@{owner}:{run.now}",
                messages=[{"role": "user", "content": f"{owner.upper()}WORDS question {update} apples"}],
                response_message={"role": "assistant", "content": f"{owner.upper()}WORDS reply"},
            )
        run.judge(run.react(run.turn(session_id=f"@bob:{run.now}")), None, reason="BOBREASON")
        run.talk(1, session_id=f"plain-{update}", messages=[{"role": "user", "content": "LOCALWORDS question apples"}])
        run.step(**{"eval/BOBSET": 0.5})
    run.ledger.judging.postpone(run.react(run.turn(session_id="@bob:late")), "BOBERROR", run.now)
    pause(run.folder, 3, "BOBFUSE")
    run.close()
    everybody, alice, local = (build(open_run(run.folder), owner).page for owner in (None, "alice", ""))
    for words in ("BOBREASON", "BOBERROR", "BOBFUSE", "BOBSET"):
        assert words in everybody
        assert words not in alice + local
    assert "ALICEWORDS" in alice
    assert not re.search("BOB|LOCALWORDS|ALICEXWORDS", alice)
    assert "ALICE/LAPTOPWORDS" in alice or "18 turns" in alice
    assert "18 turns and 0 side turns" in Elements(alice).text
    assert "LOCALWORDS" in local
    assert not re.search("BOB|ALICE", local)
    assert main([str(run.folder), "--owner", "alice", "--output", str(tmp_path / "own.html")]) == 0
    assert "BOB" not in (tmp_path / "own.html").read_text()
    with pytest.raises(SystemExit):
        main([str(run.folder), "--owner", ""])


def test_replies_of_logs_are_no_evidence(tmp_path: Path) -> None:
    """A log of a run that learned has better replies at its end, whatever is trained from it."""
    earlier = learned(MadeRun(tmp_path / "earlier"))
    earlier.close()
    assert build(open_run(earlier.folder)).sentence.startswith("Yes:")
    copy = MadeRun(tmp_path / "copy")
    with closing(Ledger(earlier.ledger.path)) as source:
        copy_run(source, copy.ledger, source.views.session_ids())
    told = build(open_run(copy.close()))
    assert told.sentence.startswith("Nobody can say from these replies: other weights gave them")
    assert 'class="pair"' not in told.page
    assert "Another run or program gave the replies of" in told.page
    scored = learned(MadeRun(tmp_path / "scored"))
    with scored.ledger.transaction() as connection:
        connection.execute("UPDATE turns SET scored = 1")
    scored.close()
    assert build(open_run(scored.folder)).sentence.startswith("Nobody can say from these replies")


def test_a_run_that_began_with_copies_is_judged_by_its_own_replies(tmp_path: Path) -> None:
    """It went on with live traffic, so its settings do not say any more that it trained from logs."""
    earlier = MadeRun(tmp_path / "earlier")
    for _ in range(2 * MIN_TURNS):
        earlier.talk(1)
    earlier.close()
    folder = learned(MadeRun(tmp_path / "run")).close()
    alone = build(open_run(folder)).sentence
    assert alone.startswith("Yes:")
    with closing(Ledger(earlier.ledger.path)) as source, closing(open_run(folder).open_ledger()) as ledger:
        copy_run(source, ledger, source.views.session_ids(), number=2)
    both = build(open_run(folder))
    assert both.sentence == alone
    assert f"Another run or program gave the replies of {2 * MIN_TURNS} turns." in both.page


def test_gate_decisions_are_shown(run: MadeRun, tmp_path: Path) -> None:
    run.healthy(3)
    assert "Gate decisions" not in page_of(run)
    gated = MadeRun(tmp_path / "gated").healthy(3)
    gated.ledger.decisions.record(1, "step", "2", "no worse")
    gated.ledger.decisions.record(2, "refused", "3", "opinions: <b>worse</b>")
    text = Elements(page_of(gated)).text
    assert "Versions and gate decisions" in text
    assert re.search(r"Gate decisions (step 1, refused 1|refused 1, step 1)\.", text)
    assert re.search(r"2 refused 3 \S+ \S+ opinions: <b>worse</b>", text)
    assert "Gate decisions" not in build(open_run(gated.folder), "").page, "its probes are everybody's"


def test_a_run_that_is_down_empty_or_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = MadeRun(tmp_path / "empty")
    text = Elements(page_of(empty)).text
    assert "Nobody can say yet: no first reply of a conversation was judged." in text
    assert "No update yet." in text
    (empty.folder / "metrics.jsonl").write_bytes(
        b'{"step_key": "train/step", "train/step": 1, "train/ppo_kl": 0.5}\n\xff\xfe{{\n[1]\n{"step_key": "tra'
    )
    assert "KL" in Elements(page_of(empty)).text, "damaged lines are left out"
    for name in ("arguments.json", "metrics.jsonl"):
        (empty.folder / name).unlink()
    assert main([str(empty.folder)]) == 0
    capsys.readouterr()
    assert main([str(tmp_path)]) == 2
    assert f"the newest of 1 there is {empty.folder}" in capsys.readouterr().err
    assert main([str(empty.folder), "--output", str(tmp_path / "none" / "x.html")]) == 2
    assert "name another file with --output FILE.html" in capsys.readouterr().err
    (empty.folder / "ledger.sqlite").write_bytes(b"no ledger" * 1000)
    assert main([str(empty.folder)]) == 2
    assert "ledger" in capsys.readouterr().err


def test_the_report_works_while_the_run_writes(tmp_path: Path) -> None:
    run = learned(MadeRun(tmp_path / "run"))
    run.close()
    writer = sqlite3.connect(run.folder / "ledger.sqlite", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE turns SET judge_error = 'HALFWAY' WHERE number = 1")
    try:
        assert "HALFWAY" not in build(open_run(run.folder)).page
    finally:
        writer.execute("ROLLBACK")
        writer.close()


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The queries that the ledger is asked."""
    asked: list[str] = []
    rows = Database.rows

    def counting(self: Database, sql: str, parameters: tuple[object, ...] = ()) -> list[sqlite3.Row]:
        asked.append(sql)
        return rows(self, sql, parameters)

    monkeypatch.setattr(Database, "rows", counting)
    return asked


def test_the_number_of_queries_does_not_grow_with_the_run(tmp_path: Path, statements: list[str]) -> None:
    counts, sizes = [], []
    for turns in (100, 400):
        folder = tmp_path / str(turns)
        write_run(folder, turns)
        statements.clear()
        sizes.append(len(build(open_run(folder)).page))
        counts.append(len(statements))
    assert counts[0] == counts[1] < 40
    assert sizes[1] < sizes[0] * 1.5
    assert sizes[1] < 200_000


def test_examples_are_bounded_and_chosen_by_questions(run: MadeRun, statements: list[str]) -> None:
    same = [{"role": "user", "content": "What is 2 + 3?"}]
    for update in range(3):
        for number in range(2 * CANDIDATES):
            kind = "side" if number % 2 else "main"
            run.turn(
                kind=kind, messages=same if number == 7 else [{"role": "user", "content": f"word{number} only{update}"}]
            )
        for score in (1, -1, 1, -1):
            run.talk(score)
        run.step()
    run.turn(kind="side", messages=same)
    run.close()
    page = build(open_run(run.folder)).page
    assert page.count('class="pair"') <= PAIRS
    read = [sql.count("?") for sql in statements if "WHERE number IN" in sql]
    assert sum(read) <= 4 * CANDIDATES


def test_charts() -> None:
    long = [(float(x), float(x % 7)) for x in range(100_000)]
    assert len(thinned(long)) <= MAX_POINTS
    assert thinned([(1.0, 2.0)]) == [(1.0, 2.0)]
    assert nice_ticks(0.0, 1.0) == [0.0, 0.5, 1.0]
    assert nice_ticks(-0.03, 0.011) == pytest.approx([-0.04, -0.02, 0.0, 0.02])
    flat = draw(Chart("<b>", "steps", [Line("one", [(3.0, 0.0)])]))
    assert "&lt;b&gt;" in flat
    assert "nan" not in flat
    bounded = draw(Chart("t", "steps", [Line("a", [(0, 0.001), (1, 0.002)])], bound=0.01))
    y = float(re.search(r'class="bound"[^>]*y1="([\d.]+)"', bounded)[1])
    assert 0 <= y < float(re.search(r'points="[\d.]+,([\d.]+)', bounded)[1])


def test_the_last_reply_of_each_conversation_needs_no_advice() -> None:
    healthy, many = (build_module.reason_rows(Counter({"no_next_state": 3}), sessions) for sessions in (3, 2))
    assert (healthy[0].remedy, "as it should be" in healthy[0].sentence) == ("", True)
    assert many == build_module.reason_rows(Counter({"no_next_state": 3}))
    assert "X-Session-Id" in many[0].remedy


def test_decisions_alike_in_a_row_are_one_row() -> None:
    few = [GateDecision(n, "step", str(n), f"too few probes: {n} of 4", False, float(n)) for n in range(5)]
    refused = GateDecision(5, "refused", "4", "it moves away", True, 5.0)
    ledger: Any = SimpleNamespace(views=SimpleNamespace(gate_decisions=lambda: [*few, refused, *few[:1]]))
    kinds, rows = build_module.decisions(ledger)
    assert kinds == {"step": 6, "refused": 1}
    assert [(row.batches, row.kind, row.why) for row in rows] == [
        ("0", "step", "too few probes: 0 of 4"),
        ("5", "refused", "it moves away"),
        ("0 to 4", "step", "too few probes: 4 of 4"),
    ]


def test_pairs_begin_with_early_replies_that_were_disliked(monkeypatch: pytest.MonkeyPatch) -> None:
    firsts = [
        FirstReply(n, updates, "main", score) for n, updates, score in ((0, 0, 1), (1, 0, -1), (2, 9, -1), (3, 9, 1))
    ]
    asked = {0: "How many red apples?", 1: "How many red pears?", 2: "How many red apples?", 3: "How many red plums?"}

    def texts(ledger: Any, chosen: Sequence[FirstReply]) -> list[build_module._Candidate]:
        made = [
            build_module.Example(asked[each.number], f"reply {each.number}", each.updates, each.score)
            for each in chosen
        ]
        return [build_module._Candidate(each, "main", frozenset(each.question.lower().split())) for each in made]

    monkeypatch.setattr(build_module, "_texts", texts)
    ledger: Any = None
    found = build_module.pairs(ledger, firsts)
    assert next((before.score, before.question) for before, _ in found) == (-1, asked[1])
    assert {after.question for _, after in found} == {asked[2], asked[3]}
