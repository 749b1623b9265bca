"""Records of episodes: what is stored, what a crash leaves, what is kept secret, and how they are shown."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.rollout import inspect as viewer
from agentrl.rollout.records import EpisodeRecord, RecordError, names, read
from openclaw import inspect as of_runs
from openclaw.ledger.store import Ledger
from openclaw.runs.folder import no_ledger
from tests.helpers.agent_records import write_episode

SECRET = "sk-ant-api03-" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 3
GOLDEN = """\
train-3-7-aa  guess-42  2 turns  5 tokens  outcome +1  done
reset, seed 5
  tool: guess
  system: Be brief.
  user: Guess
    my number.
[0] reply, 3 + 2 tokens, weights 1, completed
  thought: Hm.
  says: tool call guess({"number": 7})
[0] action {"tool": "guess", "arguments": {"number": 7}}
[0] observation
  sees: wrong
[1] context drop_middle: 2 messages dropped, 0 shortened, 90 -> 40 tokens
[1] reply, 8 + 3 tokens, weights 1, 2, completed
  says: 42
[1] malformed: write one
[1] observation, ends the episode: done
  sees: right
verdict ok, score 1.0, 2 of 2 passed: all right
judge of train-3-7-aa:0: 0.5, votes [1, None, 1, -1]
end: done, outcome 1.0, 2 turns
"""


TOTAL = "trained: 1 episodes, 1 with an outcome, mean outcome +1.00, 0 lost"


def test_an_episode_is_shown_by_both_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_episode(tmp_path).close()
    assert viewer.main([str(tmp_path), "--episode", "train-3"]) == 0
    assert capsys.readouterr().out == GOLDEN
    assert of_runs.main([str(tmp_path), "--episode", "train-3"]) == 0
    assert capsys.readouterr().out == GOLDEN
    assert of_runs.main([str(tmp_path), "--episodes"]) == 0
    assert capsys.readouterr().out == GOLDEN.splitlines()[0] + f"\n{TOTAL}\n"
    assert viewer.main([str(tmp_path), "--episode", "train-3", "--tokens"]) == 0
    shown = capsys.readouterr().out
    assert "  ids: [9, 10, 11]\n  logprobs: [-1.5, -0.3333333333333333, 0.0]\n" in shown
    assert of_runs.main([str(tmp_path), "--episode", "train-3", "--tokens"]) == 0
    assert capsys.readouterr().out == shown


def test_a_run_with_a_ledger_shows_both_kinds_of_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Ledger(tmp_path / "ledger.sqlite")
    write_episode(tmp_path).close()
    assert of_runs.main([str(tmp_path), "--episodes"]) == 0
    assert capsys.readouterr().out == GOLDEN.splitlines()[0] + f"\n{TOTAL}\n"
    assert of_runs.main([str(tmp_path), "--episode", "train-3"]) == 0
    assert capsys.readouterr().out == GOLDEN
    assert of_runs.main([str(tmp_path), "--episode", "other"]) == 2
    assert "--episodes lists them" in capsys.readouterr().err
    for words in (["--tokens"], ["--tokens", "--episode", "other"]):
        with pytest.raises(SystemExit):
            of_runs.main([str(tmp_path), *words])
        assert "--tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--episode", "trial"], "no episode 'trial'"),
        (["--episode", "train-3-7-"], "2 episodes begin with 'train-3-7-', such as train-3-7-aa and train-3-7-ab"),
    ],
)
def test_a_name_that_is_unknown_or_stands_for_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    for name in ("train-3-7-aa", "train-3-7-ab"):
        write_episode(tmp_path, name).close()
    assert viewer.main([str(tmp_path), *words]) == 2
    assert says in capsys.readouterr().err
    assert viewer.main([str(tmp_path / "elsewhere")]) == 2
    assert "has no episodes" in capsys.readouterr().err


def test_numbers_that_are_not_shown_are_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder in place of the numbers cannot be read."""
    write_episode(tmp_path, "one").close()
    numbers = tmp_path / "episodes" / "one.ids"
    numbers.unlink()
    numbers.mkdir()
    assert viewer.main([str(tmp_path)]) == 0
    assert viewer.main([str(tmp_path), "--episode", "one"]) == 0
    assert "2 turns" in capsys.readouterr().out
    with pytest.raises(IsADirectoryError):
        viewer.main([str(tmp_path), "--episode", "one", "--tokens"])


def test_tokens_are_stored_once_and_exactly(tmp_path: Path) -> None:
    record = write_episode(tmp_path)
    episode = read(tmp_path, record.name)
    first, second = episode.tokens.values()
    assert (first.prompt_ids, first.ids, first.log_probs) == ([1, 2, 3], [4, 5], [-0.1, -0.2])
    assert (second.prompt_ids, second.ids) == ([1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11])
    assert second.log_probs == [-1.5, -1 / 3, 0.0]
    assert (tmp_path / "episodes" / "train-3-7-aa.ids").stat().st_size == 4 * 11 + 8 * 5
    record.close()


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 4000))
def test_whatever_a_crash_cuts_off_the_rest_can_be_read(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("run")
    write_episode(folder).close()
    place = folder / "episodes" / "train-3-7-aa.jsonl"
    whole = place.read_bytes()
    place.write_bytes(whole[:cut])
    episode = read(folder, "train-3-7-aa")
    assert len(episode.events) == whole[:cut].count(b"\n")
    assert episode.cut == (whole[:cut][-1:] not in (b"", b"\n"))
    assert len(list(viewer.episode_lines(episode, tokens=True))) > len(episode.events)


def test_a_damaged_or_newer_record_says_so(tmp_path: Path) -> None:
    write_episode(tmp_path).close()
    place = tmp_path / "episodes" / "train-3-7-aa.jsonl"
    lines = place.read_text().splitlines()
    place.write_text("\n".join([lines[0][:-5], *lines[1:], ""]))
    with pytest.raises(RecordError, match="line 1 is damaged"):
        read(tmp_path, "train-3-7-aa")
    place.write_text(json.dumps({**json.loads(lines[0]), "v": 2}) + "\n")
    with pytest.raises(RecordError, match="of version 2; this program reads up to 1"):
        read(tmp_path, "train-3-7-aa")
    place.write_text("\n".join([*lines, ""]))
    place.with_suffix(".ids").write_bytes(b"")
    with pytest.raises(RecordError, match=r"the \.ids file ends at 0"):
        read(tmp_path, "train-3-7-aa")


def test_a_secret_is_neither_in_the_text_nor_in_the_ids(tmp_path: Path) -> None:
    record = EpisodeRecord(tmp_path, "x")
    record.policy([1], [2], [-0.5], t=0, message={"content": "hi"}, weight_spans=[], finish="completed")
    record.write("observation", t=0, text=f"the key is {SECRET}", ending=None)
    record.policy([1, 2, 77, 78], [3], [-0.5], t=1, message={"content": "ok"}, weight_spans=[], finish="completed")
    record.close()
    assert SECRET not in (tmp_path / "episodes" / "x.jsonl").read_text()
    episode = read(tmp_path, "x")
    assert list(episode.tokens) == [0]
    assert episode.events[2]["withheld"] is True
    assert (tmp_path / "episodes" / "x.ids").stat().st_size == 2 * 4 + 8


def test_files_are_private_and_stay_in_the_folder(tmp_path: Path) -> None:
    record = EpisodeRecord(tmp_path, "../../etc/x y")
    record.write("aborted", t=0)
    record.close()
    (place,) = (tmp_path / "episodes").glob("*.jsonl")
    assert place.name == "..-..-etc-x-y.jsonl"
    assert place.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "episodes").stat().st_mode & 0o777 == 0o700


def test_records_are_listed_oldest_first(tmp_path: Path) -> None:
    import os

    for age, name in enumerate(("b", "a", "c")):
        write_episode(tmp_path, name).close()
        os.utime(tmp_path / "episodes" / f"{name}.jsonl", (time.time(), 1000 + age))
    assert names(tmp_path) == ["b", "a", "c"]


@pytest.mark.parametrize("figures", [True, False])
def test_what_needs_conversations_says_where_an_agents_run_has_its_figures(figures: bool, tmp_path: Path) -> None:
    write_episode(tmp_path).close()
    if figures:
        (tmp_path / "report.json").write_text("{}")
    told = no_ledger(tmp_path)
    assert (f"its figures are in {tmp_path / 'report.json'}" in told) == figures
    assert f"openclaw-rl inspect {tmp_path} --episodes" in told
