"""The folders and the book of everybody's adapters."""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from groundwork.people import mark_of, request_name, requested_mark
from slime.exceptions import ForgottenError, PeopleError
from slime.weight_sync import adapter_version, people
from slime.weight_sync.people import Book, adapter_name, folder_of, people_folder

ANNA, BERT = mark_of("anna"), mark_of("bert")
CHANGES = 200


def version_on_disk(run_dir: Path, number: int, mark: str, content: bytes | None = None) -> str:
    """Write the folder of a version and return its name."""
    name = adapter_name(number, "0123abcd", 1000 + number, mark)
    folder = folder_of(people_folder(run_dir), name)
    folder.mkdir(parents=True)
    (folder / people.WEIGHTS).write_bytes(name.encode() if content is None else content)
    return name


def names(run_dir: Path, mark: str) -> list[str]:
    return [version.name for version in Book(people_folder(run_dir)).versions(mark)]


def test_marks_and_names_tell_no_name() -> None:
    assert hashlib.blake2b(b"anna", digest_size=6).hexdigest() == ANNA
    assert requested_mark(request_name("anna")) == ANNA
    assert [requested_mark(name) for name in ("base", ANNA, f"person-{ANNA}0", "person-ANNA", "")] == [None] * 5
    name = adapter_name(12, "0123abcd", 7, ANNA)
    assert adapter_version(name) == "12"
    assert people.mark_in(name) == ANNA
    assert [people.mark_in(name) for name in ("weights-12-0123abcd-7", "base", None)] == [None] * 3
    for wrong in ("weights-12-0123abcd-7", "../../etc", f"weights-1-0123abcd-7-{ANNA}/..", "base"):
        with pytest.raises(PeopleError, match="is not the name of a person's adapter"):
            folder_of(Path("people"), wrong)


def test_the_version_published_last_serves_and_earlier_ones_stand_behind(tmp_path: Path) -> None:
    assert Book(people_folder(tmp_path)).serving(ANNA) is None
    first, second = (version_on_disk(tmp_path, number, ANNA) for number in (1, 2))
    others = version_on_disk(tmp_path, 1, BERT)
    book = Book(people_folder(tmp_path))
    for name in (first, others, second):
        published = people.publish(tmp_path, name)
        assert published.sha256 == hashlib.sha256(name.encode()).hexdigest()
        assert book.serving(published.mark) == published
    assert names(tmp_path, ANNA) == [second, first]
    assert (book.serving(ANNA).number, book.serving(BERT).number) == (2, 1)
    assert people.withdraw(tmp_path, second).name == first
    people.publish(tmp_path, second)
    people.publish(tmp_path, first)
    assert names(tmp_path, ANNA) == [first], "a version that is published again takes back those after it"
    assert people.withdraw(tmp_path, first) is None
    assert names(tmp_path, BERT) == [others]


def test_what_is_not_on_disk_is_not_published(tmp_path: Path) -> None:
    with pytest.raises(PeopleError, match=r"adapter_model\.safetensors cannot be read: No such file"):
        people.publish(tmp_path, adapter_name(1, "0123abcd", 7, ANNA))
    assert names(tmp_path, ANNA) == []


def test_the_book_and_its_folder_are_private(tmp_path: Path) -> None:
    people.publish(tmp_path, version_on_disk(tmp_path, 1, ANNA))
    assert stat.S_IMODE((people_folder(tmp_path) / people.BOOK).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"people": {}}',
        b'{"format": 9, "people": {}}',
        b'{"format": 1, "people": []}',
        json.dumps({"format": 1, "people": {ANNA: [{"name": "base", "sha256": ""}]}}).encode(),
        json.dumps(
            {"format": 1, "people": {ANNA: [{"name": adapter_name(1, "0" * 8, 1, BERT), "sha256": ""}]}}
        ).encode(),
        json.dumps({"format": 1, "people": {ANNA: [{"name": adapter_name(1, "0" * 8, 1, ANNA)}]}}).encode(),
        json.dumps({"format": 1, "people": {ANNA: 1}}).encode(),
    ],
)
def test_garbage_in_the_book_is_a_clear_error_and_is_kept(tmp_path: Path, content: bytes) -> None:
    name = version_on_disk(tmp_path, 1, ANNA)
    people.publish(tmp_path, name)
    file = people_folder(tmp_path) / people.BOOK
    book = Book(people_folder(tmp_path))
    good = file.read_bytes()
    assert book.serving(ANNA) is not None
    file.write_bytes(content)
    for attempt in (lambda: book.serving(ANNA), lambda: people.publish(tmp_path, name)):
        with pytest.raises(PeopleError, match=r"book\.json is unreadable .*; delete it and start the run again"):
            attempt()
    assert file.read_bytes() == content
    file.write_bytes(good)
    assert book.serving(ANNA) is not None


def publish_by_turns(run_dir: Path, pair: list[str]) -> None:
    for change in range(CHANGES):
        people.publish(run_dir, pair[change % 2])


def test_readers_beside_two_writers_see_whole_books_and_no_change_is_lost(tmp_path: Path) -> None:
    pairs = [[version_on_disk(tmp_path, number, mark) for number in (1, 2)] for mark in (ANNA, BERT)]
    for first, _ in pairs:
        people.publish(tmp_path, first)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=publish_by_turns, args=(tmp_path, pair)) for pair in pairs]
    book = Book(people_folder(tmp_path))
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        served = [book.serving(mark) for mark in (ANNA, BERT)]
        assert all(version is not None and version.name in pair for version, pair in zip(served, pairs, strict=True))
        reads += 1
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert reads > 0
    assert [book.serving(mark).name for mark in (ANNA, BERT)] == [pair[(CHANGES - 1) % 2] for pair in pairs]


def test_a_crash_before_the_rename_changes_nothing(tmp_path: Path) -> None:
    first, second = (version_on_disk(tmp_path, number, ANNA) for number in (1, 2))
    people.publish(tmp_path, first)
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom slime.weight_sync import people\n"
        "Path.replace = lambda *arguments: os._exit(9)\npeople.publish(sys.argv[1], sys.argv[2])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path), second], env=os.environ, check=False)
    assert ended.returncode == 9
    assert names(tmp_path, ANNA) == [first]
    people.publish(tmp_path, second)
    assert names(tmp_path, ANNA) == [second, first]


def test_the_book_goes_back_to_what_a_checkpoint_says(tmp_path: Path) -> None:
    anna = [version_on_disk(tmp_path, number, ANNA) for number in (1, 2, 3)]
    bert = version_on_disk(tmp_path, 1, BERT)
    for name in (*anna, bert):
        people.publish(tmp_path, name)
    assert people.set_back(tmp_path, {ANNA: anna[1], BERT: bert}) == [ANNA]
    assert names(tmp_path, ANNA) == [anna[1], anna[0]]
    assert people.set_back(tmp_path, {ANNA: anna[2]}) == sorted([ANNA, BERT])
    assert (names(tmp_path, ANNA), names(tmp_path, BERT)) == ([anna[2]], [])
    assert people.set_back(tmp_path, {ANNA: anna[2]}) == []
    with pytest.raises(PeopleError, match="cannot be read"):
        people.set_back(tmp_path, {BERT: adapter_name(9, "0123abcd", 9, BERT)})
    assert (names(tmp_path, ANNA), names(tmp_path, BERT)) == ([anna[2]], [])


def test_old_versions_leave_the_book_and_the_disk(tmp_path: Path) -> None:
    anna = [version_on_disk(tmp_path, number, ANNA) for number in range(1, 8)]
    bert = version_on_disk(tmp_path, 1, BERT)
    for name in (*anna[:6], bert):
        people.publish(tmp_path, name)
    people.prune(tmp_path, ANNA, held=[anna[6], anna[0]], kept=2)
    assert names(tmp_path, ANNA) == [anna[5], anna[4], anna[0]]
    left = {folder_of(people_folder(tmp_path), anna[place]).name for place in (0, 4, 5, 6)}
    assert {path.name for path in (people_folder(tmp_path) / ANNA).iterdir()} == left
    people.prune(tmp_path, ANNA)
    assert names(tmp_path, ANNA) == [anna[5], anna[4], anna[0]]
    assert not folder_of(people_folder(tmp_path), anna[6]).exists(), "a candidate nobody holds"
    assert names(tmp_path, BERT) == [bert]


def test_forgetting_a_person_leaves_nothing_of_him(tmp_path: Path) -> None:
    people.forget(tmp_path, ANNA)
    assert not people_folder(tmp_path).exists()
    kept, gone = version_on_disk(tmp_path, 1, BERT), version_on_disk(tmp_path, 1, ANNA)
    version_on_disk(tmp_path, 2, ANNA)
    for name in (kept, gone):
        people.publish(tmp_path, name)
    people.forget(tmp_path, ANNA)
    people.forget(tmp_path, ANNA)
    left = [path for path in people_folder(tmp_path).rglob("*") if path.is_file()]
    assert not [path for path in left if ANNA in str(path) or ANNA.encode() in path.read_bytes()]
    assert (names(tmp_path, BERT), names(tmp_path, ANNA)) == ([kept], [])
    with pytest.raises(PeopleError, match="is not a person's mark"):
        people.forget(tmp_path, "..")


def test_what_began_before_a_person_was_forgotten_is_not_kept_or_published(tmp_path: Path) -> None:
    book = people.Book(people_folder(tmp_path))
    first = version_on_disk(tmp_path, 1, ANNA)
    people.publish(tmp_path, first, book.forgotten(ANNA))
    people.forget(tmp_path, ANNA)
    assert (book.forgotten(ANNA), book.forgotten(BERT)) == (1, 0)
    late = version_on_disk(tmp_path, 2, ANNA)  # whose folder a writer made again
    final = folder_of(people_folder(tmp_path), late)
    written = final.rename(final.with_name("2.tmp"))
    with pytest.raises(ForgottenError):
        people.keep(tmp_path, late, written, 0)
    assert not written.parent.exists()
    version_on_disk(tmp_path, 2, ANNA)
    with pytest.raises(ForgottenError):
        people.publish(tmp_path, late, 0)
    assert names(tmp_path, ANNA) == []
    written = final.rename(final.with_name("2.tmp"))
    people.keep(tmp_path, late, written, 1)
    people.publish(tmp_path, late, 1)
    assert names(tmp_path, ANNA) == [late]


def test_the_digest_is_of_what_is_there_when_the_book_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who forgets the person meanwhile waits, or comes first: no line is left of a folder that is gone."""
    name = version_on_disk(tmp_path, 1, ANNA)
    digest_of = people.digest_of

    def forgets(folder: Path) -> str:
        found = digest_of(folder)
        with open(people_folder(tmp_path) / people.LOCK, "ab") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return found

    monkeypatch.setattr(people, "digest_of", forgets)
    people.publish(tmp_path, name)
    assert names(tmp_path, ANNA) == [name]


@pytest.mark.parametrize("meanwhile", ["the trainer prunes", "the trainer stores", "another command forgets"])
def test_two_processes_delete_and_write_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    for number in range(1, 4):
        people.publish(tmp_path, version_on_disk(tmp_path, number, ANNA))
    mine, remove = people_folder(tmp_path) / ANNA, os.rmdir
    left = ["first"]

    def rmdir(path: Any, *arguments: Any, **keywords: Any) -> None:
        if left and left.pop():
            match meanwhile:
                case "the trainer prunes":
                    subprocess.run(["rm", "-r", *map(str, mine.iterdir())], check=True)
                case "the trainer stores":
                    version_on_disk(tmp_path, 9, ANNA)
                case _:
                    subprocess.run(["rm", "-r", str(mine)], check=True)
        remove(path, *arguments, **keywords)

    monkeypatch.setattr(os, "rmdir", rmdir)
    if meanwhile == "another command forgets":
        people.prune(tmp_path, ANNA, kept=1)
    else:
        people.forget(tmp_path, ANNA)
        assert names(tmp_path, ANNA) == []
    assert not mine.exists()
