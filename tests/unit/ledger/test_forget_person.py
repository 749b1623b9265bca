"""A forgotten person leaves no byte of their words and no adapter in any file of the run, and others keep everything."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from groundwork.checkpoint_names import NEWEST_VERSIONS, PEOPLE
from groundwork.paused import pause, paused_people
from groundwork.people import mark_of
from groundwork.private_files import private_folder
from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.inspect import main
from openclaw.ledger.record_files import RecordFiles
from openclaw.ledger.records import Feedback, Verdict
from openclaw.ledger.sessions import Sessions
from openclaw.ledger.store import Ledger
from openclaw.owners import LOCAL, episode_owner, stored_id
from openclaw.runtime import adapters
from openclaw.runtime.adapters import accepted_versions
from openclaw.training.samples import make_sample
from slime.updates.rollback import ask_rollback, asked_rollbacks
from slime.weight_sync import people

ALICE, BOB = "alice", "bob"
MARKERS = {ALICE: "qx7ofalice", BOB: "qx7ofbob"}


def talk(ledger: Ledger, person: str, name: str, owner: str | None = None) -> None:
    """Record a judged turn with a sample, feedback and a lesson, in which every text holds the person's marker."""
    words = f"{MARKERS[person]} please"
    turn = make_turn(
        f"{person}-{name}",
        session_id=stored_id(owner or person, f"s-{name}"),
        messages=[{"role": "user", "content": words}],
        response_message={"role": "assistant", "content": words},
    )
    ledger.turns.record(turn)
    if ledger.turns.get(turn.id).state == "excluded":  # of an episode
        return
    ledger.turns.record_next_state(turn.id, [{"role": "user", "content": words}], 102.0)
    ledger.feedback.record(
        Feedback(turn_id=turn.id, created_at=103.0, thumbs="up", text=words, source=person), USER_NEXT
    )
    sample = make_sample(turn, 1.0, score=1, metadata={"hint": words})
    record_judged(ledger, turn.id, Verdict(score=1, hint=words), [sample], None)


def adapter_name(person: str, version: int) -> str:
    return people.adapter_name(version, "0123abcd", version, mark_of(person))


def adapter(run: Path, person: str, version: int) -> str:
    """Publish a version of a person's adapter whose files hold the person's mark, and return its name."""
    name = adapter_name(person, version)
    folder = people.folder_of(people.people_folder(run), name)
    private_folder(folder)
    for file in (people.WEIGHTS, people.CONFIG, "training.safetensors", "state.json"):
        (folder / file).write_text(f"{file} {version} of {mark_of(person)}")
    people.publish(run, name)
    return name


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with turns, a lesson, a decision, a step, a pause and two versions of an adapter of each person."""
    folder = tmp_path / "run"
    private_folder(folder)
    arguments = {"hf_checkpoint": "models/tiny", "save": str(folder / "checkpoints")}
    (folder / "arguments.json").write_text(json.dumps(arguments))
    with closing(Ledger(folder / "ledger.sqlite")) as ledger:
        for person in (ALICE, BOB):
            talk(ledger, person, "0")
            talk(ledger, person, "1", owner=f"{person}/child")
            talk(ledger, person, "2", owner=episode_owner(person, "episode-1"))
            ledger.lessons.add(person, f"Always say {MARKERS[person]}.")
        for batch, person in enumerate((ALICE, BOB)):
            ledger.samples.claim(batch, 1, person=person)
            ledger.decisions.record(
                batch, "step", "1", MARKERS[person], person=person, scores={f"{person}-0": -0.5, f"{BOB}-1": -0.5}
            )
            ledger.samples.record_step(batch, "1", 1.0, 2.0, person)
    records = RecordFiles(folder / "ledger.sqlite", 10**6)
    records.follow()
    checkpoint = folder / "checkpoints" / "iter_0000002"
    private_folder(checkpoint)
    named = {mark_of(person): adapter_name(person, 1) for person in (ALICE, BOB)}
    meta = {PEOPLE: named, NEWEST_VERSIONS: dict.fromkeys(named, 2), "rollout_id": 1}
    (checkpoint / "meta.json").write_text(json.dumps(meta))
    for person in (ALICE, BOB):
        pause(folder, 1, MARKERS[person], person)
        ask_rollback(folder, 1, person)
        adapter(folder, person, 1)
        adapter(folder, person, 2)
    return folder


def files_with(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_nothing_of_a_person_is_left_in_any_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(files_with(run, MARKERS[ALICE])) >= 3
    assert files_with(run, mark_of(ALICE))
    before = {path for path in files_with(run, MARKERS[BOB]) if ".sqlite" not in path.name}
    assert main([str(run), "forget", "--person", ALICE]) == 0
    said = capsys.readouterr().out
    assert "deleted 3 turns and 2 samples of alice" in said
    assert "deleted the adapter of alice in all versions" in said
    for text in (MARKERS[ALICE], mark_of(ALICE), ALICE):
        assert files_with(run, text) == [], text
    assert not (people.people_folder(run) / mark_of(ALICE)).exists()
    assert accepted_versions(run, ALICE) == ()
    assert before <= set(files_with(run, MARKERS[BOB])), "another person keeps everything"
    assert [version.number for version in accepted_versions(run, BOB)] == [2, 1]
    assert list(paused_people(run)) == [BOB]
    assert [note.person for note in asked_rollbacks(run)] == [BOB]
    meta = json.loads((run / "checkpoints" / "iter_0000002" / "meta.json").read_text())
    assert meta == {PEOPLE: {mark_of(BOB): adapter_name(BOB, 1)}, NEWEST_VERSIONS: {mark_of(BOB): 2}, "rollout_id": 1}
    with closing(Ledger(run / "ledger.sqlite")) as ledger:
        assert ledger.samples.live_weight_version(ALICE) is None
        assert ledger.samples.live_weight_version(BOB) == "1"
        assert [step["samples"] for step in ledger.views.step_records()] == [1, 1], "steps keep their numbers"
        assert [each.person for each in ledger.decisions.all()] == [BOB]
        assert ledger.samples.reconcile(1) == {"trained": 1, "ready": 0}


@pytest.mark.parametrize("step", range(6))
def test_a_deletion_that_ends_anywhere_leaves_what_the_next_one_finds(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], step: int
) -> None:
    """Before any of the ledger's rows go, nothing that was learned from them serves."""
    steps = [
        (adapters.people, "forget"),
        (adapters, "forget_in_checkpoints"),
        (Sessions, "forget_person"),
        (adapters, "resume"),
        (adapters, "forget_rollback"),
        (Sessions, "erase"),
    ]
    with monkeypatch.context() as cut:
        cut.setattr(*steps[step], lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main([str(run), "forget", "--person", ALICE])
    with closing(Ledger(run / "ledger.sqlite")) as ledger:
        assert ledger.sessions.of_person(ALICE) or accepted_versions(run, ALICE) == ()
    assert step == 0 or accepted_versions(run, ALICE) == ()
    main([str(run), "forget", "--person", ALICE])
    capsys.readouterr()
    for text in (MARKERS[ALICE], mark_of(ALICE), ALICE):
        assert files_with(run, text) == [], text


def test_who_left_nothing_is_told_and_may_be_forgotten_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run), "forget", "--person", "carol"]) == 2
    assert "has no turn of carol" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(run), "forget", "--person", "alice/child"])
    assert "its adapter is that of alice" in capsys.readouterr().err


def test_a_person_leaves_with_the_adapter(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "mine"
    assert main([str(run), "export", "--person", BOB, "--to", str(to)]) == 0
    assert sorted(path.name for path in to.iterdir()) == [people.CONFIG, people.WEIGHTS]
    assert people.digest_of(to) == accepted_versions(run, BOB)[0].sha256
    assert "wrote version 2 to" in capsys.readouterr().out
    assert main([str(run), "export", "--person", BOB, "--to", str(to)]) == 2
    assert "exists; name a new folder" in capsys.readouterr().err
    assert main([str(run), "export", "--person", "carol", "--to", str(tmp_path / "hers")]) == 2
    assert "the base model answers" in capsys.readouterr().err


def test_an_export_deletes_nothing_of_its_user(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "mine.part" / "notes"
    own.parent.mkdir()
    own.write_text("words")
    assert main([str(run), "export", "--person", BOB, "--to", str(tmp_path / "mine")]) == 2
    assert "mine.part exists" in capsys.readouterr().err
    assert own.read_text() == "words"


def test_a_damaged_adapter_is_not_exported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = people.folder_of(people.people_folder(run), accepted_versions(run, BOB)[0].name)
    (folder / people.WEIGHTS).write_text("other")
    assert main([str(run), "export", "--person", BOB, "--to", str(tmp_path / "mine")]) == 2
    assert "it is damaged" in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    "words", [["forget"], ["forget", "s", "--person", ALICE], ["export", "--person", ALICE], ["export"]]
)
def test_a_command_about_nobody_is_refused(run: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(run), *words])
    assert "or --person NAME" in capsys.readouterr().err


def test_who_has_no_key_is_forgotten_with_the_agents_episodes(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        for number, owner in enumerate((LOCAL, episode_owner(LOCAL, "episode-1"), ALICE)):
            ledger.turns.record(make_turn(f"turn-{number}", session_id=stored_id(owner, "s")))
        assert ledger.sessions.forget_person(LOCAL).turns == 2
        assert [bool(ledger.sessions.of_person(each)) for each in (LOCAL, ALICE)] == [False, True]
        assert ledger.views.session_ids() == [stored_id(ALICE, "s")]
