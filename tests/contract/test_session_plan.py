"""A method that learns from whole sessions is a folder too: one made here, outside the repository, plans, checks and loads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.config.runtime import RuntimeConfig
from openclaw.launch.method_check import folder_problems
from openclaw.launch.plan import Recipe
from openclaw.launch.profiles import TINY_CPU
from openclaw.launch.resolve import make_plan
from openclaw.method import load_method
from slime.utils.misc import load_function

METHOD = """
from dataclasses import dataclass

from openclaw.config.method_config import MethodConfig
from openclaw.method import JudgePlan, SampleDecision, SessionPlan
from openclaw.training.samples import make_sample


@dataclass(frozen=True, kw_only=True)
class Config(MethodConfig):
    name = "diary"
    rollout_function = "openclaw_diary_rollout.generate_rollout_diary"


class Diary:
    name = "openclaw-diary"

    def __init__(self, config, own):
        self.config = config

    def judges(self):
        return JudgePlan(hint_votes=1, needs_teacher=True, session=SessionPlan(self.questions, 60.0))

    def questions(self, turns):
        return [[{"role": "user", "content": f"What do {len(turns)} turns teach?"}]]

    def samples(self, turn, verdict):
        if verdict.teacher_log_probs is None:
            return SampleDecision(reason="nothing_taught")
        return SampleDecision([make_sample(turn, 0.0, score=None, teacher_log_probs=verdict.teacher_log_probs)])

    def session_samples(self, judged):
        return []
"""
ROLLOUT = """
from openclaw.training.live import LiveRollout

generate_rollout_diary = LiveRollout("openclaw_diary_method.Diary")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "openclaw-diary"
    folder.mkdir()
    (folder / "openclaw_diary_method.py").write_text(METHOD)
    (folder / "openclaw_diary_rollout.py").write_text(ROLLOUT)
    for module in ("openclaw_diary_method", "openclaw_diary_rollout"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(str(folder))
    load_function.cache_clear()
    return folder


def test_a_plan_for_sessions_passes_the_check_and_loads(folder: Path) -> None:
    assert folder_problems(folder, {}) == []
    session = load_method("openclaw_diary_method.Diary", RuntimeConfig()).judges().session
    assert session is not None
    [prompt] = session.questions([make_turn(next_state=USER_NEXT)] * 3)
    assert prompt[0]["content"] == "What do 3 turns teach?"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("return [[{", "return [{", "clause method-10"),
        ("hint_votes=1, needs_teacher=True", "prm_votes=1", "session asks the hint judge; set hint_votes"),
        ('    name = "diary"', '    name = "diary"\n    asks_judge = False', "asks_judge is False, but judges() asks"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused(folder: Path, old: str, new: str, says: str) -> None:
    file = folder / "openclaw_diary_method.py"
    assert old in METHOD
    file.write_text(METHOD.replace(old, new).replace('teach?"}]]', 'teach?"}]' if "[[{" in old else 'teach?"}]]'))
    sys.modules.pop(file.stem, None)
    assert any(says in problem for problem in folder_problems(folder, {}))


def test_a_method_without_judges_starts_no_judge_engine(folder: Path) -> None:
    assert make_plan(Recipe(str(folder), None, TINY_CPU), [], {}).args.prm_enable
    file = folder / "openclaw_diary_method.py"
    file.write_text(METHOD.replace('    name = "diary"', '    name = "diary"\n    asks_judge = False'))
    sys.modules.pop(file.stem, None)
    plan = make_plan(Recipe(str(folder), None, TINY_CPU), [], {})
    assert (plan.args.prm_enable, plan.args.prm_num_gpus) == (False, 0)
