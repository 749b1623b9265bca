"""Each clause of a method, by a method that breaks it; the methods of the repository break none."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openclaw.config.runtime import RuntimeConfig
from openclaw.judge.hygiene import Limits, defect
from openclaw.launch import method_check
from openclaw.launch.method_check import main, plugins_of
from openclaw.ledger.records import Verdict
from openclaw.method import JudgePlan, SampleDecision, SessionPlan, load_method
from openclaw.method.check import CLAUSES, MethodCheck, canned_turn, canned_verdicts
from openclaw.training.samples import make_sample

CONFIG = RuntimeConfig()


class Good:
    """A method that breaks no clause; the tests replace parts of it."""

    name = "good"

    def judges(self) -> Any:
        return JudgePlan(prm_votes=1, hint_votes=1, needs_teacher=True)

    def samples(self, turn: Any, verdict: Verdict) -> Any:
        if not verdict.score:
            return SampleDecision(reason="zero")
        return SampleDecision([make_sample(turn, verdict.score, score=verdict.score)])

    def session_samples(self, judged: Any) -> Any:
        return [(item.turn.id, make_sample(item.turn, 0.1, score=0)) for item in judged if item.turn.reason is not None]


def broken(**parts: Any) -> list[str]:
    method = type("Method", (Good,), parts)()
    return [each.clause for each in MethodCheck(method).run(CONFIG.temperature)]


def test_a_good_method_and_those_of_the_repository() -> None:
    assert broken() == []
    for path in (
        "openclaw_rl_method.BinaryRL",
        "openclaw_opd_method.OnPolicyDistillation",
        "openclaw_combine_method.Combine",
        "openclaw_sdpo_method.SelfDistillation",
        "openclaw_oel_method.ExperientialLearning",
        "openclaw_personal_method.Personal",
    ):
        assert MethodCheck(load_method(path, CONFIG, {})).run(CONFIG.temperature) == []


def test_the_canned_turn_can_be_trained() -> None:
    turn = canned_turn(CONFIG.temperature)
    turn.validate()
    assert defect(turn, Limits(CONFIG.temperature, CONFIG.min_response_tokens, 1000)) is None
    assert len(list(canned_verdicts(JudgePlan(prm_votes=1)))) == 3
    assert len(list(canned_verdicts(JudgePlan(prm_votes=1, hint_votes=2, needs_teacher=True)))) == 9


def bad_sample(**changes: Any) -> Callable[..., Any]:
    return lambda self, turn, verdict: SampleDecision([replace(make_sample(turn, 1.0, score=1), **changes)])


def changes_the_turn(self: Any, turn: Any, verdict: Verdict) -> Any:
    turn.messages.append({"role": "user", "content": "more"})
    return Good().samples(turn, verdict)


def fails_without_a_hint(self: Any, turn: Any, verdict: Any) -> Any:
    assert verdict.hint
    return Good().samples(turn, verdict)


def looks_for_a_word(self: Any, turn: Any, verdict: Verdict) -> Any:
    assert turn.next_state[0]["content"].index("please") >= 0
    return Good().samples(turn, verdict)


def needs_a_text_as_reply(self: Any, turn: Any, verdict: Verdict) -> Any:
    assert len(turn.response_message["content"]) >= 0
    return Good().samples(turn, verdict)


def needs_a_message(self: Any, turn: Any, verdict: Verdict) -> Any:
    assert turn.next_state[-1]["role"]
    return Good().samples(turn, verdict)


def with_context(context: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: JudgePlan(prm_votes=1, needs_teacher=True, teacher_context=context)


def with_questions(questions: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: JudgePlan(hint_votes=1, session=SessionPlan(questions, 60.0))


COUNTER = itertools.count()


@pytest.mark.parametrize(
    ("clause", "parts"),
    [
        ("method-1", {"name": None}),
        ("method-1", {"session_samples": None}),
        ("method-2", {"judges": lambda self: None}),
        ("method-2", {"judges": lambda self: JudgePlan(needs_teacher=True)}),
        ("method-3", {"samples": fails_without_a_hint}),
        ("method-3", {"samples": looks_for_a_word}),
        ("method-3", {"samples": needs_a_text_as_reply}),
        ("method-3", {"samples": needs_a_message}),
        ("method-4", {"samples": lambda self, turn, verdict: None}),
        ("method-5", {"samples": bad_sample(reward=float("nan"))}),
        ("method-5", {"samples": bad_sample(tokens=[1, 2])}),
        ("method-5", {"samples": bad_sample(loss_mask=[1])}),
        ("method-5", {"samples": lambda self, turn, verdict: SampleDecision(["text"])}),  # type: ignore[list-item]
        ("method-6", {"samples": lambda self, turn, verdict: SampleDecision(reason=str(next(COUNTER)))}),
        ("method-6", {"samples": changes_the_turn}),
        ("method-7", {"session_samples": lambda self, judged: None}),
        ("method-7", {"session_samples": lambda self, judged: judged[7]}),
        ("method-7", {"session_samples": lambda self, judged: [("other", None)]}),
        ("method-8", {"judges": with_context(lambda turn, verdict: "text")}),
        ("method-8", {"judges": with_context(lambda turn, verdict: turn.nothing)}),
        (
            "method-9",
            {
                "samples": lambda self, turn, verdict: SampleDecision(reason="no"),
                "session_samples": lambda self, judged: [],
            },
        ),
        ("method-10", {"judges": with_questions(lambda turns: "text")}),
        ("method-10", {"judges": with_questions(lambda turns: [[]])}),
        ("method-10", {"judges": with_questions(lambda turns: [turns[0].messages, turns[1].messages])}),
    ],
)
def test_a_method_that_breaks_a_clause(clause: str, parts: dict[str, Any]) -> None:
    assert broken(**parts) == [clause]


def test_a_teacher_context_may_refuse() -> None:
    def refuse(turn: Any, verdict: Verdict) -> None:
        raise ValueError("no context")

    assert broken(judges=with_context(refuse)) == []
    assert broken(judges=with_context(lambda turn, verdict: None)) == []


def test_every_clause_is_tried_in_one_pass() -> None:
    assert broken(
        name=3,
        judges=lambda self: None,
        samples=lambda self, turn, verdict: None,
        session_samples=lambda self, judged: None,
    ) == ["method-1", "method-2", "method-4", "method-7"]
    assert list(CLAUSES) == [f"method-{number}" for number in range(1, 11)]


def test_a_field_that_a_turn_lacks_is_answered_with_those_it_has() -> None:
    method = type("Method", (Good,), {"samples": lambda self, turn, verdict: turn.reply})()
    (found,) = MethodCheck(method).run(CONFIG.temperature)
    assert "has no attribute 'reply'" in found.seen
    assert "; a Turn has id, session_id" in found.seen
    assert "response_message" in found.seen


def test_a_folder_of_plugins_is_checked_by_the_clauses_of_plugins(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my-method"
    folder.mkdir()
    (folder / "custom_rm.py").write_text("class R:\n    def score(self, a, b, c, d): ...\n")
    (folder / "custom_loss.py").write_text("")
    assert plugins_of(folder) == [
        ("--custom-loss-function-path", str(folder / "custom_loss.py")),
        ("--custom-rm-path", str(folder / "custom_rm.py")),
    ]
    assert main(["check", str(folder)]) == 1
    loss, rewards = capfd.readouterr().out.split("\nrejected --custom-rm-path ")
    assert loss.startswith(f"rejected --custom-loss-function-path {folder}/custom_loss.py\n  ")
    assert rewards.startswith(f"{folder}/custom_rm.py\n  clause reward-1: "), "not the fault of the other file"
    (folder / "my_method_method.py").write_text("")
    assert plugins_of(folder) == []


@pytest.fixture
def checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check plugins in this process, where torch has been imported; another one takes two seconds."""
    from slime.contract.__main__ import main

    def call(command: list[str]) -> int:
        assert command[:3] == [sys.executable, "-m", "slime.contract"]
        return main(command[3:])

    monkeypatch.setattr(method_check.subprocess, "call", call)


@pytest.mark.usefixtures("checked_here")
def test_further_flags_go_to_the_check_of_plugins(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The check of a reward model asks for the flag that names its checkpoint."""
    folder = tmp_path / "my-method"
    folder.mkdir()
    (folder / "custom_rm.py").write_text(
        "class R:\n    def __init__(self, checkpoint_path): self.path = checkpoint_path\n"
        "    def score(self, prompt, response, next_state): return float(len(self.path))\n"
    )
    assert main(["check", str(folder)]) == 1
    assert "add --prm-model-path PATH" in capfd.readouterr().out
    assert main(["check", str(folder), "--prm-model-path", str(tmp_path)]) == 0
    assert capfd.readouterr().out.startswith("accepted --custom-rm-path ")
    for words in (["check", "openclaw-rl", "--prm-model-path", "x"], ["clauses", "--prm-model-path", "x"]):
        with pytest.raises(SystemExit):
            main(words)
        assert "unknown argument --prm-model-path" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("called", "advice"),
    [
        (
            "compute_gae(rewards)",
            "name the parameter advantages, or import slime.algorithms.advantages.generalized_advantages",
        ),
        ("my_own(rewards)", "define my_own in the file, or import it"),
    ],
)
@pytest.mark.usefixtures("checked_here")
def test_a_name_that_a_guide_leaves_out_is_answered(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], called: str, advice: str
) -> None:
    folder = tmp_path / "my-method"
    folder.mkdir()
    (folder / "custom_loss.py").write_text(f"def compute_loss(policy_logits, rewards):\n    return {called}\n")
    assert main(["check", str(folder)]) == 1
    assert f"is not defined; {advice}" in capfd.readouterr().out
