"""Environments of the real package `verifiers`, played through its worker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentrl.bridges import verifiers
from agentrl.bridges.verifiers import PATH_VARIABLE, PYTHON_VARIABLE, verifiers_environment
from groundwork.exceptions import ConfigError
from tests.helpers.lone_environments import lent

PYTHON = Path(os.environ.get(PYTHON_VARIABLE) or verifiers.PYTHON)
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not PYTHON.is_file(), reason="needs verifiers: bash scripts/setup_verifiers.sh"),
]


@pytest.fixture
def packages(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATH_VARIABLE, str(repository / "tests/data/verifiers_environments"))


@pytest.mark.usefixtures("packages")
async def test_an_episode_of_several_turns(tmp_path: Path) -> None:
    kind = verifiers_environment("guess_word")
    first, second = kind.tasks()
    async with lent(kind, tmp_path) as environment:
        begun = await environment.reset(second, 0)
        assert begun.data["messages"] == [
            {"role": "system", "content": "One word only."},
            {"role": "user", "content": "Guess the word."},
        ]
        wrong = await environment.step({"text": "water"})
        assert (wrong.observation.text, wrong.done) == ("No. It begins with 'b'; 2 left.", False)
        assert (await environment.step({"text": "bread"})).done
        verdict = await environment.evaluate()
        assert (verdict.status, verdict.score) == ("ok", 1.0)
        assert '"turns": 2.0' in verdict.detail
        await environment.reset(first, 0)
        await environment.step({"text": "water"})
        early = await environment.evaluate()
        assert (early.status, early.score) == ("task_failed", 0.0)


@pytest.mark.usefixtures("packages")
async def test_an_episode_of_one_turn_has_the_weighted_reward(tmp_path: Path) -> None:
    kind = verifiers_environment("reverse-text")
    (task,) = kind.tasks()
    async with lent(kind, tmp_path) as environment:
        assert (await environment.reset(task, 0)).text == "Reverse: abc"
        assert (await environment.step({"text": "cba"})).done
        assert (await environment.evaluate()).score == 2.0


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("runs_code", "runs of task 0 need a sandbox of their own"),
        ("no_such_environment", "must already be installed"),
        ("textarena", "textarena requires nltk"),  # of those that the package ships, none runs as it comes
    ],
)
def test_what_cannot_be_played_is_refused(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        verifiers_environment(name).tasks()
