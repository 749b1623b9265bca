"""Generated repositories: a name gives one instance, no two are alike, and what an instance shows holds no solution."""

from __future__ import annotations

import ast
import json

import pytest

from agentrl.tasks.names import random_of
from agentrl.tasks.swe.contamination import traits
from agentrl.tasks.swe.diffs import paths_of
from agentrl.tasks.swe.draft import HIDDEN
from agentrl.tasks.swe.families import EASY, FAMILIES
from agentrl.tasks.swe.generate import draft_of, files_of, generate, is_generated, task_name
from agentrl.tasks.swe.instance import instance_of
from agentrl.tasks.swe.source import LOCAL, SIMPLE, InstanceSource
from groundwork.exceptions import ConfigError
from tests.helpers.swe_instances import names, of_each_mistake


def test_there_are_many_and_of_all_kinds() -> None:
    assert len(names()) == 375
    assert len(of_each_mistake()) >= 45
    kinds = [draft_of(task_name(family, "train", 0)).kind for family in FAMILIES]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(
        ("off_by_one", "api_misuse", "state", "concurrency", "parsing"), 3
    )


def test_no_two_instances_are_alike_and_each_is_whole() -> None:
    seen: set[str] = set()
    for name in names():
        instance, draft = generate(name), draft_of(name)
        seen.add(repr(sorted(draft.broken().items())))
        assert len(instance.grading.fail_to_pass) == len(draft.mistake.breaks), name
        assert instance.grading.pass_to_pass, name
        assert paths_of(instance.grading.gold) == (draft.path,)
        for text in (*draft.working().values(), draft.broken()[draft.path], draft.hidden):
            ast.parse(text if not text.startswith("# ") else "")
    assert len(seen) == len(names())


@pytest.mark.parametrize(("benchmark", "train", "heldout"), [(LOCAL, 300, 75), (SIMPLE, 600, 60)])
def test_no_held_out_solution_or_issue_is_one_for_training(benchmark: str, train: int, heldout: int) -> None:
    source = InstanceSource(benchmark=benchmark)
    trained, tested = ([traits(source.load(name)) for name in source.ids(split)] for split in ("train", "heldout"))
    assert (len(trained), len(tested)) == (train, heldout)
    for trait in ("the solution", "the issue"):
        both = {each[trait] for each in trained} & {each[trait] for each in tested}
        assert not both, f"{trait} of {len(both)} held-out instances is one for training"


def test_a_mistake_is_of_one_split_whatever_the_number() -> None:
    for family in FAMILIES:
        broken = {
            split: {draft_of(task_name(family, split, number)).mistake.breaks for number in range(5000, 5020)}
            for split in ("train", "heldout")
        }
        assert len(broken["train"]) >= 2, family
        assert len(broken["heldout"]) == 1, family
        assert not broken["train"] & broken["heldout"], family


def test_the_first_draw_of_an_easy_name_for_training_stays() -> None:
    for family, first in EASY.items():
        for number in (0, 199, 1000, 899_999):
            assert draft_of(task_name(family, "train", number)) == first(random_of(family, "train", number))


def test_a_name_gives_the_same_instance() -> None:
    for name in of_each_mistake()[:10]:
        assert generate(name) == generate(name)
        assert files_of(name) == files_of(name)


@pytest.mark.parametrize("name", ["swe/none/train/1", "swe/pages/test/1", "swe/pages/train/01", "shell/pages/train/1"])
def test_no_such_instance(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no task"):
        generate(name)
    assert is_generated(name) == (name == "swe/none/train/1")


def test_what_an_instance_shows_holds_no_solution() -> None:
    for name in of_each_mistake():
        instance, draft = generate(name), draft_of(name)
        shown = repr(instance) + instance.statement + repr([file.data for file in files_of(name).values()])
        assert repr(draft.working()[draft.path].encode()) not in shown
        assert instance.grading.gold not in shown
        assert HIDDEN not in files_of(name)
        assert "test_issue" not in shown
        assert "gold" not in repr(instance)


def test_a_row_is_read_as_it_was_written() -> None:
    for name in of_each_mistake()[:5]:
        instance = generate(name)
        assert instance_of(json.loads(json.dumps(instance.row()))) == instance


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS"),
        ({"FAIL_TO_PASS": "nothing"}, "correct these columns"),
        ({"patch": "no diff"}, "patch is not a diff"),
        ({"repo": "a/b/c"}, "repo"),
        ({"instance_id": "a/../../b"}, "cannot have such a path"),
        ({"base_commit": "-x"}, "cannot have such a path"),
        ({"log_parser": "parse_log_django"}, "needs the test_cmd"),
        ({"log_parser": "other", "test_cmd": "x"}, "log_parser other is none"),
    ],
)
def test_a_wrong_row_names_the_column_and_shows_no_value(change: dict[str, str], says: str) -> None:
    row = {**generate("swe/pages/train/1").row(), **change}
    with pytest.raises(ConfigError, match=says) as raised:
        instance_of(row)
    assert "diff --git a/" not in str(raised.value).replace("'diff --git a/PATH b/PATH'", "")
