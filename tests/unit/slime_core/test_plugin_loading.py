"""Plugin paths and the small tools around them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slime.exceptions import PluginError
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput, call_rollout_fn
from slime.utils.async_utils import get_async_loop, run
from slime.utils.misc import group_by, load_function, should_run_periodic_action
from slime.utils.types import Sample


def test_module_path() -> None:
    assert load_function("slime.utils.types.Sample") is Sample


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    file = tmp_path / "my_loss.py"
    file.write_text(
        "COUNT = []\nCOUNT.append(1)\n\ndef compute_loss():\n    return 1\n\ndef other():\n    return COUNT\n"
    )
    return file


def test_file_path_with_and_without_a_name(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plugin.parent)
    assert load_function("./my_loss.py", "compute_loss")() == 1
    assert load_function(f"{plugin}:other")() == [1]
    assert load_function("./my_loss.py:compute_loss")() == 1


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nodots", "module.attr"),
        ("no_such_module.thing", "no module 'no_such_module'"),
        ("slime.utils.types.Nothing", "has no 'Nothing'"),
        ("./missing.py:f", "does not exist"),
    ],
)
def test_what_is_missing_is_named(path: str, says: str) -> None:
    with pytest.raises(PluginError, match=says):
        load_function(path)


def test_a_file_without_a_default_name_asks_for_one(plugin: Path) -> None:
    with pytest.raises(PluginError, match=r"my_loss\.py:attr"):
        load_function(str(plugin))
    with pytest.raises(PluginError, match="has no 'absent'"):
        load_function(f"{plugin}:absent")


def test_a_bare_result_is_wrapped() -> None:
    def function(args: object, rollout_id: int, source: object, evaluation: bool = False) -> object:
        return {"set": {"rewards": [1.0]}} if evaluation else [[Sample()]]

    train = call_rollout_fn(function, None, 0, None, evaluation=False)
    held_out = call_rollout_fn(function, None, 0, None, evaluation=True)
    assert isinstance(train, RolloutFnTrainOutput)
    assert isinstance(held_out, RolloutFnEvalOutput)
    assert held_out.data["set"]["rewards"] == [1.0]


def test_run_uses_one_loop_and_cannot_deadlock() -> None:
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert run(loop()) is run(loop()) is get_async_loop()

    async def nested() -> None:
        run(loop())

    with pytest.raises(RuntimeError, match="await the coroutine"):
        run(nested())


def test_group_by_keeps_order() -> None:
    assert group_by([1, 2, 3, 4], lambda number: number % 2) == {1: [1, 3], 0: [2, 4]}
    assert group_by("aba") == {"a": ["a", "a"], "b": ["b"]}


def test_periodic_actions() -> None:
    due = [rollout for rollout in range(10) if should_run_periodic_action(rollout, 4, None, 10)]
    assert due == [3, 7, 9]
    assert [rollout for rollout in range(6) if should_run_periodic_action(rollout, 4, 3)] == [2, 3, 5]
    assert not should_run_periodic_action(0, None, 1, 1)
