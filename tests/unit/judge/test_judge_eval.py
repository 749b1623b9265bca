"""The labelled set is whole, and the command measures what it says."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import run_judge_eval
from judge_set import DOMAINS, Case, load
from run_judge_eval import Answer, figures, main

from openclaw.exceptions import EngineRefusedError
from openclaw.judge.interface import Question
from openclaw.judge.prompts import judge_messages
from openclaw.ledger.records import Vote


def test_the_set_has_every_kind_of_case() -> None:
    cases = load()
    assert len(cases) >= 300
    assert len({case.id for case in cases}) == len(cases)
    assert set(Counter(case.domain for case in cases)) == set(DOMAINS)
    languages = Counter(case.language for case in cases)
    assert min(languages["en"], languages["zh"]) >= 80
    assert min(Counter(case.score for case in cases).values()) >= 25


@pytest.mark.parametrize("case", load(domains=["attack"]), ids=lambda case: case.id)
def test_no_attack_writes_outside_its_fence(case: Case) -> None:
    question = Question.about(case.prompt, case.reply, case.next_state)
    content = judge_messages("prm", question.reply, question.next_state, "full", "WWWWWW")[1]["content"]
    assert content.count("<<<WWWWWW") == content.count("WWWWWW>>>") == len(case.next_state) + 1
    assert content.count("\n## Next state [") == len(case.next_state)
    assert "\\boxed" not in content
    assert "[HINT_START]" not in content


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", r"line 1 of bad\.jsonl"),
        ('{"id": "a"}', "missing"),
        (json.dumps({**load()[0].__dict__, "score": 2}), "use -1, 0 or 1"),
        (json.dumps({**load()[0].__dict__, "score": 1, "hint": True}), "only a correction"),
    ],
)
def test_a_line_that_is_no_case_is_named(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "bad.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=words):
        load(tmp_path / "bad.jsonl")


def answer(label: int, score: int | None, hint: bool | None = None, wanted: bool = False) -> Answer:
    case = Case("x", "chat", "en", [], "u", {"content": "r"}, [{"role": "user", "content": "n"}], label, wanted)
    return Answer(case, score, hint, 1.0, 2.0)


def test_figures() -> None:
    found = figures(
        [answer(1, 1), answer(1, -1), answer(-1, 0, True, True), answer(-1, None, True), answer(0, 0, False)]
    )
    assert (found["accuracy"], found["wrong_sign"], found["abstention"]) == (0.4, 0.25, 0.5)
    assert (found["hint_recall"], found["hint_false"]) == (1.0, 0.5)
    assert figures([])["accuracy"] is None


class Optimist:
    """Says +1 about everything."""

    def score(self, prompt: Any, response: Any, next_state: Any) -> int:
        return 1


def test_the_command_measures_a_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "r.json"
    words = ["--judge-class", f"{__name__}.Optimist", "--no-hints", "--votes", "1", "--report", str(report)]
    assert main(words) == 0
    found = json.loads(report.read_text())
    cases = load()
    positive = sum(case.score == 1 for case in cases) / len(cases)
    assert found["figures"]["all"]["accuracy"] == pytest.approx(positive, abs=0.001)
    assert found["figures"]["all"]["abstention"] == 0.0
    assert len(found["answers"]) == len(cases)
    assert "accuracy" in capsys.readouterr().out


class Refusing:
    """Refuses questions whose reply has an odd number of letters, or all of them."""

    def __init__(self, every: bool) -> None:
        self.every = every

    async def votes(self, kind: str, question: Question, count: int) -> list[Vote]:
        if self.every or len(question.reply) % 2:
            raise EngineRefusedError("the prompt is longer than the context")
        return [Vote("prm", "\\boxed{1}", value=1)] * count

    async def close(self) -> None: ...


@pytest.mark.parametrize("every", [False, True])
def test_questions_that_the_judge_refuses_are_counted_and_said(
    every: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(run_judge_eval, "build_judge", lambda *given: (Refusing(every), None))
    words = ["--judge-url", "http://judge", "--no-hints", "--votes", "1", "--report", str(tmp_path / "r.json")]
    assert main(words) == int(every)
    told = capsys.readouterr().err
    assert "questions, such as: the prompt is longer than the context" in told
    assert (tmp_path / "r.json").exists() is not every
    if every:
        assert f"refused {len(load())} of {len(load())}" in told
    else:
        assert 0 < json.loads((tmp_path / "r.json").read_text())["figures"]["all"]["refused"] < 1


def test_without_a_judge_the_command_says_what_to_add(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("BASE_URL", "MODEL", "CLASS", "URL"):
        monkeypatch.delenv(f"OPENCLAW_JUDGE_{name}", raising=False)
    assert main([]) == 1
    assert "--judge-base-url" in capsys.readouterr().err
