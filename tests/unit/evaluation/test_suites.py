"""Each suite against an oracle, a model that says nothing, one that always says the same, and broken replies."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from evaluation.case import LEVELS, Case, EvalError, Suite, SuiteError
from evaluation.code_box import CodeBox
from evaluation.coding import Coding
from evaluation.conversation import ACTIVE, CONVERSATION, PASSIVE, broken, draw_rules
from evaluation.retention import Retention
from evaluation.shell import Shell
from evaluation.suites import NAMES, build_suites
from evaluation.talk import defect
from evaluation.terminal import Terminal
from evaluation.tool_use import TOOL_USE

from agentrl.exceptions import InfraError
from agentrl.tasks.harbor import write_task
from agentrl.tasks.shell.generate import generate, task_toml
from tests.helpers.plain_sandboxes import PlainProvider
from tests.helpers.scripted_model import Script, in_form, oracle, talk_of

MANY = 240
"""Enough problems for every family at every level."""


@pytest.fixture
async def coding(tmp_path: Path) -> AsyncIterator[Coding]:
    suite = Coding(CodeBox(PlainProvider(tmp_path)))
    await suite.open()
    yield suite
    await suite.close()


async def grades(suite: Suite, cases: list[Case], script: Script | None, finish_reason: str = "stop") -> Counter[str]:
    """Return how often each reason occurs; without a script the oracle plays."""
    found: Counter[str] = Counter()
    for case in cases:
        grade = await suite.play(case, talk_of(script or oracle(case), finish_reason))
        found[grade.reason] += 1
    return found


@pytest.mark.parametrize("suite", [CONVERSATION, TOOL_USE, Retention()], ids=lambda suite: suite.name)
async def test_the_oracle_solves_all_and_nothing_solves_none(suite: Suite) -> None:
    cases = [case for seed in (0, 1) for case in suite.cases(seed, MANY // 2)]
    assert await grades(suite, cases, None) == {"passed": MANY}
    assert "passed" not in await grades(suite, cases, lambda messages: "")
    without_restraint = [case for case in cases if case.family != "restraint"]
    assert "passed" not in await grades(suite, without_restraint, lambda messages: "I do not know.")


@pytest.mark.parametrize("suite", [CONVERSATION, Retention()], ids=lambda suite: suite.name)
async def test_broken_replies_pass_nothing(suite: Suite) -> None:
    cases = list(suite.cases(0, 60))
    assert set(await grades(suite, cases, None, "length")) == {"truncated"}
    assert "passed" not in await grades(suite, cases, lambda messages: "so it is 7 " * 80)


@pytest.mark.parametrize("name", NAMES)
def test_problems_are_the_same_each_time_and_differ_by_seed(name: str) -> None:
    (suite,), (again,) = build_suites([name], None), build_suites([name], None)
    first, second = suite.cases(0, 40), again.cases(0, 40)
    assert [case.id for case in first] == [case.id for case in second]
    if name != "conversation":  # whose rules hold functions
        assert [case.problem for case in first] == [case.problem for case in second]
    assert not {case.id for case in first} & {case.id for case in suite.cases(1, 40)}
    many = suite.cases(0, MANY)
    kinds = {(case.family, case.level) for case in many}
    assert len(kinds) == len({case.family for case in many}) * (LEVELS if name not in ("shell", "terminal") else 1)
    halves = {
        case.family for seed in (0, 1) for case in suite.cases(seed, len({each.family for each in many}) // 2 + 1)
    }
    assert halves == {case.family for case in many}


def test_rules_can_be_followed_together_and_not_by_a_fixed_reply() -> None:
    from random import Random

    for seed in range(400):
        rules = draw_rules(Random(seed), 1 + seed % 3)
        assert broken(rules, in_form(rules)) == [], [rule.text for rule in rules]
        assert broken(rules, "Yes, it is 7? I think **so**.")
        assert rules[0].name in {make(Random(0)).name for make in ACTIVE}
    made = [make(Random(1)) for make in (*ACTIVE, *PASSIVE)]
    broken_reply = {"no_comma": "a, b", "short": "so " * 60, "plain": "1. a", "no_question": "a?"}
    for rule in made:
        assert not rule.follows(broken_reply.get(rule.name, "Yes, it is 7.")), rule.name


async def test_a_rule_has_to_hold_after_the_reply_that_it_was_said_for() -> None:
    cases = [case for case in CONVERSATION.cases(0, 60) if case.family == "follow_up"]

    def forgetful(case: Case) -> Script:
        return lambda messages: in_form(case.problem.rules) if len(messages) == 3 else "Well, it is 7."

    for case in cases:
        grade = await CONVERSATION.play(case, talk_of(forgetful(case)))
        assert grade.reason.startswith("breaks_")


async def test_an_outdated_fact_is_no_answer() -> None:
    case = next(case for case in CONVERSATION.cases(0, 60) if case.family == "memory" and case.level == 3)
    facts = case.problem
    said = f"{' '.join(facts.outdated)}, no: {' '.join(facts.wanted)}"
    assert (await CONVERSATION.play(case, talk_of(lambda messages: said))).reason == "outdated"


def test_degenerate_replies() -> None:
    assert defect("fine", "stop", 0) is None
    assert defect("fine", "length", 0) == "truncated"
    assert defect(" \n", "stop", 0) == "empty"
    assert defect("", "tool_calls", 1) is None
    assert defect("no no no " * 20, "stop", 0) == "repetitive"
    assert defect("a" * 90, "stop", 0) == "repetitive"
    assert defect("哈" * 90, "stop", 0) == "repetitive"


async def test_the_oracle_writes_programs_that_pass(coding: Coding) -> None:
    cases = coding.cases(0, 42)
    assert {case.level for case in cases} == {1, 2, 3}
    assert len({case.family for case in cases}) >= 10
    assert await grades(coding, list(cases)[::3], None) == {"passed": 14}


async def test_programs_that_are_wrong_or_no_programs(coding: Coding) -> None:
    case = coding.cases(0, 1)[0]
    name = case.problem.name
    replies = {
        "": "empty",
        "I would rather not.": "no_code",
        "```python\nprint('all tests passed')\n```": "no_function",
        f"```\ndef {name}(numbers):\n  return = 3\n```": "syntax_error",
        f"def {name}(numbers):\n    return 5": "wrong_result",
        f"def {name}(numbers):\n    return sum(numbers) > 0": "wrong_result",
        f"def {name}(numbers):\n    return object()": "raised",
        f"def {name}(numbers):\n    raise SystemExit(0)": "raised",
        f"import os\ndef {name}(numbers):\n    os._exit(0)": "no_result",
        f"def {name}(numbers):\n    return 0\nopen('x', 'w').write('passed')": "wrong_result",
    }
    for reply, reason in replies.items():
        grade = await coding.play(case, talk_of(lambda messages, reply=reply: reply))
        assert (grade.reason, grade.passed) == (reason, False), grade


async def test_true_is_not_one_and_a_float_is_no_whole_number(coding: Coding) -> None:
    case = next(case for case in coding.cases(0, 42) if case.family == "digits" and case.level == 1)
    right = case.problem.solution.replace("return ", "return 1.0 * ")
    grade = await coding.play(case, talk_of(lambda messages: f"```python\n{right}```"))
    assert grade.reason == "wrong_result"


async def test_a_terminal_suite_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "shell/write_word/heldout/1"
    write_task(generate(name), task_toml("write_word"), tmp_path / "set" / "one")
    monkeypatch.setenv("TASK_TYPE", "harbor")
    monkeypatch.setenv("DATASET_DIR", str(tmp_path / "set"))
    monkeypatch.setenv("MAX_STEPS", "1")
    suite = Terminal(CodeBox(PlainProvider(tmp_path)))
    (case,) = suite.cases(0, 1)
    assert (case.family, case.problem) == ("one", "one")
    await suite.open()
    script = generate(name).solution["solve.sh"].data.decode()
    right = [("shell_exec", {"id": "a", "command": script})]
    grade = await suite.play(case, talk_of(lambda messages: "Done." if len(messages) > 2 else right))
    assert grade.reason == "passed"
    grade = await suite.play(case, talk_of(lambda messages: [("bash", {"command": "true"})]))
    assert grade.reason == "too_many_replies"
    await suite.close()
    monkeypatch.setenv("DATASET_DIR", str(tmp_path / "none"))
    with pytest.raises(EvalError, match="is not a folder"):
        suite.cases(0, 1)


@pytest.mark.parametrize("kind", [Shell, Terminal])
async def test_the_oracle_solves_shell_tasks(kind: type[Shell], tmp_path: Path) -> None:
    suite = kind(CodeBox(PlainProvider(tmp_path)))
    await suite.open()
    cases = [case for case in suite.cases(0, 25) if case.family in ("write_word", "sum_column")]
    assert await grades(suite, cases, None) == {"passed": 2}
    assert await grades(suite, cases, lambda messages: "Done.") == {"no_call": 2}
    malformed = talk_of(lambda messages: "Done." if len(messages) > 4 else [("bash", "{"), ("fly", {})])
    grade = await suite.play(cases[0], malformed)
    assert (grade.reason, grade.malformed_calls) == ("wrong_state", 2)
    assert all("/heldout/" in case.problem for case in cases)
    await suite.close()


class Missing(PlainProvider):
    """A machine without bubblewrap."""

    async def check(self) -> None:
        raise InfraError("there is no bubblewrap; install bubblewrap with scripts/setup_bubblewrap.sh", code="none")


@pytest.mark.parametrize("kind", [Coding, Shell])
async def test_without_a_sandbox_nothing_runs(kind: type[Coding] | type[Shell], tmp_path: Path) -> None:
    provider = Missing(tmp_path)
    with pytest.raises(SuiteError, match=r"only in a sandbox.*install bubblewrap"):
        await kind(CodeBox(provider)).open()
    assert provider.started == []
