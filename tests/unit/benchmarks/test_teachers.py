"""The benchmark of teachers: its arms, what a run is told of its teacher, and the tokens that it counts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import teachers
from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.config.runtime import RuntimeConfig
from openclaw.credit.baseline import record_judged
from openclaw.launch.method_check import folder_problems
from openclaw.launch.methods import find_method
from openclaw.ledger.records import Verdict
from openclaw.ledger.store import Ledger
from openclaw.method import load_method

URL = "http://127.0.0.1:31999"


def test_the_run_reads_its_teacher_and_asks_no_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENCLAW_TEACHER_URL", "http://127.0.0.1:1")
    told = teachers.environment(URL, tmp_path)
    assert (told["OPENCLAW_TEACHER_URL"], told["OPENCLAW_TEACHER_TOKENIZER"]) == (URL, str(tmp_path))
    assert (told["GATE"], told["OPENCLAW_FUSES"]) == ("0", "off")
    words = teachers.command(tmp_path, 3, 24, 256)
    assert words[words.index("--method") + 1] == str(teachers.METHOD)
    assert folder_problems(teachers.METHOD, {"OPENCLAW_TEACHER_URL": URL}) == []
    assert not find_method(str(teachers.METHOD)).config.asks_judge


def test_without_a_teacher_of_another_model_it_would_learn_nothing() -> None:
    [problem] = folder_problems(teachers.METHOD, {})
    assert problem.endswith("set OPENCLAW_TEACHER_URL, see instructions/teachers.md")


def test_the_method_teaches_a_turn_as_the_policy_read_it() -> None:
    folder_problems(teachers.METHOD, {"OPENCLAW_TEACHER_URL": URL})  # imports it
    environment = {"OPENCLAW_TEACHER_URL": URL}
    method = load_method("every_turn_method.EveryTurn", RuntimeConfig.from_env(environment), environment)
    plan, turn = method.judges(), make_turn()
    assert not plan.asks_judge
    assert plan.teacher_context is not None
    assert plan.teacher_context(turn, Verdict()) == turn.messages
    assert method.samples(turn, Verdict()).reason == "no_teacher_log_probs"
    [sample] = method.samples(turn, Verdict(teacher_log_probs=(-1.0, -2.0, -3.0))).samples
    assert (sample.reward, sample.teacher_log_probs) == (0.0, [-1.0, -2.0, -3.0])


def test_it_counts_the_tokens_of_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for name, untaught in (("a", {}), ("b", {"control": 1, "unaligned": 1})):
        ledger.turns.record(make_turn(name))
        ledger.turns.record_next_state(name, USER_NEXT, 102.0)
        verdict = Verdict(teacher_log_probs=(-1.0, -2.0, -3.0), teacher_untaught=untaught)
        record_judged(ledger, name, verdict, [], "none")
    ledger.turns.record(make_turn("without"))
    ledger.close()
    assert teachers.tokens_of(tmp_path / "ledger.sqlite") == {"taught": 4, "control": 1, "unaligned": 1}


def test_a_finished_run_is_kept_and_an_unknown_arm_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, int]] = []

    def run_arm(arm: str, teacher: Path, seed: int, updates: int, heldout: int) -> dict[str, Any]:
        asked.append((arm, seed))
        rates = dict.fromkeys(teachers.SUMMARY, 0.5)
        counts = {"teacher_tokens": {"taught": 3}, "refused_requests": 0, "seconds_total": 1.0}
        return {"arm": arm, "seed": seed, "updates": updates, "seconds_with_teacher": 2, **rates, **counts}

    (tmp_path / "metrics.json").write_text('{"liked": 1.0}')
    monkeypatch.setattr(teachers, "run_arm", run_arm)
    monkeypatch.setattr(teachers, "teacher_of", lambda arm, folder: tmp_path)
    monkeypatch.setattr(teachers, "describe_machine", dict)
    path = tmp_path / "r.json"
    for seeds in ("0", "0,1"):
        line = ["teachers", "--arms", "liked/same,unchanged/same", "--seeds", seeds, "--json", str(path)]
        monkeypatch.setattr(sys, "argv", line)
        teachers.main()
    assert asked == [("liked/same", 0), ("unchanged/same", 0), ("liked/same", 1), ("unchanged/same", 1)]
    saved = json.loads(path.read_text())
    assert saved["summary"]["liked/same"]["seeds"] == [0, 1]
    assert [run.get("teacher") for run in saved["runs"]] == [{"liked": 1.0}, None] * 2
    monkeypatch.setattr(sys, "argv", ["teachers", "--arms", "liked", "--json", str(path)])
    with pytest.raises(SystemExit):
        teachers.main()
    assert "no arm 'liked'; use liked/same" in capsys.readouterr().err
