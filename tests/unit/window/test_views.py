"""Each view of the window, on real ledgers: what it shows, to whom, and that nothing on a page is anything but text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from groundwork.paused import note_waiting, pause
from openclaw.config.runtime_variables import GateVariables
from openclaw.gate.certificate import Facts, certify
from openclaw.gateway.window_views import Asked, ChangeError, Form, UnknownViewError
from openclaw.ledger.records import Feedback, Tokens, VersionSpan, Vote
from openclaw.owners import LOCAL, root, stored_id
from openclaw.runs.folder import open_run
from openclaw.window import views
from openclaw.window.lanes import SLOTS, counts_of
from openclaw.window.views import VIEWS, Window, open_window
from slime.weight_sync.people import people_folder
from tests.helpers.checkpoints import checkpoint
from tests.helpers.html_tags import Tags
from tests.helpers.made_runs import MadeRun

Look = Callable[..., Any]
OWN_SCRIPT = '<script src="/window/window.js" defer></script>'
ATTACK = '</textarea></style></title>"><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m'


def look(window: Window, view: str, owner: str | None = None, form: Form = "json", **words: str) -> Any:
    """Return a view's JSON or page, for an owner or (None) for an admin."""
    name = "root" if owner is None else owner
    shown = window.show(Asked(view, words, form, name, owner, root(owner or LOCAL), logged_in=True))
    return orjson.loads(shown) if form == "json" else shown.decode()


def talk(run: MadeRun, owner: str, words: str, score: int = 1, **changes: Any) -> str:
    """Let an owner ask with ``words`` and react, in a session of their own; return the turn."""
    session = stored_id(owner, f"s-{words[:20]}")
    changes = {"messages": [{"role": "user", "content": words}]} | changes
    return run.talk(score, session_id=session, **changes)


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path / "run")


@pytest.fixture
def window_of() -> Iterator[Callable[[MadeRun], Window]]:
    """A function that closes a made run and returns the window on it."""
    opened: list[Window] = []

    def window(run: MadeRun) -> Window:
        folder = run.close()
        opened.append(open_window(str(folder / "ledger.sqlite"), str(folder)))
        return opened[-1]

    yield window
    for each in opened:
        each.ledger.close()


def test_learning_says_what_the_report_says(run: MadeRun, window_of: Look) -> None:
    for update in range(6):
        for _ in range(8):
            run.talk(1 if update > 2 else -1)
        run.ledger.decisions.record(run.version, "step", str(run.version + 1), "as good as before")
        run.step(**{"eval/held_out": 0.1 * update})
    run.ledger.decisions.record(6, "refused", "7", "worse for earlier opinions", by_margin=True)
    window = window_of(run)
    found = look(window, "learning")
    assert (found["answer"], found["verdict"]) == ("Yes", "better")
    assert found["sentence"].startswith("The judge liked ")
    assert [row["decision"] for row in found["versions"]] == ["refused"] + ["accepted"] * 6
    assert [row["version"] for row in found["versions"] if row["serves"]] == ["6"]
    assert {chart["title"] for chart in found["charts"]} >= {"Liked share of judged first replies", "Evaluation sets"}
    page = look(window, "learning", form="page")
    assert "worse for earlier opinions" in page
    assert "<svg" in page


def test_an_owner_learns_of_weights_that_all_share_and_not_why(run: MadeRun, window_of: Look) -> None:
    talk(run, "alice", "one")
    for _ in range(4):
        talk(run, "bob", "two")
    run.ledger.decisions.record(0, "step", "1", "bob's opinions are better served")
    run.step(**{"eval/held_out": 0.5})
    window = window_of(run)
    found = look(window, "learning", "alice")
    assert [(row["version"], row["why"], row["samples"]) for row in found["versions"]] == [("1", "", 0)]
    assert {chart["title"] for chart in found["charts"]} == {"Liked share of judged first replies"}
    assert found["windows"][0]["judged"] == 1
    assert look(window, "learning")["windows"][0]["judged"] == 5


def numbers_in(found: Any) -> set[int]:
    """Return the whole numbers below a value that count something: no flags, no times."""
    if isinstance(found, dict):
        return set().union(*(numbers_in(each) for each in found.values()))
    if isinstance(found, list):
        return set().union(*(numbers_in(each) for each in found))
    return {found} if isinstance(found, int) and not isinstance(found, bool) else set()


def test_no_number_tells_an_owner_how_much_others_talk(
    run: MadeRun, window_of: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have talked for long: whatever counts what all do is large, and whatever is the owner's own is small."""
    monkeypatch.setattr(views, "PAGE", 1)
    for number in range(30):
        talk(run, "bob", f"much {number}")
        if number % 3 == 2:
            run.step()
    turns = [talk(run, "alice", f"question {number}") for number in range(2)]
    run.ledger.decisions.record(31, "refused", "1", "why", certificate=RED, person="alice")
    run.step()
    run.version = 0
    session = stored_id("alice", "s-question 0")
    window = window_of(run)
    pages = [
        ("conversations", {}),
        ("conversation", {"id": session}),
        ("turn", {"id": turns[0]}),
        ("health", {}),
        ("mine", {}),
        ("queue", {}),
        ("machine", {}),
        ("usage", {}),
    ]
    note_waiting(run.folder, "training waits until nobody talks: requests under way: 77", of_people=True)
    known = {*views.MINUTES, window.run.trainer_arguments().rollout_batch_size}
    for view, words in pages:
        found = look(window, view, "alice", **words)
        assert {number for number in numbers_in(found) - known if number > 9} == set(), (view, found)
        page = look(window, view, "alice", "page", **words)
        assert not re.search(r"(?i)\b(step|batch|sample|rollout) 1?[1-9]\d\b", page), view
        assert "nobody talks" not in page, view
    assert "under way: 77" in look(window, "health", form="page")
    note_waiting(run.folder, "training waits for the hours of OPENCLAW_TRAIN_WHEN=22:00-06:00")
    assert all("22:00-06:00" in look(window, view, "alice", "page") for view in ("health", "queue"))
    everything = look(window, "turn", id=turns[0])
    assert everything["turn"]["steps"][0]["step"] == 10
    assert everything["samples"][0]["id"] > 30


def test_replies_from_logs_are_told_to_whose_they_are(run: MadeRun, window_of: Look) -> None:
    run.turn(session_id=stored_id("bob", "log"), scored=True, state="unscored")
    window = window_of(run)
    told = {
        owner: "trains from logs" in look(window, "learning", owner)["sentence"] for owner in (None, "bob", "alice")
    }
    assert told == {None: True, "bob": True, "alice": False}


def test_of_a_persons_own_adapter_the_person_learns_all(run: MadeRun, window_of: Look) -> None:
    for person in ("alice", "bob"):
        run.ledger.decisions.record(len(person), "refused", "1", f"worse for {person}", person=person)
    window = window_of(run)
    assert [row["why"] for row in look(window, "learning", "alice")["versions"]] == ["worse for alice"]
    assert "bob" not in look(window, "learning", "alice", "page")
    assert {row["why"] for row in look(window, "learning")["versions"]} == {"worse for alice", "worse for bob"}


def test_conversations_are_the_newest_first_in_pages(
    run: MadeRun, window_of: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "PAGE", 2)
    for number in range(5):
        talk(run, "alice", f"question {number}", 1 if number % 2 else -1)
    window = window_of(run)
    asked, before = [], {}
    while True:
        found = look(window, "conversations", "alice", **before)
        asked += [each["asked"] for each in found["conversations"]]
        if found["next"] is None:
            break
        before = {"before": str(found["next"])}
    assert asked == [f"question {number}" for number in (4, 3, 2, 1, 0)]
    newest = look(window, "conversations", "alice")["conversations"][0]
    assert (newest["turns"], newest["scores"], newest["samples"]["ready"]) == (1, {"-1": 1}, 1)


def test_owners_see_their_own_and_their_childrens_only(run: MadeRun, window_of: Look) -> None:
    turns = {
        owner: talk(run, owner, f"secret of [{owner}]") for owner in ("alice", "alice/phone", "alicea", "bob", LOCAL)
    }
    window = window_of(run)
    reaches = {
        "alice": {"alice", "alice/phone"},
        "alice/phone": {"alice/phone"},
        "alicea": {"alicea"},
        "bob": {"bob"},
        LOCAL: {LOCAL},
        None: set(turns),
    }
    for owner, reached in reaches.items():
        listed = {each["asked"] for each in look(window, "conversations", owner)["conversations"]}
        assert listed == {f"secret of [{each}]" for each in reached}
        for other, turn in turns.items():
            for view, name in (("turn", turn), ("conversation", stored_id(other, f"s-secret of [{other}]"[:22]))):
                if other in reached:
                    assert f"secret of [{other}]" in look(window, view, owner, "page", id=name)
                else:
                    with pytest.raises(UnknownViewError, match="nothing of that name"):
                        look(window, view, owner, id=name)


def test_a_turn_tells_what_it_taught(run: MadeRun, window_of: Look) -> None:
    votes = [Vote("prm", "a complaint \\boxed{-1}", -1, seconds=2.0), Vote("hint", "no vote", None, invalid="cut_off")]
    turns = [
        run.judge(
            run.react(run.turn()), -1, votes=votes, hint="Write plain prose.", teacher_log_probs=(-0.2, -0.3, -0.1)
        )
        for _ in range(4)
    ]
    run.step()
    run.ledger.feedback.record(Feedback(turn_id=turns[0], created_at=run.now, thumbs="down", text="too bold"), [])
    untaught = run.judge(run.react(run.turn()), 0, reason="score_zero")
    waits = run.turn()
    window = window_of(run)
    found = look(window, "turn", id=turns[0])
    turn = found["turn"]
    assert (turn["score"], turn["hint"], turn["trained"]) == (-1, "Write plain prose.", True)
    assert [(vote["value"], vote["invalid"]) for vote in turn["votes"]] == [(-1, None), (None, "cut_off")]
    assert turn["steps"][0] == {"step": 0, "weight_version": "1", "live_at": turn["steps"][0]["live_at"]}
    assert "Step 0 used sample" in turn["outcome"]
    [sample] = found["samples"]
    assert [token["text"] for token in sample["tokens"]] == ["<5>", "<6>", "<7>"]
    assert all(token["advantage"] < 0 and token["shade"] == -views.SHADES for token in sample["tokens"])
    assert found["feedback"][0]["text"] == "too bold"
    assert look(window, "turn", id=untaught)["turn"]["outcome"].startswith("Not trained (score_zero).")
    assert "waits for its next state" in look(window, "turn", id=waits)["turn"]["outcome"]
    page = look(window, "turn", id=turns[0], form="page")
    for shown in ("Write plain prose.", "cut_off", "down9", "too bold", "version 1"):
        assert shown in page


def test_a_lesson_stands_with_the_turn_that_it_came_from(run: MadeRun, window_of: Look) -> None:
    turn = talk(run, "alice", "one")
    lesson = run.ledger.lessons.add("alice", "Keep answers short.")
    with run.ledger.transaction() as connection:
        connection.execute("INSERT INTO lesson_turns VALUES (?, ?, 'said')", (lesson.id, turn))
    assert "It became a lesson" in look(window_of(run), "turn", "alice", "page", id=turn)


def test_a_long_conversation_comes_in_pages(run: MadeRun, window_of: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAGE", 2)
    for number in range(5):
        run.turn(session_id="long", index=number, weight_versions=[VersionSpan("0", 0, 3)])
    window = window_of(run)
    indexes, after = [], {}
    while after is not None:
        found = look(window, "conversation", id="long", **after)
        indexes += [turn["index"] for turn in found["turns"]]
        after = None if found["next"] is None else {"after": str(found["next"])}
    assert indexes == [0, 1, 2, 3, 4]


def test_whatever_people_and_models_write_is_text(run: MadeRun, window_of: Look) -> None:
    said = [{"role": "user", "content": ATTACK}]
    turn = run.react(
        run.turn(
            session_id=stored_id("bob", ATTACK),
            messages=said,
            response_message={"role": "assistant", "content": ATTACK},
        ),
        said,
    )
    run.judge(turn, -1, votes=[Vote("prm", ATTACK, -1)], hint=ATTACK)
    run.ledger.feedback.record(Feedback(turn_id=turn, created_at=run.now, text=ATTACK), [])
    run.ledger.decisions.record(0, "refused", "1", ATTACK)
    unread = run.judge(run.react(run.turn()), None, reason=ATTACK)
    window = window_of(run)
    asked = {"turn": [turn, unread], "conversation": [stored_id("bob", ATTACK)]}
    for view in VIEWS:
        for name in asked.get(view, [""]):
            page = look(window, view, form="page", id=name)
            tags = Tags(page.replace(OWN_SCRIPT, "", 1))
            assert not tags.tags & {"script", "img", "iframe", "object", "base", "style"}, view
            assert not any(name.startswith("on") or name == "style" for name in tags.attributes), view
            assert "\x1b" not in page
    assert "&lt;script&gt;" in look(window, "turn", form="page", id=turn)


def test_words_of_a_query_are_no_more_than_words(run: MadeRun, window_of: Look) -> None:
    talk(run, "alice", "one")
    window = window_of(run)
    for word in ("x", "-1", "1" * 30, "1; DROP TABLE turns", "²"):
        assert look(window, "conversations", before=word)["first"]
        assert look(window, "learning", after=word)["versions"] == []
    for view in ("nothing", "__class__", ""):
        with pytest.raises(UnknownViewError, match="the views are learning"):
            look(window, view)
    with pytest.raises(UnknownViewError, match="nothing of that name"):
        look(window, "conversation", id="")


def test_a_ledger_elsewhere_is_read_with_the_runs_arguments(run: MadeRun, tmp_path: Path) -> None:
    run.talk(1)
    folder = run.close()
    (folder / "arguments.json").write_text('{"hf_checkpoint": "somewhere"}')
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "ledger.sqlite").rename(elsewhere / "mine.sqlite")
    window = open_window(str(elsewhere / "mine.sqlite"), str(folder))
    try:
        assert window.run.folder == folder
        assert window.run.trainer_arguments().hf_checkpoint == "somewhere"
        assert len(look(window, "conversations")["conversations"]) == 1
    finally:
        window.ledger.close()
    assert open_run(elsewhere / "mine.sqlite").arguments == {}


RED = certify(Facts(loss_tokens=0.0), GateVariables()).to_dict()
GREEN = certify(Facts(loss_tokens=9.0), GateVariables()).to_dict()


def test_red_certificates_come_first_with_their_cause(run: MadeRun, window_of: Look) -> None:
    run.ledger.decisions.record(0, "refused", "1", "no loss", certificate=RED)
    run.ledger.decisions.record(1, "step", "1", "fine", certificate=GREEN)
    run.ledger.decisions.record(2, "refused", "2", "no loss", certificate=RED, person="bob")
    window = window_of(run)
    found = look(window, "health")
    assert [(row["rollout_id"], row["verdict"]) for row in found["certificates"]] == [
        (2, "red"),
        (0, "red"),
        (1, "green"),
    ]
    assert found["newest"]["causes"] == RED["causes"]
    page = look(window, "health", form="page")
    assert "does not serve: no token had a loss" in page
    own = look(window, "health", "bob")
    assert [row["version"] for row in own["certificates"]] == ["2"]
    assert "Batch" not in look(window, "health", "bob", "page")
    for owner in ("alice", "bob/phone"):
        assert look(window, "health", owner)["certificates"] == []
    assert found["findings"] is None


def test_health_says_what_holds_the_training_back(run: MadeRun, window_of: Look) -> None:
    run.ledger.judging.postpone(run.react(run.turn()), "the judge is away", run.now)
    window = window_of(run)
    pause(run.folder, 3, "the KL is too large")
    pause(run.folder, 3, "bob is loud", "bob")
    found = look(window, "health", doctor="1")
    assert "the KL is too large" in found["paused"]
    assert "the judge is away" in found["judge_error"]
    assert len(found["people_paused"]) == 1
    assert {"paused", "person_paused"} <= {finding["name"] for finding in found["findings"]}
    assert "openclaw-rl resume" in look(window, "health", form="page", doctor="1")
    alice, bob = (look(window, "health", owner, doctor="1") for owner in ("alice", "bob"))
    assert (alice["people_paused"], alice["judge_error"], alice["findings"]) == ([], None, None)
    assert "bob is loud" in bob["people_paused"][0]


def test_lessons_are_their_persons(run: MadeRun, window_of: Look) -> None:
    for person in ("alice", "bob"):
        run.ledger.lessons.add(person, f"Greet {person}.")
    window = window_of(run)
    found = look(window, "mine", "alice")
    assert ([each["text"] for each in found["lessons"]], found["others"]) == (["Greet alice."], [])
    assert [each["text"] for each in look(window, "mine", "alice", person="bob")["lessons"]] == ["Greet alice."]
    assert [each["text"] for each in look(window, "mine", "alice/phone")["lessons"]] == ["Greet alice."]
    admin = look(window, "mine", person="bob")
    assert ([each["text"] for each in admin["lessons"]], admin["is_own"]) == (["Greet bob."], False)
    assert look(window, "mine")["others"] == ["alice", "bob"]
    assert "<textarea" not in look(window, "mine", form="page", person="bob")
    own = look(window, "mine", "alice", "page")
    assert 'value="on"' not in own
    assert 'value="off">Switch off' in own
    assert "Delete everything of mine" in own
    assert "Delete everything of mine" not in look(window, "mine", "alice/phone", "page")


def test_a_persons_adapter_is_shown_to_the_person(run: MadeRun, window_of: Look) -> None:
    run.ledger.decisions.record(0, "refused", "1", "worse", person="alice", certificate=RED)
    window = window_of(run)
    assert look(window, "mine", "alice")["adapter"] is None, "people share their weights"
    window.variables = replace(window.variables, adapter_per_person=True)
    adapter = look(window, "mine", "alice")["adapter"]
    assert (adapter["serving"], adapter["decisions"][0]["causes"]) == ("0", RED["causes"])
    assert look(window, "mine", "bob")["adapter"]["decisions"] == []
    assert look(window, "mine", "alice/phone")["adapter"] is None
    assert "no token had a loss" in look(window, "mine", "alice", "page")


def test_an_admin_goes_back_and_accepts_as_the_commands_do(run: MadeRun, window_of: Look) -> None:
    run.ledger.decisions.record(0, "step", "1", "fine")
    for batch in (1, 2, 3):
        run.talk(1)
        run.ledger.samples.claim(batch, 1)
        run.ledger.decisions.record(batch, "refused", "2", "worse for earlier opinions", by_margin=True)
        run.ledger.decisions.quarantine(batch)
    window = window_of(run)
    assert 'value="accept"' in look(window, "learning", form="page")
    assert 'value="accept"' not in look(window, "learning", "alice", "page")
    with pytest.raises(ChangeError, match="no checkpoint of version 7"):
        window.roll_back("7")
    window.accept()
    assert look(window, "learning")["offer"] is None
    with pytest.raises(ChangeError, match="nothing to accept"):
        window.accept()


def test_who_waits_for_what_and_for_how_long(run: MadeRun, window_of: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in ("a", "b", "c", "d"):
        talk(run, "bob", words)
    run.step()
    talk(run, "alice", "one", weight_versions=[VersionSpan("0", 0, 3)])
    run.react(run.turn(session_id=stored_id("alice/phone", "s")))
    since = run.now
    window = window_of(run)
    monkeypatch.setattr(views.time, "time", lambda: since + 90.0)
    found = look(window, "queue")
    alice, bob = (next(row for row in found["people"] if row["person"] == name) for name in ("alice", "bob"))
    assert (alice["ready"], alice["pending"], alice["behind"], alice["tokens"]) == (1, 1, 1, 0)
    assert (bob["ready"], bob["tokens"], bob["share"]) == (0, 28, 1.0)
    assert (found["ready"], found["pending"], found["batch"]) == (1, 1, 4)
    page = look(window, "queue", form="page")
    assert "1 sample waits for a step, which takes 4; 1 turn waits for the judge." in page
    assert "90 s" in page
    own = look(window, "queue", "bob")
    assert [(row["person"], row["ready"]) for row in own["people"]] == [("bob", 0)]
    assert (own["ready"], own["pending"], own["people"][0]["share"]) == (0, 0, None)
    assert "alice" not in look(window, "queue", "bob", "page")
    child = look(window, "queue", "alice/phone")
    assert (child["people"], child["ready"], child["pending"]) == ([], 0, 0), "what waits of a person is no child's"


def test_tokens_are_shown_by_day_and_owner_with_dollars_and_quotas(
    run: MadeRun, window_of: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = 86400.0
    used = (("alice", 3, 7), ("alice/phone", 3, 5), ("bob", 3, 11), ("alice", 2, 1), ("bob", 40, 100), ("bob", 50, 1))
    for owner, days, tokens in used:
        run.ledger.database.clock = lambda at=60 * day - days * day: at
        run.ledger.usage.add(owner, Tokens(prefill=1000 * tokens, sampled=tokens, trained=1))
    window = window_of(run)
    monkeypatch.setattr(views.time, "time", lambda: 60 * day - 2 * day + 5.0)

    def usage(owner: str | None, form: Form = "json", **words: str) -> Any:
        name = owner or "root"
        asked = Asked("usage", words, form, name, owner, root(owner or LOCAL), logged_in=True)
        shown = window.show(asked._replace(prices={"sampled": 1e6}, quotas={"sampled": 10, "total": 10_000}))
        return orjson.loads(shown) if form == "json" else shown.decode()

    own = usage("alice")
    assert [(row["day"], row["sampled_tokens"], row["dollars"]) for row in own["days"]] == [
        ("1970-02-28", 1, 1.0),
        ("1970-02-27", 12, 12.0),
    ]
    assert [(row["owner"], row["prefill_tokens"]) for row in own["owners"]] == [("alice", 8000), ("alice/phone", 5000)]
    assert [row["owner"] for row in own["days"][1]["owners"]] == ["alice", "alice/phone"]
    assert (own["total"]["trained_tokens"], own["next"]) == (3, None)
    assert own["quota"] == {
        "day": "1970-02-28", "sampled": {"most": 10, "used": 1}, "total": {"most": 10_000, "used": 1001}
    }  # fmt: skip
    page = usage("alice", "page")
    assert "bob" not in page
    assert "Today 1 of 10 tokens of replies</label>" in page
    assert '<td class="number">12,000</td>' in page
    assert "13.0000" in page
    admin = usage(None)
    assert {row["owner"]: row["sampled_tokens"] for row in admin["owners"]} == {"bob": 11, "alice": 8, "alice/phone": 5}
    earlier = usage(None, until=admin["next"])
    assert (earlier["until"], earlier["next"]) == ("1970-01-21", None)
    assert [row["sampled_tokens"] for row in earlier["days"]] == [100, 1]
    assert f'/window/usage?until={admin["next"]}"' in usage(None, "page")
    assert usage("carol", "page").count("No tokens from 1970-01-29 to 1970-02-28.") == 1
    assert usage(None, until="9999-01-01")["until"] == usage(None, until="x")["until"] == "1970-02-28"
    plain = look(window, "usage", "bob", "page")
    assert "<meter" not in plain
    assert "dollars" not in plain


def test_half_a_surrogate_pair_hides_no_page(run: MadeRun, window_of: Look) -> None:
    turn = talk(run, "bob", "cut emoji", messages=[{"role": "user", "content": "cut \ud83d here"}])
    window = window_of(run)
    for view, words in (("conversations", {}), ("conversation", {"id": "@bob:s-cut emoji"}), ("turn", {"id": turn})):
        assert "cut ? here" in str(look(window, view, "bob", **words))
        assert "cut ? here" in look(window, view, "bob", "page", **words)


def test_the_lanes_show_when_what_was_done(run: MadeRun, window_of: Look) -> None:
    for words in ("a", "b", "c", "d"):
        talk(run, "bob", words, seconds=60.0)
    run.step(**{views.STEP_SECONDS: 30.0})
    window = window_of(run)
    found = look(window, "machine", minutes="10")
    assert 180.0 < found["until"] - found["since"] < 240.0, "a short run is shown from its begin"
    lanes = found["lanes"]
    assert [len(counts) for counts in lanes.values()] == [SLOTS] * 4
    assert sum(map(bool, lanes["answering"])) in range(4, 9)
    slot = (found["until"] - found["since"]) / SLOTS
    assert sum(map(bool, lanes["training"])) == pytest.approx(30.0 / slot, abs=2), "30 s"
    assert [(each["version"], each["step"]) for each in found["updates"]] == [("1", 0)]
    page = look(window, "machine", form="page")
    assert page.count('class="update"') == 1
    assert "4 replies and 1 update" in page
    own = look(window, "machine", "alice")
    assert (own["answers"], sum(own["lanes"]["answering"]), sum(own["lanes"]["judging"])) == (0, 0, 0)
    assert look(window, "machine", minutes="7")["minutes"] == look(window, "machine", minutes="x")["minutes"] == 60


def test_an_interval_counts_in_each_slot_that_it_touches() -> None:
    counts = counts_of([(0.0, 1.5), (1.2, 1.8), (-5.0, -1.0), (119.5, 300.0), (500.0, 501.0)], 0.0, float(SLOTS))
    assert counts == [1, 2, *[0] * (SLOTS - 3), 1]
    assert counts_of([], 0.0, 1.0) == [0] * SLOTS


def test_a_ledger_without_a_turn_has_every_view(run: MadeRun, window_of: Look) -> None:
    window = window_of(run)
    for name, view in VIEWS.items():
        if view.in_menu:
            assert view.title in look(window, name, form="page")
            assert isinstance(look(window, name, "alice"), dict)


def test_a_chat_is_of_the_window_and_ones_own(run: MadeRun, window_of: Look) -> None:
    name = "window-0123456789ab"
    for owner in ("alice", "root"):
        talk_of = {"session_id": stored_id(owner, name), "messages": [{"role": "user", "content": f"I am {owner}."}]}
        run.talk(-1, **talk_of)
    run.turn(session_id=stored_id("alice", "else"))
    window = window_of(run)
    assert [turn["asked"] for turn in look(window, "chat", "alice", id=name)["turns"]] == ["I am alice."]
    assert look(window, "chat", "bob", id=name)["turns"] == []
    for other in ("else", "@alice:else", "x" * 100, ""):
        found = look(window, "chat", "alice", id=other)
        assert (found["turns"], found["id"].startswith("window-")) == ([], True)
    assert look(window, "chat")["id"] != look(window, "chat")["id"]
    page = look(window, "chat", "alice", "page", id=name, said="counts")
    assert "Thank you." in page
    assert f'name="id" value="{name}"' in page
    assert "<select" not in page, "no version is kept besides the one that serves"


def test_a_chat_is_with_a_version_or_with_two(run: MadeRun, window_of: Look) -> None:
    left, right = "window-0123456789ab", "window-ba9876543210"
    for name, version in ((left, "4"), (right, "2")):
        words = {"session_id": stored_id("alice", name), "messages": [{"role": "user", "content": "Hi"}]}
        run.turn(**words, weight_versions=[VersionSpan(version, 0, 3)])
    for _ in range(4):
        for score in (1, -1, 1, -1):
            run.talk(score)
        run.step()
    for number, version in ((1, "2"), (3, "4")):
        checkpoint(run.folder / "checkpoints", number, weight_version=version)
    window = window_of(run)
    found = look(window, "chat", "alice", id=left)
    assert (found["serves"], found["versions"], found["version"], found["beside"]) == ("4", ["2", "0"], None, None)
    assert look(window, "chat", "alice", version="2")["version"] == "2"
    assert look(window, "chat", "alice", version="3")["version"] is None, "not kept"
    new = look(window, "chat", "alice", compare="1")
    assert (new["version"], new["beside"]["version"], new["turns"], new["beside"]["turns"]) == (None, "0", [], [])
    assert new["id"] != new["beside"]["id"]
    both = look(window, "chat", "alice", id=left, beside=right, other="2")
    assert [each["turns"][0]["versions"] for each in (both, both["beside"])] == [["4"], ["2"]]
    assert look(window, "chat", "bob", id=left, beside=right, other="2")["beside"]["turns"] == [], "not bob's"
    page = look(window, "chat", "alice", "page", id=left, beside=right, other="2")
    assert page.count("<section") == page.count('aria-label="Good reply') == 2
    assert f'name="beside" value="{right}"' in page
    half = look(window, "chat", "alice", id=left, beside=right, other="2", said="second_silent")["said"]
    assert half.startswith("Version 2 did not answer now; the other one did")
    half = look(window, "chat", "alice", id=left, beside=right, other="2", said="first_silent")["said"]
    assert half.startswith("The one that serves did not answer")
    assert 'aria-label="Bad reply, turn 1 of version 2"' in page
    assert '<option value="2" selected>' in page
    assert "data-stream" not in page
    assert "before any training" in look(window, "chat", "alice", "page", said="earlier_version")


def test_an_unreadable_book_leaves_the_base_model_to_talk_to(run: MadeRun, window_of: Look) -> None:
    for _ in range(2):
        run.talk(1)
    run.step()
    window = window_of(run)
    book = people_folder(run.folder) / "book.json"
    book.parent.mkdir(parents=True, exist_ok=True)
    book.write_text("{")
    window.variables = replace(window.variables, adapter_per_person=True)
    window.ledger.samples.live_weight_version = lambda person=None: "1"  # type: ignore[method-assign]
    assert look(window, "chat", "alice")["versions"] == ["0"]


def test_the_page_of_ones_own_turn_asks_another_version(run: MadeRun, window_of: Look) -> None:
    turn = talk(run, "alice", "Hi")
    checkpoint(run.folder / "checkpoints", 1, weight_version="3")
    window = window_of(run)
    assert look(window, "turn", "alice", id=turn)["versions"] == ["3"], "0 serves"
    assert 'action="/window/ask_version"' in look(window, "turn", "alice", "page", id=turn)
    assert look(window, "turn", id=turn)["versions"] == [], "it is not the admin's own"
    window.variables = replace(window.variables, adapter_per_person=True)
    assert look(window, "turn", "alice", id=turn)["versions"] == [], "a checkpoint of the run is nobody's adapter"
