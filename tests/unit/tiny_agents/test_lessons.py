"""A lesson is told as other runs would tell it, and every lesson once in each round."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict

from lab.tiny_agents.lessons import VARIANTS, Call, Lesson, Words, _events, as_runs, variants
from lab.tiny_agents.teach import _order

RUN = "0b9c8a64-8b44-4e1c-9a55-0d5c2a0f6b11"
OTHER_RUN = "11111111-2222-4333-8444-555555555555"


def prompt(run: str, moment: str) -> Lesson:
    """Return a lesson as a run sends it."""
    text = f"run {run} in {run}/log [{moment} UTC], version 1.2.3 of a task"
    return Lesson([{"role": "user", "content": text}], [], ["right", "wrong"])


def test_a_lesson_without_times_stays_as_it_is() -> None:
    lesson = Lesson([{"role": "user", "content": "write 12 words in 2 files"}], [], ["right"])
    assert variants(lesson) == [lesson]


def test_other_runs_differ_in_id_day_and_time_alone() -> None:
    found = variants(prompt(RUN, "Tue 2026-11-24 04:21"))
    texts = [each.messages[0]["content"] for each in found]
    assert len(set(texts)) == VARIANTS
    for text in texts:
        assert RUN not in text
        first, second = text.split()[1], text.split()[3].removesuffix("/log")
        assert first == second
        assert text.endswith("UTC], version 1.2.3 of a task")
        assert "Tue 2026-11-24 04:21" not in text
    assert all(each.answers == ["right", "wrong"] for each in found)


def test_another_recording_gives_the_same_lessons() -> None:
    one, other = prompt(RUN, "Tue 2026-11-24 04:21"), prompt(OTHER_RUN, "Fri 2027-01-01 23:59")
    assert [asdict(each) for each in variants(one)] == [asdict(each) for each in variants(other)]


def test_a_day_is_found_as_programs_write_it() -> None:
    dates = [[f"Today's date: {day}" for day in days] for days in (["Mon Nov 30 2026"], ["Fri Jan 01 2027"])]
    one, other = ([Lesson([{"role": "user", "content": text}], [], ["right"]) for text in texts] for texts in dates)
    assert as_runs(one) == as_runs(other)
    assert len({run[0].messages[0]["content"] for run in as_runs(one)}) == VARIANTS


def test_a_run_sends_all_its_lessons_at_one_time() -> None:
    timed, timeless = prompt(RUN, "Tue 2026-11-24 04:21"), Lesson([], [], ["right"])
    runs = as_runs([timed, timeless, timed])
    assert len(runs) == VARIANTS
    assert all(first == last and between == timeless for first, between, last in runs)
    assert as_runs([timeless]) == [[timeless]]


def test_every_round_has_each_lesson_once() -> None:
    order = _order(6)
    rounds = [list(itertools.islice(order, 6)) for _ in range(4)]
    assert all(sorted(each) == list(range(6)) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1


def test_a_streamed_reply_says_what_the_whole_one_says() -> None:
    for reply, reason in ((Words("Done."), "stop"), (Call("exec", {"command": "ls"}), "tool_calls")):
        lines = [event.removeprefix("data: ").strip() for event in _events(0, reply.message(0))]
        assert lines[-1] == "[DONE]"
        chunks = [json.loads(line) for line in lines[:-1]]
        deltas = [choice for chunk in chunks for choice in chunk["choices"]]
        assert [choice["finish_reason"] for choice in deltas] == [None, reason]
        told = deltas[0]["delta"]
        assert told["content"] == reply.message(0)["content"]
        calls = [{"index": 0, **call} for call in reply.message(0).get("tool_calls", [])]
        assert told.get("tool_calls", []) == calls
