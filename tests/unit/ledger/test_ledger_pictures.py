"""Pictures in the ledger: stored with their turns, copied and salvaged with them, and never in another one's sample."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from groundwork.chat_messages import picture_part
from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.credit.episodes import EpisodeRules, episode_samples
from openclaw.inspect import main
from openclaw.ledger.commands import salvage
from openclaw.ledger.copying import ChangedTurn, copy_run
from openclaw.ledger.episodes import Episode
from openclaw.ledger.records import EPISODE, SeenPicture, Turn, Verdict
from openclaw.ledger.store import Ledger
from openclaw.ledger.turns import NO_PICTURE
from openclaw.training.samples import make_sample

PAD = 9
CAT, DOG = b"cat's file", b"dog's file"


def digest(file: bytes) -> str:
    return sha256(file).hexdigest()


def seeing(turn_id: str, *files: bytes, prompt: list[int] | None = None, **changes: object) -> Turn:
    """Return a turn whose prompt has two placeholders for each file, from position 1 on."""
    ids = prompt or [1, *(each for _ in files for each in (PAD, PAD, 2))]
    starts = [place for place, each in enumerate(ids) if each == PAD and ids[place - 1] != PAD]
    seen = tuple(SeenPicture(digest(file), start, 2, file) for file, start in zip(files, starts, strict=True))
    messages = [{"role": "user", "content": [picture_part(digest(file)) for file in files]}]
    return make_turn(turn_id, messages=messages, prompt_ids=ids, pictures=seen, **changes)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite", clock=lambda: 200.0)


def test_a_file_is_stored_once_and_goes_with_its_last_turn(ledger: Ledger) -> None:
    ledger.turns.record(seeing("one", CAT, session_id="a"))
    ledger.turns.record(seeing("two", CAT, DOG, session_id="b"))
    assert list(ledger.pictures.files()) == [(digest(CAT), CAT), (digest(DOG), DOG)]
    assert [(each.start, each.tokens, each.png) for each in ledger.pictures.of("two")] == [(1, 2, CAT), (4, 2, DOG)]
    ledger.sessions.forget("b")
    assert list(ledger.pictures.files()) == [(digest(CAT), CAT)]
    assert ledger.pictures.of("one")[0].png == CAT
    ledger.sessions.forget("a")
    assert not list(ledger.pictures.files())


def test_a_turn_that_is_not_recorded_leaves_no_picture(ledger: Ledger) -> None:
    ledger.turns.record(seeing("one", CAT))
    ledger.sessions.forget("session")
    assert ledger.turns.record(seeing("late", CAT)) is None
    assert not list(ledger.pictures.files())


def test_another_picture_at_a_place_begins_another_sample() -> None:
    """Ids alone would merge the three turns; a sample has the pictures of its last turn, which must extend the others."""
    episode = Episode(
        id="e", owner="local", key_name="key", key_digest=None, task="t", created_at=0.0, expires_at=1.0, metadata={}
    )
    first = seeing("one", CAT, reason=EPISODE)
    longer = [*first.prompt_ids, *first.response_ids, PAD, PAD, 2]
    second = seeing("two", CAT, DOG, prompt=longer, reason=EPISODE)
    longest = [*longer, *second.response_ids, 2]
    swapped = seeing("three", DOG, CAT, prompt=longest, reason=EPISODE)
    made = episode_samples(episode, [first, second, swapped], 1.0, EpisodeRules(0.6, 100))
    assert [each.turns for each in made.samples] == [("one", "two"), ("three",)]
    assert [each.sample.tokens for each in made.samples] == [
        longer + second.response_ids,
        longest + swapped.response_ids,
    ]


def test_turns_with_pictures_are_no_probes(ledger: Ledger) -> None:
    for turn in (seeing("one", CAT), make_turn("two")):
        ledger.turns.record(turn)
        ledger.turns.record_next_state(turn.id, USER_NEXT, 102.0)
        record_judged(ledger, turn.id, Verdict(score=1), [make_sample(turn, 1.0, score=1)], None)
    assert [ledger.probes.becomes_probe(ledger.turns.get(name), 1.0) for name in ("one", "two")] == [False, True]
    assert len(ledger.samples.claim(0, 2)) == 2
    assert [each.turn_id for each in ledger.probes.candidates(0, 99, 1, 9)] == ["two"]


def test_copies_have_the_pictures(ledger: Ledger, tmp_path: Path) -> None:
    ledger.turns.record(seeing("one", CAT))
    ledger.turns.record_next_state("one", USER_NEXT, 102.0)
    record_judged(ledger, "one", Verdict(score=1), [make_sample(ledger.turns.get("one"), 1.0, score=1)], None)
    copy = Ledger(tmp_path / "copy.sqlite")
    copy_run(ledger, copy, ["session"])
    copy_run(ledger, copy, ["session"], number=2)
    assert [copy.pictures.of(name)[0].png for name in ("one", "one~2")] == [CAT, CAT]
    ledger.close()
    rescued = tmp_path / "rescued.sqlite"
    result = salvage(tmp_path / "ledger.sqlite", rescued)
    assert (result.kept["pictures"], result.kept["turn_pictures"]) == (1, 1)
    assert Ledger(rescued).pictures.of("one")[0].png == CAT


def test_another_ledger_gets_the_turn_but_does_not_train_it(ledger: Ledger, tmp_path: Path) -> None:
    ledger.turns.record(seeing("one", CAT))
    (changed,) = ledger.transfer.changed(0.0, 0, 9)
    other = Ledger(tmp_path / "other.sqlite")
    assert "pictures" not in changed.to_dict()["turn"]
    other.transfer.merge(ChangedTurn.from_dict(changed.to_dict()))
    turn = other.turns.get("one")
    assert (turn.state, turn.reason) == ("excluded", NO_PICTURE)


def test_an_export_has_the_files_for_their_owner_alone(ledger: Ledger, tmp_path: Path) -> None:
    ledger.turns.record(seeing("one", CAT, DOG))
    out = tmp_path / "out.jsonl"
    assert main([str(ledger.path), "export", str(out)]) == 0
    files = {path.name: path for path in (tmp_path / "out.jsonl.pictures").iterdir()}
    assert {name: path.read_bytes() for name, path in files.items()} == {f"{digest(f)}.png": f for f in (CAT, DOG)}
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o600}
    assert digest(DOG) in out.read_text()
