"""Easy repositories: the issue quotes wrong and right code, each kind of mistake is real, one command mends it, and no two are alike."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from agentrl.tasks.names import SPLITS
from agentrl.tasks.swe.families import EASY, FAMILIES
from agentrl.tasks.swe.generate import EASY_PER_FAMILY, EVERY, draft_of, files_of, generate, task_name
from agentrl.tasks.swe.source import SIMPLE, InstanceSource
from lab.tiny_learning.mending import command_of
from tests.helpers.swe_instances import ran

NAMES = InstanceSource(benchmark=SIMPLE).ids()
VARYING = re.compile(r"\(\w+\)|\w+=\d+|\w+ (?=[<>])| \d+")
OF_EACH_KIND = {VARYING.sub("", draft_of(name).mistake.right): name for name in NAMES}
"""One name for each right comparison and each right call, and one with a default."""


def test_they_are_apart_from_the_others_and_no_two_are_alike() -> None:
    assert not EASY.keys() & FAMILIES.keys()
    assert EVERY.keys() == EASY.keys() | FAMILIES.keys()
    assert {*NAMES} == {
        task_name(family, split, number)
        for family in EASY
        for split in SPLITS
        for number in range(EASY_PER_FAMILY[split])
    }
    assert not {*NAMES} & {*InstanceSource().ids()}
    assert len({repr(sorted(draft_of(name).broken().items())) for name in NAMES}) == len(NAMES)


def test_the_issue_quotes_the_file_and_both_codes() -> None:
    for name in NAMES:
        draft, statement = draft_of(name), generate(name).statement
        assert f"In {draft.path}, {draft.mistake.wrong} should be {draft.mistake.right}\n" in statement
        assert draft.fail_to_pass()
        assert draft.pass_to_pass()


@pytest.mark.parametrize("kind", OF_EACH_KIND)
def test_the_mistake_breaks_what_it_says_and_one_command_mends_it(kind: str, tmp_path: Path) -> None:
    draft, files = draft_of(OF_EACH_KIND[kind]), files_of(OF_EACH_KIND[kind])
    every = {*draft.fail_to_pass(), *draft.pass_to_pass()}
    _, results = ran(tmp_path, {path: file.data.decode() for path, file in files.items()}, draft)
    assert results.keys() == every
    assert {test for test, result in results.items() if result != "PASSED"} == {*draft.fail_to_pass()}
    subprocess.run(["bash", "-c", command_of(OF_EACH_KIND[kind])], cwd=tmp_path, check=True)
    assert (tmp_path / draft.path).read_text() == draft.working()[draft.path]
    status, results = ran(tmp_path, {}, draft)
    assert (status, {*results.values()}, results.keys()) == (0, {"PASSED"}, every)
